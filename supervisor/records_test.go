// SPDX-License-Identifier: Apache-2.0

package supervisor_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/supervisor"
	"github.com/boxd-dev/boxd/supervisor/access"
	"github.com/boxd-dev/boxd/supervisor/policy"
	"github.com/boxd-dev/boxd/supervisor/process"
	"github.com/boxd-dev/boxd/supervisor/session"
)

func openRecord(t *testing.T) (*supervisor.Records, string) {
	t.Helper()
	state := t.TempDir()
	d, err := supervisor.OpenRecords(state)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return d, filepath.Join(state, "sessions")
}

func example() *supervisor.Record {
	return &supervisor.Record{
		ID: "s1", Key: policy.Key("uid:7", "s1"), Owner: supervisor.RecordOwner{Name: "uid:7", UID: 7, GID: 8, Groups: []uint32{9}},
		Created: time.Unix(1, 0).UTC(), Settings: policy.Settings{Profile: "default", EnvNames: []string{"A"}}, Enforced: map[string]policy.Mechanism{"tmp": "tmpfs"},
	}
}

func TestARecordIsReadAsItWasWritten(t *testing.T) {
	t.Parallel()
	d, _ := openRecord(t)
	want := example()
	want.Rested = time.Minute
	want.Stopped = &session.Stopped{Since: time.Unix(2, 0).UTC(), Env: [][]byte{[]byte("A=\xff")}, Again: session.Again{
		Mounts: []policy.Mount{{Source: "/s", Target: "/mnt/t", Mode: policy.MountReadOnly}}, Processes: []*process.Spec{{ID: "p", Managed: true}},
	}}
	if err := d.Write(want); err != nil {
		t.Fatal(err)
	}
	if keys, err := d.Keys(); err != nil || !slices.Equal(keys, []string{want.Key}) {
		t.Errorf("keys = %v, err = %v, want no error and keys == []string{want.Key}", keys, err)
	}
	got, err := d.Read(want.Key)
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v: %s", err, diff)
	}
	for range 2 {
		if err := d.Remove(want.Key); err != nil {
			t.Error(err)
		}
	}
}

// JSON has no bytes that are not UTF-8, and paths may have some: they come back as they were, and what is written stays as it is.
func TestPathsOfMountsInARecordAreBytes(t *testing.T) {
	t.Parallel()
	const bad = "/caf\xe9"
	mount := policy.Mount{Source: bad, Target: "/mnt" + bad, Mode: policy.MountReadOnly}
	full := func() *supervisor.Record {
		r := example()
		r.Settings.Mounts, r.Settings.Inputs = []policy.Mount{mount}, []policy.Input{{Workspace: "in", Target: "/data" + bad}}
		r.Live = []policy.LiveMount{{Mount: mount, Since: time.Unix(3, 0).UTC(), Made: "/mnt" + bad}}
		r.Mounting = &policy.MountChange{Mount: mount, Missing: bad}
		r.Stopped = &session.Stopped{Since: time.Unix(2, 0).UTC(), Again: session.Again{Mounts: []policy.Mount{mount}}}
		r.Again = &session.Again{Mounts: []policy.Mount{mount}}
		return r
	}
	d, dir := openRecord(t)
	r := full()
	if err := d.Write(r); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(full(), r); diff != "" {
		t.Errorf("writing it has changed it: %s", diff)
	}
	if text, err := os.ReadFile(filepath.Join(dir, r.Key+".json")); err != nil || strings.Contains(string(text), `\ufffd`) {
		t.Errorf("%v: text = %s, want no error and text without `\\ufffd`", err, text)
	}
	got, err := d.Read(r.Key)
	if diff := cmp.Diff(full(), got); err != nil || diff != "" {
		t.Errorf("%v: %s", err, diff)
	}
}

