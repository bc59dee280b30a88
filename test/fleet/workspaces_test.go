// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
)

// using is a request for a session with a named workspace.
func using(id, workspace string) map[string]any {
	return map[string]any{"id": id, "workspace": workspace, "wait": "0s"}
}

// created creates a session, and returns the node that has it.
func (h *house) created(request map[string]any) string {
	h.t.Helper()
	var p api.Problem
	request["wait"] = waitFor(http.StatusCreated)
	if code := h.get("POST", "/v1/sessions", request, &p); code != http.StatusCreated {
		h.t.Fatalf("%v: code = %d, p = %+v, want code == 201", request, code, p)
	}
	id, _ := request["id"].(string)
	return h.where(id).Node
}

// workspacesOn returns the nodes of the workspaces of ci, by name.
func (h *house) workspacesOn() (list []string) {
	h.t.Helper()
	var answer struct {
		Workspaces []struct{ Name, Node string }
	}
	if code := h.get("GET", "/v1/workspaces", nil, &answer); code != http.StatusOK {
		h.t.Fatalf("code = %d, want code == 200", code)
	}
	for _, w := range answer.Workspaces {
		list = append(list, w.Name+" "+w.Node)
	}
	return list
}

// Sessions with a named workspace are made on the node that has it, whichever that is, also by a gateway that has never seen it. While a node does not answer,
// nobody makes another workspace of a name that it may have.
func TestSessionsAreMadeWhereTheirWorkspaceIs(t *testing.T) {
	t.Parallel()
	h := build(t, 2)
	c := h.client()
	make := func(name, node string, want int, words string) {
		t.Helper()
		h.refuses(h.token, "POST", "/v1/workspaces", map[string]any{"name": name, "placement": map[string]any{"node": node}}, want, words)
	}
	make("on1", "n1", http.StatusCreated, "")
	make("on2", "n2", http.StatusCreated, "")
	make("on2", "n1", http.StatusConflict, "") // the other node has it
	make("../x", "n1", http.StatusBadRequest, "../x")
	make("", "n1", http.StatusBadRequest, "name")
	h.refuses(h.token, "GET", "/v1/workspaces/a%20b", nil, http.StatusNotFound, "a b")
	h.refuses(h.token, "POST", "/v1/sessions", using("x", "a b"), http.StatusNotFound, "a b")
	h.refuses(h.token, "POST", "/v1/workspaces", []int{}, http.StatusBadRequest, "cannot be decoded")
	h.refuses(h.token, "POST", "/v1/workspaces", map[string]any{"name": strings.Repeat("x", 70_000)}, http.StatusBadRequest, "65536 bytes")
	h.refuses(h.viewer, "POST", "/v1/workspaces", map[string]any{"name": "x"}, http.StatusForbidden, "needs the user role")
	h.refuses(h.user, "GET", "/v1/workspaces/on1", nil, http.StatusNotFound, "no workspace")
	h.refuses(h.user, "GET", "/v1/workspaces?owner=ci", nil, http.StatusForbidden, "needs the operator role")
	if got := strings.Join(h.workspacesOn(), ", "); got != "on1 n1, on2 n2" {
		t.Errorf(`the workspaces are %q, want "on1 n1, on2 n2"`, got)
	}

	for _, name := range []string{"1", "2"} {
		for _, id := range []string{"a", "b", "c"} {
			if node := h.created(using(id+name, "on"+name)); node != "n"+name {
				t.Errorf("session %s is on %s, want n%s", id+name, node, name)
			}
		}
		if r, err := c.Exec(t.Context(), "a"+name, &api.ExecRequest{Command: new("echo " + name + " > f")}); err != nil || *r.ExitCode != 0 {
			t.Fatalf("r = %+v, err = %v, want no error and *r.ExitCode == 0", r, err)
		}
		reads := map[string]any{"id": "reads" + name, "inputs": []api.Input{{Workspace: "on" + name}}}
		if node := h.created(reads); node != "n"+name {
			t.Errorf("a session that reads on%s is on %s, want n%s", name, node, name)
		}
		// By a request of its own, and as a stream.
		once := map[string]any{"session": map[string]any{"workspace": "on" + name}, "exec": map[string]any{"argv": []string{"cat", "f"}}}
		var r api.ExecResult
		if code := h.get("POST", "/v1/exec", once, &r); code != http.StatusOK || r.Stdout != name+"\n" {
			t.Errorf("code = %d, r = %+v, want code == 200 and r.Stdout == %q", code, r, name+"\n")
		}
		if got := h.prints(t, "run", "--workspace", "on"+name, "--", "cat", "f"); got != name+"\n" {
			t.Errorf("boxctl run prints %q, want %q", got, name+"\n")
		}
	}
	elsewhere := using("x", "on1")
	elsewhere["placement"] = map[string]any{"node": "n2"}
	h.refuses(h.token, "POST", "/v1/sessions", elsewhere, http.StatusTooManyRequests, "its workspace is on another node")
	both := using("x", "on1")
	both["inputs"] = []api.Input{{Workspace: "on2"}}
	h.refuses(h.token, "POST", "/v1/sessions", both, http.StatusConflict, `"on1" is on node n1, and "on2" on node n2`)
	for _, name := range []string{"on1", "on2"} {
		dry := using("dry", name)
		dry["dry_run"] = true
		var plan struct {
			Refused *api.Problem `json:"refused"`
		}
		if code := h.get("POST", "/v1/sessions", dry, &plan); code != http.StatusOK || plan.Refused != nil {
			t.Errorf("what a session with %s would be: code = %d, plan = %+v, want code == 200 and plan.Refused == nil", name, code, plan)
		}
		h.refuses(h.token, "POST", "/v1/sessions/a1/keep", api.WorkspaceKept{Workspace: name}, http.StatusConflict, "")
	}
	h.created(map[string]any{"id": "own", "placement": map[string]any{"node": "n2"}})
	h.refuses(h.token, "POST", "/v1/sessions/own/keep", api.WorkspaceKept{Workspace: "on1"}, http.StatusConflict, `a workspace "on1" on node n1`)
	if code := h.get("PUT", "/v1/fleet/nodes/n1/cordon", map[string]string{"reason": "disks"}, nil); code != http.StatusOK {
		t.Fatalf("cordon n1: code = %d, want 200", code)
	}
	once := map[string]any{"session": map[string]any{"workspace": "on1"}, "exec": map[string]any{"argv": []string{"true"}}}
	h.refuses(h.token, "POST", "/v1/exec", once, http.StatusTooManyRequests, "n1: it is cordoned: disks; n2: its workspace is on another node")
	h.refuses(h.token, "POST", "/v1/sessions", using("x", "on1"), http.StatusTooManyRequests, "n1: it is cordoned: disks; n2: its workspace is on another node")
	if code := h.get("DELETE", "/v1/fleet/nodes/n1/cordon", nil, nil); code >= http.StatusBadRequest {
		t.Fatalf("uncordon n1: code = %d", code)
	}
	h.refuses(h.token, "POST", "/v1/sessions", using("x", "none"), http.StatusNotFound, `no workspace "none"`)
	h.refuses(h.token, "DELETE", "/v1/workspaces/none", nil, http.StatusNotFound, `no workspace "none"`)
	h.refuses(h.token, "DELETE", "/v1/workspaces/on1", nil, http.StatusConflict, "")
	if w, err := c.ChangeWorkspace(t.Context(), "on2", &api.WorkspaceChange{Quota: new(64 * quantity.MiB)}); err != nil || w.Quota != 64*quantity.MiB {
		t.Errorf("w = %+v, err = %v, want no error and w.Quota == 64 MiB", w, err)
	}

	h.gate.kill()
	h.gate.start()
	h.ready(2)
	if node := h.created(using("after", "on2")); node != "n2" {
		t.Errorf("by a gateway that has never seen the workspace it is on %s, want n2", node)
	}

	// Somebody makes another of that name on a node itself.
	other := h.on("n1").boxd
	other.Owner = "ci"
	if _, err := other.CreateWorkspace(t.Context(), &api.WorkspaceRequest{Name: "on2"}); err != nil {
		t.Fatal(err)
	}
	h.refuses(h.token, "GET", "/v1/workspaces/on2", nil, http.StatusConflict, "is on several nodes: n1, n2")
	h.refuses(h.token, "POST", "/v1/sessions", using("x", "on2"), http.StatusConflict, "is on several nodes: n1, n2")
	if got := strings.Join(h.workspacesOn(), ", "); got != "on1 n1, on2 n1, on2 n2" {
		t.Errorf(`the workspaces are %q, want "on1 n1, on2 n1, on2 n2"`, got)
	}
	if err := other.DeleteWorkspace(t.Context(), "on2"); err != nil {
		t.Fatal(err)
	}

	h.on("n2").agent.kill()
	boxtest.Eventually(t, "the node is lost", func() bool { return h.where("a2").State == api.FleetClaimLost })
	make("on2", "n1", http.StatusServiceUnavailable, "may have it: n2")
	h.refuses(h.token, "POST", "/v1/sessions", using("x", "on2"), http.StatusServiceUnavailable, "may have it: n2")
	if node := h.created(using("still", "on1")); node != "n1" {
		t.Errorf("it is on %s, want n1", node)
	}
}

