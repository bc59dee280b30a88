// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/relay/api"
)

func TestBytesTakeThePlaceOfTexts(t *testing.T) {
	t.Parallel()
	r := api.ExecRequest{Env: map[string]string{"A": "1"}, Base64: &api.InBase64{Argv: []string{"Y2F0", "Y2Fm6Q=="}, Cwd: "L2TpcQ==", Env: []string{"Qj3/"}}}
	want := api.ExecRequest{Argv: []string{"cat", "caf\xe9"}, Cwd: "/d\xe9q", Env: map[string]string{"A": "1", "B": "\xff"}}
	if err := decodeBase64Into(&r); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, r); diff != "" {
		t.Error(diff)
	}
	for field, bad := range map[string]any{
		"base64.argv[1]":        &api.ExecRequest{Base64: &api.InBase64{Argv: []string{"Y2F0", "?"}}},
		"base64.argv":           &api.ExecRequest{Argv: []string{"x"}, Base64: &api.InBase64{Argv: []string{"Y2F0"}}},
		"base64.command":        &api.ProcessRequest{Command: new("x"), Base64: &api.InBase64{Command: new("Y2F0")}},
		"base64.cwd":            &api.ProcessRequest{Cwd: "/", Base64: &api.InBase64{Cwd: "Y2F0"}},
		"base64.env[0]":         &api.ProcessRequest{Base64: &api.InBase64{Env: []string{"Y2F0"}}},
		"session.base64":        &api.OneShotRequest{Session: api.SessionRequest{Base64: &api.InBase64{Cwd: "Y2F0"}}},
		"exec.base64.code":      &api.OneShotRequest{Exec: api.ExecRequest{Base64: &api.InBase64{Code: new("?")}}},
		"start.exec.base64.cwd": &api.StreamStart{Exec: api.ExecRequest{Base64: &api.InBase64{Cwd: "?"}}},
	} {
		err := decodeBase64Into(bad)
		if f, ok := errors.AsType[*fault.Error](err); !ok || f.Field != field {
			t.Errorf("%s: err = %v, want ok == true and f.Field == field", field, err)
		}
	}
}
