// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

// has reports whether a node has a session of the owner ci.
func (n *host) has(t testing.TB, id string) bool {
	t.Helper()
	n.boxd.Owner = "ci"
	_, err := n.boxd.Session(t.Context(), id)
	if err != nil && !errors.Is(err, client.NotFound) {
		t.Fatal(err)
	}
	return err == nil
}

// moves requests a session to be moved to another node.
func (h *house) moves(id string, ask api.FleetMove) (moved api.FleetMoved, p api.Problem, code int) {
	h.t.Helper()
	var both struct {
		api.FleetMoved
		Detail string `json:"detail"`
		Field  string `json:"field"`
	}
	code = h.get("POST", "/v1/fleet/sessions/"+id+"/move", ask, &both)
	return both.FleetMoved, api.Problem{Detail: both.Detail, Field: both.Field}, code
}

// A moved session is the same on the other node: settings, environment, files, processes. It exists on one node only.
func TestASessionIsMoved(t *testing.T) {
	t.Parallel()
	h := build(t, 2)
	c := h.client()
	if code := h.get("POST", "/v1/sessions", map[string]any{
		"id": "s/1", "env": map[string]string{"TOKEN": "a value"}, "labels": map[string]string{"for": "test"}, "home_on_disk": true, "placement": map[string]any{"node": "n1"},
	}, nil); code != http.StatusCreated {
		t.Fatal(code)
	}
	run := func(line string) string {
		t.Helper()
		r, err := c.Exec(t.Context(), "s/1", &api.ExecRequest{Command: &line})
		if err != nil {
			t.Fatal(err)
		}
		return r.Stdout
	}
	run("umask 077; mkdir d; echo work > d/f; ln -s /etc/passwd out; ln d/f hard; echo home > $HOME/f; head -c 20000000 /dev/urandom > big")
	sum := run("sha256sum big")
	if _, _, err := c.StartProcess(t.Context(), "s/1", "always", &api.ProcessRequest{Command: new("echo $TOKEN >> started; exec sleep 1000"), Restart: &api.Restart{Policy: "always"}}); err != nil {
		t.Fatal(err)
	}
	boxtest.Eventually(t, "the process has started", func() bool { return run("cat started 2>/dev/null || true") != "" })
	before, err := c.Session(t.Context(), "s/1")
	if err != nil {
		t.Fatal(err)
	}

	m, p, code := h.moves("s%2F1", api.FleetMove{})
	if code != http.StatusOK || m.From != "n1" || m.Node != "n2" || m.Owner != "ci" || m.ID != "s/1" || len(m.LeftOut) != 0 {
		t.Fatalf(`code = %d, m = %+v, p = %+v, want code == 200 and m.From == "n1" and m.Node == "n2" and m.Owner == "ci" and m.ID == "s/1" and len(m.LeftOut) == 0`,
			code, m, p)
	}
	if claim := h.where("s/1"); claim.Node != "n2" || claim.State != api.FleetClaimLive || claim.To != "" {
		t.Errorf(`claim = %+v, want claim.Node == "n2" and claim.State == api.FleetClaimLive and claim.To == ""`, claim)
	}
	if got := run("cat d/f $HOME/f; stat -c %a d; readlink out; stat -c %h hard; sha256sum big"); got != "work\nhome\n700\n/etc/passwd\n2\n"+sum {
		t.Errorf(`there it has %q, want "work\nhome\n700\n/etc/passwd\n2\n" + sum`, got)
	}
	boxtest.Eventually(t, "the process has started on the other node", func() bool { return run("cat started") == "a value\na value\n" })
	after, err := c.Session(t.Context(), "s/1")
	if err != nil || after.Labels["for"] != "test" || !after.HomeOnDisk || after.Memory != before.Memory || after.State != "ready" || time.Duration(after.MaxLifetime) >= time.Duration(before.MaxLifetime) && before.MaxLifetime > 0 {
		t.Errorf("it was %+v\nand is %+v, %v", before, after, err)
	}
	boxtest.Eventually(t, "the first node has no copy of the session", func() bool { return !h.on("n1").has(t, "s/1") })
	if list, err := c.Sessions(t.Context(), false); err != nil || len(list) != 1 {
		t.Errorf("list = %+v, err = %v, want no error and len(list) == 1", list, err)
	}

	// Back, while stopped: it stays stopped, and has the same files when it starts.
	if _, err := c.StopSession(t.Context(), "s/1"); err != nil {
		t.Fatal(err)
	}
	if m, p, code := h.moves("s%2F1", api.FleetMove{Node: "n1"}); code != http.StatusOK || m.Node != "n1" {
		t.Fatalf(`code = %d, m = %+v, p = %+v, want code == 200 and m.Node == "n1"`, code, m, p)
	}
	if is, err := c.Session(t.Context(), "s/1"); err != nil || is.State != "stopped" {
		t.Errorf(`is = %+v, err = %v, want no error and is.State == "stopped"`, is, err)
	}
	if _, err := c.StartSession(t.Context(), "s/1"); err != nil {
		t.Fatal(err)
	}
	if got := run("cat d/f; sha256sum big"); got != "work\n"+sum {
		t.Errorf(`back it has %q, want "work\n" + sum`, got)
	}
	boxtest.Eventually(t, "the process has started again", func() bool { return strings.Count(run("cat started"), "a value") >= 3 })
	if err := c.DeleteSession(t.Context(), "s/1"); err != nil {
		t.Fatal(err)
	}
	boxtest.Eventually(t, "no node has a copy of the session", func() bool { return !h.on("n1").has(t, "s/1") && !h.on("n2").has(t, "s/1") })
}