func TestWhatIsNoRecordIsNamed(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*supervisor.Record){
		"another session's":     func(r *supervisor.Record) { r.Key = strings.Repeat("0", 32) },
		"another owner's":       func(r *supervisor.Record) { r.Owner.Name = "uid:0" },
		"of an id that is none": func(r *supervisor.Record) { r.ID = "\n" },
		"of a box that is none": func(r *supervisor.Record) { r.Box = "../x" },
		"of no time":            func(r *supervisor.Record) { r.Created = time.Time{} },
		"stopped at no time":    func(r *supervisor.Record) { r.Stopped = &session.Stopped{} },
		"of no environment": func(r *supervisor.Record) {
			r.Stopped = &session.Stopped{Since: time.Unix(1, 0), Env: [][]byte{[]byte("A=1\x00")}}
		},
	} {
		d, dir := openRecord(t)
		r := example()
		key := r.Key
		change(r)
		if err := d.Write(r); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, key+".json")
		if r.Key != key {
			if err := os.Rename(filepath.Join(dir, r.Key+".json"), path); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := d.Read(key); err == nil || !strings.Contains(err.Error(), path) || d.Path(key) != path {
			t.Errorf("%s: err = %v, want an error containing %q and d.Path(key) == path", name, err, path)
		}
	}
	d, dir := openRecord(t)
	if err := os.WriteFile(filepath.Join(dir, "planted"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Keys(); err == nil || !strings.Contains(err.Error(), "planted") || !strings.Contains(err.Error(), dir) {
		t.Errorf(`err = %v, want an error containing "planted" and err containing %q`, err, dir)
	}
}

func TestAnEnvironmentComesBack(t *testing.T) {
	t.Parallel()
	want := []string{"A=b", "C=", "D=e=f"}
	for _, waiting := range [][]json.RawMessage{nil, {[]byte(`{"a":1}`), []byte(`"b"`)}} {
		f, err := supervisor.EnvironmentFile(want, waiting)
		if err != nil {
			t.Fatal(err)
		}
		if got, more, err := supervisor.ReadEnvironment(f); err != nil || !slices.Equal(got, want) || !reflect.DeepEqual(more, waiting) {
			t.Errorf("got %q, more = %q, err = %v, want no error and got == %q and more == %q",
				got, more, err, want, waiting)
		}
	}
}

// PID 1 of a box may hand over anything: what is no valid environment is refused.
func TestNonsenseIsNoEnvironment(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "{}", `["A"]`, `["=b"]`, `["A=\u0000"]`, `["A=` + strings.Repeat("x", 65<<20) + `"]`, `["A=b"] {`, `["A=b"] 7`} {
		fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC)
		if err != nil {
			t.Fatal(err)
		}
		f := os.NewFile(uintptr(fd), "test")
		if _, err := f.WriteAt([]byte(text), 0); err != nil {
			t.Fatal(err)
		}
		if env, _, err := supervisor.ReadEnvironment(f); err == nil {
			t.Errorf("%.20q is %q, want an error", text, env)
		}
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if _, _, err := supervisor.ReadEnvironment(r); err == nil {
		t.Error("no error for a pipe")
	}
	if _, _, err := supervisor.ReadEnvironment(nil); err == nil {
		t.Error("no error without a file")
	}
}

// The role of an owner survives a restart, so that policies for a role also apply to restored sessions.
func TestTheRoleOfAnOwnerOutlivesBoxd(t *testing.T) {
	t.Parallel()
	for _, role := range []access.Role{access.Viewer, access.User, access.Operator, access.Admin} {
		who := access.Principal{Name: "uid:7", UID: 7, GID: 8, Groups: []uint32{9}, Role: role}
		old := supervisor.RecordOwnerOf(who)
		if got := old.Principal(); got.Role != role {
			t.Errorf("%s comes back as %s", role, got.Role)
		}
		old.Role = "" // as an earlier boxd wrote it
		if got := old.Principal(); (got.Role == access.Admin) != (role == access.Admin) || got.Role == 0 {
			t.Errorf("%s of an earlier boxd comes back as %s", role, got.Role)
		}
	}
	odd := supervisor.RecordOwnerOf(access.Principal{Name: "uid:7", Role: access.User})
	for _, text := range []string{"admin", "king", "none"} { // the word alone makes no owner an admin
		if odd.Role = text; odd.Principal().Role != access.User {
			t.Errorf("%q comes back as %s", text, odd.Principal().Role)
		}
	}
}

func TestAnEnvironmentIsBytes(t *testing.T) {
	t.Parallel()
	for _, env := range [][]string{{"A=1", "B=\xff\xfe"}, {"A=\ufffd"}, {}} {
		f, err := supervisor.EnvironmentFile(env, []json.RawMessage{json.RawMessage(`{"x":1}`)})
		if err != nil {
			t.Fatal(err)
		}
		got, waiting, err := supervisor.ReadEnvironment(f)
		if err != nil || !slices.Equal(got, env) || len(waiting) != 1 {
			t.Errorf("%q: got %q, waiting = %q, err = %v, want no error and got == env and len(waiting) == 1",
				env, got, waiting, err)
		}
	}
}
