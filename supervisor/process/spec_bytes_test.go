// SPDX-License-Identifier: Apache-2.0

package process

import (
	"encoding/json"
	"reflect"
	"testing"

	"github.com/boxd-dev/boxd/isolation"
)

func TestASpecOutlivesBoxdByteForByte(t *testing.T) {
	t.Parallel()
	for _, c := range []isolation.Command{
		{Argv: []string{"cat", "caf\xe9"}, Env: []string{"A=\xff", "B=ü"}, Dir: "/workspace/d\xe9"},
		{Argv: []string{"cat", "\ufffd"}, Env: []string{"A=1"}, Dir: "/workspace"},
	} {
		spec := Spec{ID: "p", Command: c, Labels: map[string]string{"a": "b"}, Restart: Restart{Policy: RestartNo}}
		text, err := json.Marshal(&spec)
		if err != nil {
			t.Fatal(err)
		}
		var again Spec
		if err := json.Unmarshal(text, &again); err != nil || !reflect.DeepEqual(again, spec) {
			t.Errorf("%s: again = %+v, err = %v, want no error and again == %+v", text, again, err, spec)
		}
	}
}