// What cannot be moved is refused, and stays as it was, with its programs.
func TestAMoveThatIsRefusedChangesNothing(t *testing.T) {
	t.Parallel()
	h := build(t, 2)
	c := h.client()
	h.makes("s", "n1")
	if _, _, err := c.StartProcess(t.Context(), "s", "p", &api.ProcessRequest{Argv: []string{"sleep", "1000"}}); err != nil {
		t.Fatal(err)
	}
	refused := func(id string, ask api.FleetMove, want int, words string) {
		t.Helper()
		if _, p, code := h.moves(id, ask); code != want || !strings.Contains(p.Detail, words) {
			t.Errorf("%s to %+v: %d %q, want %d and %q", id, ask, code, p.Detail, want, words)
		}
		if p, err := c.Process(t.Context(), "s", "p", 0); err != nil || p.State != "running" || p.Starts != 1 {
			t.Errorf(`its process is %+v, %v, want no error and p.State == "running" and p.Starts == 1`, p, err)
		}
		if claim := h.where("s"); claim.Node != "n1" || claim.State != api.FleetClaimLive {
			t.Errorf(`claim = %+v, want claim.Node == "n1" and claim.State == api.FleetClaimLive`, claim)
		}
	}
	refused("s", api.FleetMove{Node: "n1"}, http.StatusBadRequest, "another node")
	refused("s", api.FleetMove{Node: "n3"}, http.StatusBadRequest, "n3")
	refused("none", api.FleetMove{}, http.StatusNotFound, `no session "none"`)
	var p api.Problem
	if code := h.as(h.user, "POST", "/v1/fleet/sessions/s/move", nil, &p); code != http.StatusNotFound {
		t.Errorf("another caller: code = %d, p = %+v, want code == 404", code, p)
	}
	if code := h.as(h.user, "POST", "/v1/fleet/sessions/s/move?owner=ci", nil, &p); code != http.StatusForbidden {
		t.Errorf("another caller: code = %d, p = %+v, want code == 403", code, p)
	}
	if code := h.as(h.viewer, "POST", "/v1/fleet/sessions/s/move", nil, &p); code != http.StatusForbidden {
		t.Errorf("a viewer: code = %d, p = %+v, want code == 403", code, p)
	}
	if code := h.get("POST", "/v1/fleet/sessions/s/move", map[string]any{"colour": "red"}, &p); code != http.StatusBadRequest || !strings.Contains(p.Detail, "colour") {
		t.Errorf(`an unknown field: code = %d, p = %+v, want code == 400 and p.Detail containing "colour"`, code, p)
	}
	h.prints(t, "fleet", "cordon", "n2", "--reason", "disks")
	refused("s", api.FleetMove{}, http.StatusTooManyRequests, "cordoned: disks")
	h.prints(t, "fleet", "uncordon", "n2")

	if code := h.get("POST", "/v1/sessions", map[string]any{"id": "w", "read_only_root": false, "placement": map[string]any{"node": "n1"}}, nil); code != http.StatusCreated {
		t.Fatal(code)
	}
	refused("w", api.FleetMove{}, http.StatusConflict, "changes to the root filesystem")
	if m, p, code := h.moves("w", api.FleetMove{LeaveOut: true}); code != http.StatusOK || !slices.Equal(m.LeftOut, []string{"changes to the root filesystem"}) {
		t.Errorf(`code = %d, m = %+v, p = %+v, want code == 200 and m.LeftOut == []string{"changes to the root filesystem"}`,
			code, m, p)
	}

	// A session of the same name on the other node, which the fleet does not know: it is not changed.
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, h.base()+"/v1/sessions", strings.NewReader(`{"id":"s"}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+h.token)
	req.Header.Set("Boxd-Node", "n2")
	made, err := http.DefaultClient.Do(req)
	if err != nil || made.StatusCode != http.StatusCreated {
		t.Fatalf("made = %+v, err = %v, want no error and made.StatusCode == 201", made, err)
	}
	made.Body.Close()
	refused("s", api.FleetMove{}, http.StatusConflict, "not of the fleet")
	if !h.on("n2").has(t, "s") {
		t.Error("the session of the other node has gone")
	}
}

// If a move fails when the session is already stopped, the session is started again, with its files and the processes that always
// restart.
func TestAMoveThatBreaksOffIsUndone(t *testing.T) {
	t.Parallel()
	h := build(t, 2)
	c := h.client()
	h.makes("s", "n1")
	run := func(line string) string {
		t.Helper()
		r, err := c.Exec(t.Context(), "s", &api.ExecRequest{Command: &line})
		if err != nil {
			t.Fatal(err)
		}
		return r.Stdout
	}
	run("echo work > f; echo closed > closed; chmod 0 closed")
	if _, _, err := c.StartProcess(t.Context(), "s", "always", &api.ProcessRequest{Command: new("echo >> started; exec sleep 1000"), Restart: &api.Restart{Policy: "always"}}); err != nil {
		t.Fatal(err)
	}
	boxtest.Eventually(t, "the process has started", func() bool { return run("cat started 2>/dev/null || true") == "\n" })
	_, p, code := h.moves("s", api.FleetMove{})
	if code != http.StatusForbidden || !strings.Contains(p.Detail, `"/workspace/closed": permission denied`) {
		t.Errorf("code = %d, p = %+v, want code == 403 and p.Detail containing `\"/workspace/closed\": permission denied`",
			code, p)
	}
	if claim := h.where("s"); claim.Node != "n1" || claim.State != api.FleetClaimLive || claim.To != "" {
		t.Errorf(`claim = %+v, want claim.Node == "n1" and claim.State == api.FleetClaimLive and claim.To == ""`, claim)
	}
	boxtest.Eventually(t, "the process has started again", func() bool { // the node starts the session itself if the gateway is late
		r, err := c.Exec(t.Context(), "s", &api.ExecRequest{Command: new("cat started")})
		return err == nil && r.Stdout == "\n\n"
	})
	if got := run("cat f"); got != "work\n" {
		t.Errorf(`it has %q, want "work\n"`, got)
	}
	boxtest.Eventually(t, "the other node has no copy of the session", func() bool { return !h.on("n2").has(t, "s") })
	run("chmod 644 closed")
	if m, p, code := h.moves("s", api.FleetMove{}); code != http.StatusOK || m.Node != "n2" {
		t.Errorf(`code = %d, m = %+v, p = %+v, want code == 200 and m.Node == "n2"`, code, m, p)
	}
	if got := run("cat f closed"); got != "work\nclosed\n" {
		t.Errorf(`there it has %q, want "work\nclosed\n"`, got)
	}
}

