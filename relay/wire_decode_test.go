// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/limits"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/supervisor/policy"
	"github.com/boxd-dev/boxd/supervisor/process"
	"github.com/boxd-dev/boxd/supervisor/session"
)

func TestRequestsAreReadExactly(t *testing.T) {
	t.Parallel()
	var got api.OneShotRequest
	body := ` {"session":{"id":"a\/b \ud83d\ude00 \\ud800","profile":"default","memory":"1GiB","tmp":1048576,"ttl":"90s","max_lifetime":1.5,
		"cpus":0.5,"pids":null,"mounts":[{"source":"/a","target":"/data","mode":"ro"},{"source":"/b","target":"/mnt","owner":7}],
		"env":{"A":"\ufffd","":"x"},"labels":{}},
		"exec":{"argv":["sh","-c","echo \"$1\""],"cwd":"/tmp","timeout":2,"stdin":"é","output_limit":"1KiB"}} `
	if err := decodeStrictly([]byte(body), &got); err != nil {
		t.Fatal(err)
	}
	want := api.OneShotRequest{
		Session: api.SessionRequest{
			ID: `a/b 😀 \ud800`, Profile: "default", Patch: limits.Patch{
				Memory: new(quantity.GiB), CPUs: new(0.5), TTL: new(quantity.Duration(90 * time.Second)),
				MaxLifetime: new(quantity.Duration(1500 * time.Millisecond)),
			}, Tmp: new(quantity.MiB),
			Mounts: []api.Mount{{Source: "/a", Target: "/data", Mode: "ro"}, {Source: "/b", Target: "/mnt", Owner: 7}},
			Env:    map[string]string{"A": "\ufffd", "": "x"}, Labels: map[string]string{},
		},
		Exec: api.ExecRequest{
			Argv: []string{"sh", "-c", `echo "$1"`}, Cwd: "/tmp", Timeout: new(quantity.Duration(2 * time.Second)), Stdin: "é", OutputLimit: new(quantity.KiB),
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestWhatIsNotExactIsRefusedByName(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, body string
		field      string // "body" for one about the whole body
		message    string
	}{
		{"nothing", "", "body", "empty"},
		{"spaces", " \n ", "body", "empty"},
		{"no JSON", "id=s1", "body", "not JSON"},
		{"half of it", `{"session":{`, "body", "not JSON"},
		{"something after it", `{} {}`, "body", "not JSON"},
		{"a list", `[]`, "body", "a JSON object"},
		{"a string", `"x"`, "body", "a JSON object"},
		{"null", `null`, "body", "a JSON object"},
		{"unknown key", `{"sesion":{}}`, "sesion", "exec, session"},
		{"unknown key inside", `{"session":{"memroy":1}}`, "session.memroy", "memory"},
		{"key in another case", `{"session":{"Memory":1}}`, "session.Memory", "memory"},
		{"empty key", `{"":1}`, "", "unknown"},
		{"key twice", `{"session":{"id":"a","id":"b"}}`, "session.id", "once"},
		{"object twice", `{"exec":{},"exec":{}}`, "exec", "once"},
		{"variable twice", `{"session":{"env":{"A":"1","A":"2"}}}`, "session.env.A", "once"},
		{"null for a text", `{"session":{"id":null}}`, "session.id", "a string"},
		{"null for an object", `{"session":null}`, "session", "a JSON object"},
		{"null for a list", `{"session":{"mounts":null}}`, "session.mounts", "a list"},
		{"null for arguments", `{"exec":{"argv":null}}`, "exec.argv", "a list"},
		{"null for one argument", `{"exec":{"argv":["a",null]}}`, "exec.argv[1]", "a string"},
		{"null for variables", `{"session":{"env":null}}`, "session.env", "a JSON object"},
		{"null for a variable", `{"session":{"env":{"A":null}}}`, "session.env.A", "a string"},
		{"number for a text", `{"session":{"id":1}}`, "session.id", "a string"},
		{"text for a number", `{"session":{"pids":"64"}}`, "session.pids", "a whole number"},
		{"fraction for a whole number", `{"session":{"pids":1.5}}`, "session.pids", "a whole number"},
		{"number too large", `{"session":{"pids":99999999999999999999}}`, "session.pids", "a whole number"},
		{"negative owner", `{"session":{"mounts":[{"owner":-1}]}}`, "session.mounts[0].owner", "a whole number"},
		{"text for a boolean", `{"session":{"read_only_root":"yes"}}`, "session.read_only_root", "true or false"},
		{"text for a list", `{"exec":{"argv":"ls"}}`, "exec.argv", "a list"},
		{"object for a list", `{"session":{"mounts":{}}}`, "session.mounts", "a list"},
		{"list of numbers", `{"exec":{"argv":[1]}}`, "exec.argv[0]", "a string"},
		{"size without a unit", `{"session":{"memory":"512"}}`, "session.memory", "512MiB"},
		{"negative size", `{"session":{"memory":-1}}`, "session.memory", "512MiB"},
		{"duration of pigs", `{"session":{"ttl":"many"}}`, "session.ttl", "30s"},
		{"negative duration", `{"session":{"ttl":-1}}`, "session.ttl", "30s"},
		{"duration beyond all", `{"session":{"ttl":9223372036.854776}}`, "session.ttl", "30s"},
		{"text that is no UTF-8", "{\"session\":{\"id\":\"a\xff\"}}", "session.id", "UTF-8"},
		{"argument that is no UTF-8", "{\"exec\":{\"argv\":[\"a\",\"\xc3\"]}}", "exec.argv[1]", "UTF-8"},
		{"half of a character", `{"session":{"id":"\ud83d"}}`, "session.id", "UTF-8"},
		{"the other half", `{"session":{"id":"\ude00"}}`, "session.id", "UTF-8"},
		{"halves in disorder", `{"session":{"id":"\ude00\ud83d"}}`, "session.id", "UTF-8"},
		{"half and a letter", `{"session":{"id":"\ud83d\u0041"}}`, "session.id", "UTF-8"},
		{"key that is no UTF-8", "{\"session\":{\"env\":{\"A\xff\":\"\"}}}", "body", "UTF-8"},
		{"half of a character in a key", `{"session":{"env":{"\ud800":""}}}`, "body", "UTF-8"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			var v api.OneShotRequest
			err := decodeStrictly([]byte(tc.body), &v)
			f, ok := errors.AsType[*fault.Error](err)
			if !ok || f.Kind != fault.Invalid || f.Field != tc.field || !strings.Contains(err.Error(), tc.message) || strings.Count(err.Error(), "must be") > 1 {
				t.Errorf("%v (field %q), want one about %q that says %q", err, f.Field, tc.field, tc.message)
			}
		})
	}
}

func TestNoErrorShowsWhatMayBeASecret(t *testing.T) {
	t.Parallel()
	for _, body := range []string{
		`{"session":{"env":"TOKEN=s3cret"}}`,
		`{"session":{"env":["TOKEN=s3cret"]}}`,
		`{"session":{"env":{"TOKEN":["s3cret"]}}}`,
		`{"exec":{"env":{"TOKEN":{"x":"s3cret"}}}}`,
		"{\"exec\":{\"env\":{\"TOKEN\":\"s3cret\xff\"}}}",
		`{"exec":{"env":{"TOKEN":"s3cret","TOKEN":""}}}`,
	} {
		var v api.OneShotRequest
		if err := decodeStrictly([]byte(body), &v); err == nil || strings.Contains(err.Error(), "s3cret") {
			t.Errorf(`%s: err = %v, want an error and err without "s3cret"`, body, err)
		}
	}
}

func TestProcessesAreAskedForExactly(t *testing.T) {
	t.Parallel()
	var got api.ProcessRequest
	body := `{"argv":["a"],"env":{"A":"b"},"cwd":"/tmp","timeout":"1h","memory":"1MiB","terminal":{"rows":24,"cols":80},"stdin":true,
		"restart":{"policy":"always","delay":0.5,"max_delay":"1m","limit":0,"window":"1h"},"ready":{"line":"up","timeout":"5s"},
		"stop":{"signal":"SIGINT","grace":"0s"},"lease":"30s","output":"2MiB","labels":{"x":"y"}}`
	if err := decodeStrictly([]byte(body), &got); err != nil {
		t.Fatal(err)
	}
	req, err := processRequestOf("p/1", &got)
	if err != nil {
		t.Fatal(err)
	}
	want := &session.ProcessRequest{
		ID: "p/1", Managed: true, Stdin: true, Terminal: &process.Size{Rows: 24, Cols: 80}, Lease: new(30 * time.Second), Output: new(2 * quantity.MiB),
		Labels: map[string]string{"x": "y"}, Ready: &process.Ready{Line: new("up"), Timeout: new(5 * time.Second)},
		Restart: &process.Restart{Policy: "always", Delay: new(500 * time.Millisecond), MaxDelay: new(time.Minute), Limit: new(0), Window: new(time.Hour)},
		Stop:    &process.Stop{Signal: "SIGINT", Grace: new(time.Duration(0))},
		Exec: session.ExecRequest{
			Argv: []string{"a"}, Env: map[string]string{"A": "b"}, Dir: "/tmp", Timeout: new(quantity.Duration(time.Hour)),
			Limits: policy.ProgramLimits{Memory: new(quantity.MiB)},
		},
	}
	if diff := cmp.Diff(want, req); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	for body, field := range map[string]string{
		`{"terminal":{"rows":65536,"cols":1}}`: "terminal.rows", `{"terminal":{"rows":-1}}`: "terminal.rows", `{"terminal":{"rows":0,"cols":80}}`: "terminal.rows",
		`{"terminal":{"cols":80}}`: "terminal.rows", `{"terminal":{"rows":1}}`: "terminal.cols", `{"restart":{"polcy":"no"}}`: "restart.polcy", `{"restart":"always"}`: "restart",
		`{"ready":{"command":"true"}}`: "ready.command", `{"lease":null,"stop":{"grace":"-1s"}}`: "stop.grace", `{"detach":true}`: "detach", `{"id":"x"}`: "id",
	} {
		var r api.ProcessRequest
		err := decodeStrictly([]byte(body), &r)
		if err == nil {
			_, err = processRequestOf("p", &r)
		}
		if f, ok := errors.AsType[*fault.Error](err); !ok || f.Kind != fault.Invalid || f.Field != field {
			t.Errorf("%s: %v, want one about %q", body, err, field)
		}
	}
}

// The decoder never panics, and what it accepts encoding/json decodes to the same value.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"session":{"id":"s","memory":"1GiB","ttl":1,"env":{"A":"B"},"mounts":[{"source":"/a"}]},"exec":{"argv":["a"]}}`))
	f.Add([]byte(`{"exec":{"argv":["\ud83d\ude00","\\","\""],"command":null,"timeout":"1s"}}`))
	f.Add([]byte("{\"session\":{\"id\":\"\xff\\ud800\"}}"))
	f.Add([]byte(`{"session":{"env":{"a":"b","a":null}}}{`))
	f.Add([]byte(`{"attach":{"stdout":1,"stderr":-1,"replay":true,"write":true,"take_over":true,"stdin":9223372036854775807,"lossless":true,"lines":true}}`))
	f.Add([]byte(`{"start":{"exec":{"id":"p","detach":true},"stdin":true,"terminal":{"rows":65535,"cols":65536}},"resize":{"rows":24,"cols":80},"signal":"SIGINT"}`))
	f.Add([]byte(`{"argv":["a"],"terminal":{"rows":1,"cols":1},"restart":{"policy":"always","limit":3},"ready":{"port":80},"stop":{"grace":1},"lease":"1m"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, typ := range []reflect.Type{reflect.TypeFor[api.OneShotRequest](), reflect.TypeFor[api.ClientControl](), reflect.TypeFor[api.ProcessRequest]()} {
			decodesAlike(t, data, typ)
		}
	})
}

func decodesAlike(t *testing.T, data []byte, typ reflect.Type) {
	ours, theirs := reflect.New(typ).Interface(), reflect.New(typ).Interface()
	if decodeStrictly(data, ours) != nil {
		return
	}
	if err := json.Unmarshal(data, theirs); err != nil {
		t.Fatalf("%q: %v", data, err)
	}
	if diff := cmp.Diff(theirs, ours); diff != "" {
		t.Errorf("%q is read otherwise (-encoding/json +ours):\n%s", data, diff)
	}
}
