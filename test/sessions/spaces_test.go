// SPDX-License-Identifier: Apache-2.0

package sessions_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/limits"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
)

// space creates a named workspace.
func space(t *testing.T, d *boxtest.Daemon, name string) {
	t.Helper()
	if _, err := d.CreateWorkspace(t.Context(), &api.WorkspaceRequest{Name: name}); err != nil {
		t.Fatal(err)
	}
}

// usersOf returns the sessions that use a workspace.
func usersOf(t *testing.T, d *boxtest.Daemon, name string) []string {
	t.Helper()
	w, err := d.Workspace(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return w.Sessions
}

// Two sessions share a workspace at the same time: files that one creates the other can read, change and remove as its own. The
// workspace outlives them.
func TestSessionsShareAWorkspace(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	space(t, d, "project")
	a := d.NewSession(t, api.SessionRequest{ID: "a", Workspace: "project"})
	if b := d.NewSession(t, api.SessionRequest{ID: "b", Workspace: "project"}); a.WorkspaceName != "project" || a.IDBase == b.IDBase {
		t.Fatalf(`a = %+v, b = %+v, want a.WorkspaceName == "project" and a.IDBase != %v`, a, b, b.IDBase)
	}
	d.NewSession(t, api.SessionRequest{ID: "own"})
	for _, step := range []struct{ session, script, want string }{
		{"a", "umask 077; echo from-a > a; mkdir dir; ln -s a link; id -u", "1000\n"},
		{"b", "stat -c '%u %g %a' a dir; cat link; echo and-b >> a; mv a dir/b; chmod 644 dir/b", "1000 1000 600\n1000 1000 700\nfrom-a\n"},
		{"a", "cat dir/b; rm -r dir link; echo last > kept; find . | wc -l", "from-a\nand-b\n2\n"},
		{"own", "ls -A | wc -l", "0\n"},
	} {
		if r := d.Result(t, step.session, api.ExecRequest{Argv: []string{"sh", "-c", step.script}}); r.Stdout != step.want || r.ExitCode == nil || *r.ExitCode != 0 {
			t.Fatalf("%s: r = %+v, want r.Stdout == %v and r.ExitCode != nil and *r.ExitCode == 0",
				step.script, r, step.want)
		}
	}
	if r := d.Result(t, "a", watched("touch kept", nil)); r.Changes == nil || r.Changes.Exact || len(r.Changes.Changed) != 1 {
		t.Errorf("changes that others may have made are reported for the execution: r = %s, want r.Changes != nil and r.Changes.Exact == false and len(r.Changes.Changed) == 1",
			boxtest.Show(r))
	}
	if list := usersOf(t, d, "project"); !slices.Equal(list, []string{"a", "b"}) {
		t.Errorf(`list = %v, want []string{"a", "b"}`, list)
	}
	for _, id := range []string{"a", "b"} {
		if err := d.DeleteWorkspace(t.Context(), "project"); boxtest.StatusOf(err) != 409 || !strings.Contains(err.Error(), `"b"`) {
			t.Errorf("err = %v, want boxtest.StatusOf(err) == 409 and err containing `\"b\"`", err)
		}
		if err := d.DeleteSession(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	if list := usersOf(t, d, "project"); len(list) != 0 {
		t.Errorf("list = %v, want len(list) == 0", list)
	}
	d.NewSession(t, api.SessionRequest{ID: "a", Workspace: "project"})
	if r := d.Result(t, "a", api.ExecRequest{Argv: []string{"cat", "kept"}}); r.Stdout != "last\n" {
		t.Errorf(`r = %+v, want r.Stdout == "last\n"`, r)
	}
	if err := d.DeleteSession(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if err := d.DeleteWorkspace(t.Context(), "project"); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Workspace(t.Context(), "project"); boxtest.StatusOf(err) != 404 {
		t.Errorf("err = %v, want boxtest.StatusOf(err) == 404", err)
	}
	boxtest.Eventually(t, "no file of the workspace is left", func() bool {
		left, err := filepath.Glob(filepath.Join(d.State, "*", "*", "kept"))
		return err == nil && len(left) == 0
	})
	space(t, d, "project") // the name is free
}

// A named workspace survives boxd and keeper, and stays in use by its sessions.
func TestAWorkspaceOutlivesBoxd(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, boxtest.Lasting)
	space(t, d, "project")
	space(t, d, "other")
	d.NewSession(t, api.SessionRequest{ID: "lives", Workspace: "project"})
	d.Result(t, "lives", api.ExecRequest{Argv: []string{"sh", "-c", "echo text > file"}})
	d.Kill()
	if err := syscall.Kill(d.Keeper(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	d.Restart()
	if r := d.Result(t, "lives", api.ExecRequest{Argv: []string{"cat", "file"}}); r.Stdout != "text\n" {
		t.Errorf(`r = %+v, want r.Stdout == "text\n"`, r)
	}
	if err := d.DeleteWorkspace(t.Context(), "project"); boxtest.StatusOf(err) != 409 {
		t.Errorf("err = %v, want boxtest.StatusOf(err) == 409", err)
	}
	if err := d.DeleteWorkspace(t.Context(), "other"); err != nil {
		t.Error(err)
	}
	d.NewSession(t, api.SessionRequest{ID: "joins", Workspace: "project"})
	if list := usersOf(t, d, "project"); !slices.Equal(list, []string{"joins", "lives"}) {
		t.Errorf(`list = %v, want []string{"joins", "lives"}`, list)
	}
	d.Kill() // this time the keeper lives on
	d.Restart()
	if list := usersOf(t, d, "project"); !slices.Equal(list, []string{"joins", "lives"}) {
		t.Errorf(`list = %v, want []string{"joins", "lives"}`, list)
	}
	for _, id := range []string{"joins", "lives"} {
		if err := d.DeleteSession(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.DeleteWorkspace(t.Context(), "project"); err != nil {
		t.Error(err)
	}
	if list, err := d.Workspaces(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("list = %+v, err = %v, want no error and len(list) == 0", list, err)
	}
}

// Whichever of a removal and concurrent starts comes first, a removed workspace is in no session, and one in use exists.
func TestAWorkspaceIsRemovedOrUsed(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	for round := range 8 {
		name := fmt.Sprintf("w%d", round)
		space(t, d, name)
		var work sync.WaitGroup
		started, removed := make([]error, 2), error(nil)
		for i := range started {
			work.Go(func() {
				_, _, started[i] = d.CreateSession(t.Context(), &api.SessionRequest{ID: fmt.Sprintf("%s-%d", name, i), Workspace: name})
			})
		}
		work.Go(func() { removed = d.DeleteWorkspace(t.Context(), name) })
		work.Wait()
		for i, err := range started {
			id := fmt.Sprintf("%s-%d", name, i)
			switch {
			case err != nil && boxtest.StatusOf(err) != 404:
				t.Errorf("err = %v, want no error or boxtest.StatusOf(err) == 404", err)
			case err != nil && removed != nil && boxtest.StatusOf(removed) != 409:
				t.Errorf("err = %v, removed = %v, want no error or removed == nil or boxtest.StatusOf(removed) == 409",
					err, removed)
			case err == nil && removed == nil:
				t.Errorf("%s has been removed, and %s has it", name, id)
			case err == nil:
				if r := d.Result(t, id, api.ExecRequest{Argv: []string{"touch", "file"}}); r.ExitCode == nil || *r.ExitCode != 0 {
					t.Errorf("r = %+v, want r.ExitCode != nil and *r.ExitCode == 0", r)
				}
			}
			if err == nil {
				if err := d.DeleteSession(t.Context(), id); err != nil {
					t.Error(err)
				}
			}
		}
	}
}

// A caller can neither learn of a foreign workspace nor use or remove it: it gets the answer for a workspace that does not exist.
func TestWorkspacesOfOthersAreNotThere(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	space(t, d, "mine")
	about := func(name string) []string {
		return []string{
			boxtest.Request("GET", "/v1/workspaces/"+name, ""), boxtest.Request("DELETE", "/v1/workspaces/"+name, ""),
			boxtest.Request("POST", "/v1/sessions", `{"id":"s","workspace":"`+name+`"}`), boxtest.Request("POST", "/v1/exec", `{"session":{"workspace":"`+name+`"},"exec":{"argv":["true"]}}`),
		}
	}
	foreign, missing := d.AsUser(t, boxtest.OtherUID, about("mine")...), d.AsUser(t, boxtest.OtherUID, about("none")...)
	for i := range foreign {
		own := strings.ReplaceAll(string(foreign[i].Body), "mine", "none")
		if foreign[i].Code != 404 || missing[i].Code != 404 || requestIDs.ReplaceAllString(own, "") != requestIDs.ReplaceAllString(string(missing[i].Body), "") {
			t.Errorf("foreign[i].Code = %d, foreign[i].Body = %s, want foreign[i].Code == 404 and missing[i].Code == 404 and requestIDs.ReplaceAllString(own, \"\") == requestIDs.ReplaceAllString(string(missing[i].Body), \"\"):\n%d, missing[i].Body = %s",
				foreign[i].Code, foreign[i].Body, missing[i].Code, missing[i].Body)
		}
	}
	for i, a := range d.AsUser(t, boxtest.OtherUID, boxtest.Request("GET", "/v1/workspaces?owner=uid%3A0", ""), boxtest.Request("DELETE", "/v1/workspaces/mine?owner=uid%3A0", "")) {
		if a.Code != 403 {
			t.Errorf("%d: a.Code = %d, a.Body = %s, want a.Code == 403", i, a.Code, a.Body)
		}
	}
	both := d.AsUser(t, boxtest.OtherUID, boxtest.Request("POST", "/v1/workspaces", `{"name":"mine"}`), boxtest.Request("POST", "/v1/sessions", `{"id":"s","workspace":"mine"}`),
		boxtest.Request("POST", "/v1/sessions/s/exec", `{"argv":["sh","-c","ls -A; touch theirs"]}`), boxtest.Request("DELETE", "/v1/sessions/s", ""), boxtest.Request("DELETE", "/v1/workspaces/mine", ""))
	for i, want := range []int{201, 201, 200, 204, 204} {
		if both[i].Code != want || strings.Contains(string(both[i].Body), "secret") {
			t.Errorf(`%d: both[i].Code = %d, both[i].Body = %s, want both[i].Code == %v and both[i].Body without "secret"`,
				i, both[i].Code, both[i].Body, want)
		}
	}
	d.NewSession(t, api.SessionRequest{ID: "s", Workspace: "mine"})
	if got := d.Sh(t, "s", "ls -A | wc -l"); got != "0\n" {
		t.Errorf(`got %s, want "0\n"`, got)
	}
}

// requestIDs are the ids that differ between two otherwise equal answers.
var requestIDs = regexp.MustCompile(`"(request_id|instance|request)":"[^"]*"`)

func TestWorkspacesAreRefusedByName(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, "[sessions]\nmax_workspaces = 2\n")
	for _, name := range []string{"", ".", "..", ".x", "-x", "a/b", "../x", "a\x00", "a\n", "é", "a b", strings.Repeat("x", 65)} {
		_, err := d.CreateWorkspace(t.Context(), &api.WorkspaceRequest{Name: name})
		boxtest.Refused(t, err, 400, "name")
		if name != "" {
			_, _, err = d.CreateSession(t.Context(), &api.SessionRequest{ID: "s", Workspace: name})
			boxtest.Refused(t, err, 400, "workspace")
		}
	}
	space(t, d, "a")
	space(t, d, strings.Repeat("x", 64))
	_, err := d.CreateWorkspace(t.Context(), &api.WorkspaceRequest{Name: "third"})
	if e := boxtest.Refused(t, err, 429, ""); e.Denial == nil || e.Denial.Rule != "sessions.max_workspaces" {
		t.Errorf(`e = %+v, want e.Denial != nil and e.Denial.Rule == "sessions.max_workspaces"`, e)
	}
	small := quantity.Size(quantity.KiB)
	_, err = d.CreateWorkspace(t.Context(), &api.WorkspaceRequest{Name: "third", Quota: &small})
	boxtest.Refused(t, err, 400, "quota")
	_, _, err = d.CreateSession(t.Context(), &api.SessionRequest{ID: "s", Workspace: "a", Patch: limits.Patch{WorkspaceInodes: new(1000)}})
	boxtest.Refused(t, err, 400, "workspace_inodes")
	_, _, err = d.CreateSession(t.Context(), &api.SessionRequest{ID: "s", Workspace: "a", Mounts: []api.Mount{{Source: "/srv", Target: "/workspace", Mode: "ro"}}})
	boxtest.Refused(t, err, 400, "workspace")
	d.NewSession(t, api.SessionRequest{ID: "s", Workspace: "a"})
	_, _, err = d.CreateSession(t.Context(), &api.SessionRequest{ID: "s", Workspace: strings.Repeat("x", 64)})
	if boxtest.StatusOf(err) != 409 {
		t.Errorf("err = %v, want boxtest.StatusOf(err) == 409", err)
	}
	size := quantity.Size(quantity.GiB)
	_, err = d.ChangeSession(t.Context(), "s", &api.SessionChange{Patch: limits.Patch{WorkspaceQuota: &size}})
	boxtest.Refused(t, err, 400, "workspace_quota")
}

// The next boxd undoes or finishes by its record what a dead boxd has begun with a workspace; files without a record stay, and a
// record without files lends nothing.
func TestWhatWasBegunWithWorkspacesIsSettled(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, boxtest.Lasting)
	for _, name := range []string{"making", "removing", "lost", "stays", "orphan", "torn"} {
		space(t, d, name)
		d.NewSession(t, api.SessionRequest{ID: name, Workspace: name})
		d.Sh(t, name, "echo text > file")
		if err := d.DeleteSession(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	d.Kill()
	keys := map[string]string{}
	files, err := filepath.Glob(filepath.Join(d.State, "named-workspaces", "*.json"))
	if err != nil || len(files) != 6 {
		t.Fatalf("files = %v, err = %v, want no error and len(files) == 6", files, err)
	}
	for _, at := range files {
		data, err := os.ReadFile(at)
		if err != nil {
			t.Fatal(err)
		}
		var r map[string]any
		if err := json.Unmarshal(data, &r); err != nil {
			t.Fatal(err)
		}
		name, key := fmt.Sprint(r["name"]), strings.TrimSuffix(filepath.Base(at), ".json")
		keys[name] = filepath.Join(d.State, "spaces", key)
		switch name {
		case "making", "removing":
			r["state"] = name
			if data, err = json.Marshal(r); err == nil {
				err = os.WriteFile(at, data, 0o600)
			}
		case "lost":
			err = os.RemoveAll(keys[name])
		case "torn":
			err = errors.Join(os.WriteFile(at, data[:len(data)/2], 0o600), os.WriteFile(at+".bak", data, 0o600))
		case "orphan":
			err = os.Remove(at)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	d.Restart()
	list, err := d.Workspaces(t.Context())
	if err != nil || len(list) != 2 || list[0].Name != "lost" || list[1].Name != "stays" {
		t.Errorf(`list = %+v, err = %v, want no error and len(list) == 2 and list[0].Name == "lost" and list[1].Name == "stays"`,
			list, err)
	}
	for name, exists := range map[string]bool{"making": false, "removing": false, "lost": false, "stays": true, "orphan": true, "torn": true} {
		if _, err := os.Stat(filepath.Join(keys[name], "file")); (err == nil) != exists {
			t.Errorf("%s: err = %v, want (err == nil) == there", name, err)
		}
	}
	_, _, err = d.CreateSession(t.Context(), &api.SessionRequest{ID: "s", Workspace: "lost"})
	boxtest.Refused(t, err, 503, "")
	if _, err := d.CreateWorkspace(t.Context(), &api.WorkspaceRequest{Name: "torn"}); boxtest.StatusOf(err) != 409 {
		t.Errorf("a new workspace with the name of an unreadable one: err = %v, want boxtest.StatusOf(err) == 409", err)
	}
	if err := d.DeleteWorkspace(t.Context(), "torn"); boxtest.StatusOf(err) != 404 {
		t.Errorf("the removal of an unreadable workspace: err = %v, want boxtest.StatusOf(err) == 404", err)
	}
	if err := d.DeleteWorkspace(t.Context(), "lost"); err != nil {
		t.Error(err)
	}
	for _, name := range []string{"making", "removing", "lost"} {
		space(t, d, name)
	}
	d.NewSession(t, api.SessionRequest{ID: "s", Workspace: "stays"})
	if got := d.Sh(t, "s", "cat file"); got != "text\n" {
		t.Errorf(`got %s, want "text\n"`, got)
	}
}
