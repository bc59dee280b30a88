// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/limits"
	"github.com/boxd-dev/boxd/relay/api"
)

func TestMutatingRoutesAreRecorded(t *testing.T) {
	t.Parallel()
	for pattern, want := range map[string][2]bool{ // mutates, only ends
		"": {false, false}, "GET /v1/sessions": {false, false}, "GET /v1/events": {false, false}, "POST /v1/exec": {true, false}, "PATCH /v1/sessions/{id}": {true, false},
		"PUT /v1/sessions/{id}/processes/{p}": {true, false}, "GET /v1/exec/stream": {true, false}, "GET /v1/sessions/{id}/processes/{p}/stream": {true, false},
		"GET /v1/sessions/{id}/processes/{p}/stdio": {true, false}, "GET /v1/sessions/{id}/processes/{p}/logs": {false, false},
		"DELETE /v1/sessions/{id}": {true, true}, "POST /v1/sessions/{id}/processes/{p}/stop": {true, true},
	} {
		if got := [2]bool{isMutation(pattern), isOnlyEnd(pattern)}; got != want {
			t.Errorf("%q: %v, want %v", pattern, got, want)
		}
	}
}

// No secret of a request gets into the audit log: values of variables, input.
func TestWhatIsRecordedOfARequest(t *testing.T) {
	t.Parallel()
	const secret = "hush"
	env := map[string]string{"TOKEN": secret, "A": secret}
	memory := new(api.SessionRequest)
	if err := json.Unmarshal([]byte(`{"id":"s","profile":"p","memory":"64MiB","mounts":[{"source":"/a","target":"/b","mode":"ro"}],"labels":{"l":"hush"}}`), memory); err != nil {
		t.Fatal(err)
	}
	memory.Env = env
	for _, test := range []struct {
		body any
		argv []string
		env  []string
		more []string
	}{
		{&api.ExecRequest{Argv: []string{"ls", "-l"}, Env: env, Stdin: secret}, []string{"ls", "-l"}, []string{"A", "TOKEN"}, nil},
		{&api.ExecRequest{Command: new("ls | wc")}, []string{"sh", "-c", "ls | wc"}, nil, nil},
		{&api.ProcessRequest{Code: new("print(1)"), Language: "python", Env: env}, []string{"(python)", "print(1)"}, []string{"A", "TOKEN"}, nil},
		{memory, nil, []string{"A", "TOKEN"}, []string{"labels", "memory"}},
		{&api.OneShotRequest{Session: *memory, Exec: api.ExecRequest{Argv: []string{"x"}}}, []string{"x"}, []string{"A", "TOKEN"}, []string{"labels", "memory"}},
		{&api.StreamStart{Session: memory, Exec: api.ExecRequest{Argv: []string{"y"}}}, []string{"y"}, []string{"A", "TOKEN"}, []string{"labels", "memory"}},
		{&api.ImageCommit{Name: "n", Env: env, Cmd: []string{secret}}, nil, []string{"A", "TOKEN"}, []string{"cmd", "name=n"}},
		{&api.SignalRequest{Signal: "SIGHUP"}, nil, nil, []string{"signal=SIGHUP"}},
		{&api.SessionChange{Patch: limits.Patch{Pids: new(7), CPUs: new(1.5)}, Labels: map[string]string{"l": secret}}, nil, nil, []string{"cpus=1.5", "labels.l", "pids=7"}},
		{&api.GrantRequest{Principal: "uid:1", Role: "admin"}, nil, nil, []string{"principal=uid:1", "role=admin", "for=0s"}},
	} {
		w := auditWhat(test.body)
		if !slices.Equal(w.Argv, test.argv) || !slices.Equal(w.Env, test.env) || !slices.Equal(w.Changes, test.more) {
			t.Errorf("%+v: %+v", test.body, w)
		}
		if data, err := json.Marshal(w); err != nil || strings.Contains(string(data), secret) {
			t.Errorf("%v: %s", err, data)
		}
	}
	if auditWhat(nil) != nil {
		t.Error("of nothing there is something")
	}
}
