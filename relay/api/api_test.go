// SPDX-License-Identifier: Apache-2.0

package api_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/boxd-dev/boxd/limits"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
)

func session() api.Session {
	born := time.Date(2026, 11, 21, 9, 30, 0, 123456789, time.UTC)
	return api.Session{
		ID: "a/b", Owner: "uid:1000", OwnerUID: 1000, State: "ready", Profile: "default", Image: "host", Hostname: "a-b", Network: "off",
		ReadOnlyRoot: true, Limits: limits.Limits{
			CPUs: 1.5, Memory: 512 * quantity.MiB, OOM: "program", Pids: 128, CPUWeight: 100, IOWeight: 50, IOWrite: quantity.MiB,
			Tmp: 256 * quantity.MiB, WorkspaceQuota: quantity.GiB,
		},
		Lifetime: limits.Lifetime{TTL: quantity.Duration(5 * time.Minute), MaxLifetime: quantity.Duration(24 * time.Hour)},
		Mounts:   []api.Mount{{Source: "/home/u/in", Target: "/data", Mode: "ro"}, {Source: "/srv/x", Target: "/workspace", Mode: "rw", Owner: 1500}},
		Env:      []string{"TOKEN"}, Labels: map[string]string{"team": "x"}, Enforcement: map[string]string{"memory": "rlimit", "tmp": "tmpfs"},
		CreatedAt: born, LastUsedAt: born.Add(time.Second), ExpiresAt: new(born.Add(time.Minute)), Running: 1, Executions: 2, PID: 4321, IDBase: 1879048192,
		Group: "/sys/fs/cgroup/x", Usage: &api.SessionUsage{CPUMS: 1.5, Memory: quantity.MiB, MemoryPeak: 2 * quantity.MiB, Pids: 3, OOMKills: 1, Pressure: api.Pressure{CPU: 12.5}},
	}
}

func result() api.ExecResult {
	return api.ExecResult{
		Session: "a/b", Status: "exited", ExitCode: new(3), Stdout: "out\n", Stderr: "err\n",
		Output: [2]api.Total{{Bytes: 2000000, Omitted: 951424}, {Bytes: 4}}, DurationMS: 12.345,
		Usage: api.Usage{UserMS: 1.5, SystemMS: 0.25, MaxRSS: 2 * quantity.MiB}, LeftoversKilled: 2, Timeout: quantity.Duration(2 * time.Minute),
		Clamped: []api.Clamp{{Field: "timeout", Asked: "1h", Got: "2m", By: "profiles.default.max_timeout"}},
		OOM:     &api.OOM{Kills: 1, Limit: quantity.MiB, Of: "session", Peak: quantity.MiB, Names: []string{"python3"}},
	}
}

func failure() api.ExecResult {
	return api.ExecResult{
		Session: "s", Status: "start_failed", Timeout: quantity.Duration(30 * time.Second),
		Failure: &api.StartFailure{Step: "lookup", Item: "nosuch", Errno: "ENOENT", Text: `lookup "nosuch": no such file or directory`},
	}
}

func problem() api.Problem {
	return api.Problem{
		Type: api.ProblemType + "denied", Title: "not allowed", Status: 403, Detail: `network = "host": must be off`,
		Field: "network", Value: "host", Allowed: "off", Hint: "leave it out or use another profile",
		Denial:  &api.Denial{Layer: "policy", Rule: "profiles.closed.locked", Allowed: "off", Setting: "x", Used: "2", RetryAfter: 3},
		Failure: &api.StartFailure{Step: "mount source", Item: "/x", Text: "no"},
	}
}

func process() api.Process {
	born := time.Date(2026, 11, 21, 9, 30, 0, 123456789, time.UTC)
	return api.Process{
		ID: "mcp/a", Session: "a/b", State: "waiting", Starts: 2, Argv: []string{"server", "-x"}, Cwd: "/workspace", Env: []string{"TOKEN"}, Stdin: true, Readers: 2, Writer: true,
		Terminal: &api.Terminal{Rows: 24, Cols: 80}, Timeout: new(quantity.Duration(time.Hour)),
		Restart: api.Restart{Policy: "always", Delay: new(quantity.Duration(time.Second)), MaxDelay: new(quantity.Duration(time.Minute)), Limit: new(5), Window: new(quantity.Duration(time.Minute))},
		Stop:    api.Stop{Signal: "SIGTERM", Grace: new(quantity.Duration(10 * time.Second))}, Lease: new(quantity.Duration(time.Minute)), Labels: map[string]string{"team": "x"},
		Output:    [2]api.StreamState{{Bytes: 2000000, From: 951424}, {Bytes: 4}},
		StartedAt: born, EndedAt: new(born.Add(time.Minute)), NextStart: new(born.Add(time.Second)), ExpiresAt: new(born.Add(time.Hour)),
		Reason: "lease", Clamped: result().Clamped, Result: new(result()),
	}
}

