// SPDX-License-Identifier: Apache-2.0

package durable_test

import (
	"errors"
	"io/fs"
	"os"
	"slices"
	"testing"

	"github.com/boxd-dev/boxd/internal/durable"
)

func TestRecordsReplaceEachOtherWhole(t *testing.T) {
	t.Parallel()
	dir, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	for _, want := range []string{"one", "two"} {
		if err := durable.WriteJSON(dir, "a.json", want); err != nil {
			t.Fatal(err)
		}
		var got string
		if err := durable.ReadJSON(dir, "a.json", &got); err != nil || got != want {
			t.Fatalf("read %q, %v", got, err)
		}
	}
	if err := dir.WriteFile(".new-HALF", []byte(`"tw`), 0o600); err != nil {
		t.Fatal(err)
	}
	names, err := durable.Names(dir)
	if err != nil || !slices.Equal(names, []string{"a.json"}) {
		t.Fatalf("names %v, %v", names, err)
	}
	if _, err := dir.Stat(".new-HALF"); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("the half-written record is still there: %v", err)
	}
	if err := dir.WriteFile("bad.json", []byte(`{`), 0o600); err != nil {
		t.Fatal(err)
	}
	var v any
	if durable.ReadJSON(dir, "bad.json", &v) == nil || !errors.Is(durable.ReadJSON(dir, "no.json", &v), fs.ErrNotExist) {
		t.Fatal("a corrupt or missing record was read")
	}
}
