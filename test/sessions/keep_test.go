// SPDX-License-Identifier: Apache-2.0

package sessions_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
)

// A session's own workspace is kept on request when the session ends: at once, with its content, owner and quota.
func TestAWorkspaceIsKeptWhenItsSessionEnds(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, boxtest.Lasting)
	d.Warm()
	before := d.Look()
	was := d.NewSession(t, api.SessionRequest{ID: "own"})
	d.Sh(t, "own", "umask 077; echo text > file; (sleep 1000 &)")
	space(t, d, "taken")
	if _, err := d.KeepWorkspace(t.Context(), "own", "taken"); boxtest.StatusOf(err) != 409 {
		t.Errorf("a name in use: err = %v, want boxtest.StatusOf(err) == 409", err)
	}
	if got := d.Sh(t, "own", "cat file"); got != "text\n" {
		t.Errorf("the refused request has changed the file to %q", got)
	}
	w, err := d.KeepWorkspace(t.Context(), "own", "kept")
	if err != nil || w.Quota != was.WorkspaceQuota || w.Inodes != was.WorkspaceInodes || len(w.Sessions) != 0 {
		t.Fatalf("%+v of %+v, %v", w, was, err)
	}
	if _, err := d.Session(t.Context(), "own"); boxtest.StatusOf(err) != 404 {
		t.Errorf("the session has not ended: err = %v, want boxtest.StatusOf(err) == 404", err)
	}
	for _, id := range []string{"a", "b"} {
		d.NewSession(t, api.SessionRequest{ID: id, Workspace: "kept"})
		if got := d.Sh(t, id, "stat -c '%u %a' file && cat file && echo >> "+id); got != "1000 600\ntext\n" {
			t.Errorf(`got %q, want "1000 600\ntext\n"`, got)
		}
	}
	if _, err := d.KeepWorkspace(t.Context(), "a", "more"); boxtest.StatusOf(err) != 409 {
		t.Errorf("a workspace that has a name: err = %v, want boxtest.StatusOf(err) == 409", err)
	}
	for _, id := range []string{"a", "b"} {
		if err := d.DeleteSession(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	d.Kill()
	d.Restart()
	for _, name := range []string{"kept", "taken"} {
		if err := d.DeleteWorkspace(t.Context(), name); err != nil {
			t.Error(err)
		}
	}
	d.NothingLeft(before)
}

// The next boxd finishes a keep that was interrupted: the box is ended, and its workspace gets the name, moved already or not.
func TestWhatWasToBeKeptIsKept(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, boxtest.Lasting)
	promised := map[string]string{} // box keys, by the name that each workspace is to get
	for _, name := range []string{"before", "after", "gone"} {
		d.NewSession(t, api.SessionRequest{ID: name})
		d.Sh(t, name, "echo "+name+" > file")
		all, err := filepath.Glob(filepath.Join(d.State, "workspaces", "*", "file"))
		if err != nil {
			t.Fatal(err)
		}
		for _, at := range all {
			if text, err := os.ReadFile(at); err == nil && string(text) == name+"\n" {
				promised[name] = filepath.Base(filepath.Dir(at))
			}
		}
		space(t, d, name) // for its record
	}
	d.Kill()
	records, err := filepath.Glob(filepath.Join(d.State, "named-workspaces", "*.json"))
	if err != nil || len(records) != 3 {
		t.Fatalf("records = %v, err = %v, want no error and len(records) == 3", records, err)
	}
	for _, at := range records {
		var r map[string]any
		data, err := os.ReadFile(at)
		if err == nil {
			err = json.Unmarshal(data, &r)
		}
		if err != nil {
			t.Fatal(err)
		}
		name, _ := r["name"].(string)
		key := filepath.Base(at[:len(at)-len(".json")])
		own, lent := filepath.Join(d.State, "workspaces", promised[name]), filepath.Join(d.State, "spaces", key)
		err = os.Remove(lent)
		switch name {
		case "after": // the files were moved, but that was not recorded
			err = errors.Join(err, os.Rename(own, lent))
		case "gone":
			err = errors.Join(err, os.RemoveAll(own))
		}
		r["state"], r["from"] = "keeping", promised[name]
		data, merr := json.Marshal(r)
		if err = errors.Join(err, merr, os.WriteFile(at, data, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	d.Restart()
	list, err := d.Workspaces(t.Context())
	if err != nil || len(list) != 2 || list[0].Name != "after" || list[1].Name != "before" {
		t.Fatalf(`list = %+v, err = %v, want no error and len(list) == 2 and list[0].Name == "after" and list[1].Name == "before"`,
			list, err)
	}
	for _, name := range []string{"before", "after"} {
		if _, err := d.Session(t.Context(), name); boxtest.StatusOf(err) != 404 {
			t.Errorf("session %s still exists: err = %v, want boxtest.StatusOf(err) == 404", name, err)
		}
		d.NewSession(t, api.SessionRequest{ID: "reads-" + name, Workspace: name})
		if got := d.Sh(t, "reads-"+name, "cat file"); got != name+"\n" {
			t.Errorf(`%s has %q, want got == name + "\n"`, name, got)
		}
	}
	space(t, d, "gone") // the name is free
}