func processRequest() *api.ProcessRequest {
	return &api.ProcessRequest{
		Argv: []string{"server"}, Env: map[string]string{"TOKEN": "x"}, Cwd: "/tmp", Memory: new(quantity.GiB), Terminal: &api.Terminal{Rows: 24, Cols: 80}, Stdin: true,
		Restart: &api.Restart{Policy: "on-failure", Limit: new(0)}, Ready: &api.Ready{Port: new(80), Timeout: new(quantity.Duration(time.Second))},
		Stop: &api.Stop{Signal: "SIGINT"}, Lease: new(quantity.Duration(time.Minute)), Output: new(quantity.MiB), Labels: map[string]string{"team": "x"},
	}
}

// The wire format does not change by accident: the files in testdata are what clients rely on. With UPDATE in the environment they
// are written again.
func TestTheWireFormatIsUnchanged(t *testing.T) {
	t.Parallel()
	for name, v := range map[string]any{
		"session.json": new(session()), "exec_result.json": new(result()), "start_failed.json": new(failure()), "problem.json": new(problem()),
		"started.json": &api.ServerControl{Started: &api.StreamStarted{Session: "s", Clamped: result().Clamped}},
		"taken.json":   &api.ServerControl{StdinTaken: 65536},
		"start.json": &api.ClientControl{Start: &api.StreamStart{
			Session: &api.SessionRequest{Profile: "default", Patch: limits.Patch{Memory: new(quantity.GiB), TTL: new(quantity.Duration(90 * time.Second))}},
			Exec:    api.ExecRequest{Command: new("make test"), Cwd: "/workspace", Timeout: new(quantity.Duration(time.Minute))}, Stdin: true,
		}},
		"change.json":  &api.SessionChange{Patch: limits.Patch{Memory: new(quantity.GiB), CPUs: new(0.5), OOM: new("session"), TTL: new(quantity.Duration(time.Minute))}},
		"signal.json":  &api.ClientControl{Signal: "SIGINT"},
		"process.json": new(process()), "process_request.json": processRequest(),
		"resize.json": &api.ClientControl{Resize: &api.Terminal{Rows: 24, Cols: 80}},
		"attach.json": &api.ClientControl{Attach: &api.StreamAttach{Stdout: new(int64(5)), Stderr: new(int64), Write: true, TakeOver: true, Stdin: new(int64(7)), Lossless: new(true), Lines: true, WriterID: "w"}},
		"replay.json": &api.ClientControl{Attach: &api.StreamAttach{Replay: true}},
		"attached.json": &api.ServerControl{Attached: &api.StreamAttached{
			Process: api.Process{ID: "p", Argv: []string{}, Env: []string{}}, Stdout: 5, Stderr: 6, Stdin: 7, Writer: true,
		}},
		"gap.json":         &api.ServerControl{Gap: &api.StreamGap{Stream: "stdout", Bytes: 65536, Reason: api.GapLongLine}},
		"writer_lost.json": &api.ServerControl{WriterLost: true},
		"log_line.json":    &api.LogLine{Stream: "stdout", Offset: 4096, Time: process().StartedAt, Data: "gP8=", Base64: true},
	} {
		path := filepath.Join("testdata", name)
		var got bytes.Buffer
		e := json.NewEncoder(&got)
		e.SetEscapeHTML(false)
		e.SetIndent("", "  ")
		if err := e.Encode(v); err != nil {
			t.Fatal(err)
		}
		if os.Getenv("UPDATE") != "" {
			if err := os.WriteFile(path, got.Bytes(), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), got.String()); diff != "" {
			t.Errorf("%s (-file +now):\n%s", name, diff)
		}
		back := reflect.New(reflect.TypeOf(v).Elem()).Interface()
		if err := json.Unmarshal(want, back); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff(v, back); diff != "" {
			t.Errorf("%s changes on its way (-sent +received):\n%s", name, diff)
		}
	}
}

// Names of the wire are of one style, and every field has one.
func TestFieldsAreNamedInOneStyle(t *testing.T) {
	t.Parallel()
	seen := map[reflect.Type]bool{}
	var walk func(reflect.Type)
	walk = func(typ reflect.Type) {
		switch typ.Kind() {
		case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map:
			walk(typ.Elem())
			return
		case reflect.Struct:
		default:
			return
		}
		if seen[typ] || typ == reflect.TypeFor[time.Time]() {
			return
		}
		seen[typ] = true
		for f := range typ.Fields() {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if f.Anonymous { // its fields are the struct's own
				walk(f.Type)
				continue
			}
			if name == "" || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz_0123456789") != "" {
				t.Errorf("%s.%s is %q on the wire", typ, f.Name, name)
			}
			walk(f.Type)
		}
	}
	for _, v := range []any{
		api.OneShotRequest{},
		api.ProcessRequest{},
		api.ProcessList{},
		api.SignalRequest{},
		api.LogLine{},
		api.SessionList{},
		api.ExecResult{},
		api.Problem{},
		api.GrantList{},
		api.GrantRequest{},
		api.ProfileList{},
		api.Status{},
		api.Doctor{},
		api.Health{},
		api.ClientControl{},
		api.ServerControl{},
	} {
		walk(reflect.TypeOf(v))
	}
}