// A snapshot takes a named workspace to another node, if it is asked to: the new session has a copy of its own, which can be given a name there.
func TestASnapshotTakesAWorkspaceToAnotherNode(t *testing.T) {
	t.Parallel()
	h := buildWithSnapshots(t, 2, `size = "1GiB"`)
	c := h.client()
	if code := h.get("POST", "/v1/workspaces", map[string]any{"name": "project", "quota": "40MiB", "inodes": 2000, "placement": map[string]any{"node": "n1"}}, nil); code != http.StatusCreated {
		t.Fatalf("code = %d, want code == 201", code)
	}
	h.created(using("s", "project"))
	if r, err := c.Exec(t.Context(), "s", &api.ExecRequest{Command: new("mkdir d; echo kept > d/f; ln d/f hard")}); err != nil || *r.ExitCode != 0 {
		t.Fatalf("r = %+v, err = %v, want no error and *r.ExitCode == 0", r, err)
	}
	h.refuses(h.token, "POST", "/v1/fleet/snapshots", api.FleetSnapshotRequest{Session: "s", Name: "one"}, http.StatusConflict, "with_workspace")
	h.refuses(h.token, "POST", "/v1/fleet/sessions/s/move", map[string]any{"node": "n2"}, http.StatusConflict, "--with-workspace")
	if _, err := c.StopSession(t.Context(), "s"); err != nil {
		t.Fatal(err)
	}
	if k := h.snapshot(api.FleetSnapshotRequest{Session: "s", Name: "one", WithWorkspace: true}); !k.Running || len(k.LeftOut) != 0 {
		t.Errorf("k = %+v, want k.Running == true, as others may use the workspace, and len(k.LeftOut) == 0", k)
	}
	var r api.FleetRestored
	if code := h.get("POST", "/v1/fleet/snapshots/one/restore", map[string]any{"id": "copy", "placement": map[string]any{"node": "n2"}}, &r); code != http.StatusCreated || r.Node != "n2" || r.Session.WorkspaceName != "" {
		t.Fatalf(`code = %d, r = %+v, want code == 201 and r.Node == "n2" and r.Session.WorkspaceName == ""`, code, r)
	}
	if got := h.prints(t, "exec", "copy", "--", "sh", "-c", "cat d/f; stat -c %h hard; echo mine >> d/f"); got != "kept\n2\n" {
		t.Errorf(`the copy has %q, want "kept\n2\n"`, got)
	}
	w, err := c.KeepWorkspace(t.Context(), "copy", "project2")
	if err != nil || w.Quota != 40*quantity.MiB || w.Inodes != 2000 {
		t.Fatalf("w = %+v, err = %v, want no error and w.Quota == 40 MiB and w.Inodes == 2000", w, err)
	}
	if got := h.prints(t, "run", "--workspace", "project2", "--", "cat", "d/f"); got != "kept\nmine\n" {
		t.Errorf(`on the other node it has %q, want "kept\nmine\n"`, got)
	}
	if got := h.prints(t, "run", "--workspace", "project", "--", "cat", "d/f"); got != "kept\n" {
		t.Errorf(`on its own node it has %q, want "kept\n"`, got)
	}
	if got := strings.Join(h.workspacesOn(), ", "); got != "project n1, project2 n2" {
		t.Errorf(`the workspaces are %q, want "project n1, project2 n2"`, got)
	}
	h.created(map[string]any{"id": "reads", "inputs": []api.Input{{Workspace: "project"}}})
	h.refuses(h.token, "POST", "/v1/fleet/snapshots", api.FleetSnapshotRequest{Session: "reads", WithWorkspace: true}, http.StatusConflict, "reads a named workspace")
}