// Who drains a node can have its boxes moved.
func TestADrainedNodeIsEmptied(t *testing.T) {
	t.Parallel()
	h := build(t, 2)
	h.makes("a", "n1")
	h.makes("b", "n1")
	if code := h.as(h.user, "POST", "/v1/sessions", map[string]any{"id": "theirs", "placement": map[string]any{"node": "n1"}}, nil); code != http.StatusCreated {
		t.Fatal(code)
	}
	b := h.starts(t, "fleet", "drain", "--move", "n1")
	b.ends(0, "node n1 is cordoned and has no boxes")
	for _, words := range []string{"box a is on node n2 now", "box b is on node n2 now", "box theirs is on node n2 now"} {
		b.says(words)
	}
	for _, id := range []string{"a", "b"} {
		h.runs(id)
	}
	if code := h.as(h.user, "POST", "/v1/sessions/theirs/exec", map[string]any{"argv": []string{"true"}}, nil); code != http.StatusOK {
		t.Errorf("the box of another: code = %d, want 200", code)
	}
	h.prints(t, "fleet", "uncordon", "n1")
	if out := h.prints(t, "fleet", "move", "a", "--node", "n1", "--json"); !strings.Contains(out, `"from":"n2"`) && !strings.Contains(out, `"from": "n2"`) {
		t.Errorf("boxctl prints %s, want out containing `\"from\":\"n2\"` or out containing `\"from\": \"n2\"`", out)
	}
	file := filepath.Join(t.TempDir(), "a.tar") // and it is exported and imported as by one boxd
	h.prints(t, "export", "-o", file, "a")
	if out := h.prints(t, "import", "--id", "copy", file); out != "copy\n" {
		t.Errorf(`boxctl prints %q, want "copy\n"`, out)
	}
	h.runs("copy")
	b = h.starts(t, "fleet", "move", "theirs", "--owner", "other")
	b.ends(0, "box theirs is on node n1 now")
	if out := h.prints(t, "fleet", "events", "--format", "{{.type}} {{.node}} {{.session}}"); !strings.Contains(out, "session_moved n1 theirs\n") {
		t.Errorf(`the events are %s, want out containing "session_moved n1 theirs\n"`, out)
	}
}

// While a session is moved it cannot be used through any route of a gateway; and if the claim is no longer renewed, its node
// restores and starts it.
func TestASessionThatIsMovedIsNotUsed(t *testing.T) {
	t.Parallel()
	h := build(t, 2)
	c := h.client()
	h.makes("s", "n1")
	h.runs("s")
	if _, err := c.StopSession(t.Context(), "s"); err != nil {
		t.Fatal(err)
	}
	kv, err := h.buckets().KeyValue(t.Context(), "boxd_claims")
	if err != nil {
		t.Fatal(err)
	}
	keys, err := kv.Keys(t.Context())
	if err != nil || len(keys) != 1 {
		t.Fatalf("keys = %q, err = %v, want no error and len(keys) == 1", keys, err)
	}
	entry, err := kv.Get(t.Context(), keys[0])
	if err != nil {
		t.Fatal(err)
	}
	claim := map[string]any{}
	if err := json.Unmarshal(entry.Value(), &claim); err != nil {
		t.Fatal(err)
	}
	claim["state"], claim["to"], claim["to_generation"], claim["ran"] = "moving", "n2", 100, true // as a gateway leaves it that dies
	text, err := json.Marshal(claim)
	if err == nil {
		_, err = kv.Update(t.Context(), keys[0], text, entry.Revision())
	}
	if err != nil {
		t.Fatal(err)
	}
	boxtest.Eventually(t, "the gateway has received the announcement of the move", func() bool { // until then its node refuses, as the session is stopped
		_, err := c.Exec(t.Context(), "s", &api.ExecRequest{Argv: []string{"true"}})
		e, ok := errors.AsType[*client.Error](err)
		return ok && strings.Contains(e.Detail, "is being moved")
	})
	for _, ask := range []struct{ method, path, node string }{
		{"POST", "/v1/sessions", ""},
		{"POST", "/v1/sessions/s/start", ""},
		{"DELETE", "/v1/sessions/s", ""},
		{"POST", "/v1/sessions/s/exec", ""},
		{"POST", "/v1/sessions/s/start", "n1"},
		{"DELETE", "/v1/sessions/s", "n1"},
		{"POST", "/v1/fleet/sessions/s/move", ""},
	} {
		body := `{"id":"s"}`
		if ask.path != "/v1/sessions" {
			body = ""
		}
		req, err := http.NewRequestWithContext(t.Context(), ask.method, h.base()+ask.path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+h.token)
		if ask.node != "" {
			req.Header.Set("Boxd-Node", ask.node)
		}
		a, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		var p api.Problem
		if err := json.NewDecoder(a.Body).Decode(&p); err != nil || a.StatusCode != http.StatusConflict || !strings.Contains(p.Detail, "is being moved from node n1 to n2") {
			t.Errorf(`%+v: a.StatusCode = %d, p = %+v, err = %v, want no error and a.StatusCode == 409 and p.Detail containing "is being moved from node n1 to n2"`,
				ask, a.StatusCode, p, err)
		}
		a.Body.Close()
	}
	if is, err := c.Session(t.Context(), "s"); err != nil || is.State != "stopped" {
		t.Errorf(`is = %+v, err = %v, want no error and is.State == "stopped"`, is, err)
	}
	boxtest.Eventually(t, "the first node has the session again", func() bool { return h.where("s").State == api.FleetClaimLive })
	boxtest.Eventually(t, "the session runs again", func() bool { is, err := c.Session(t.Context(), "s"); return err == nil && is.State == "ready" })
	h.runs("s")
}
