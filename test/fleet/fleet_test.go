// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

// To a client, a fleet is one boxd at another address: sessions, executions, streams, files, lists.
func TestAFleetIsOneBoxd(t *testing.T) {
	t.Parallel()
	h := build(t, 2)
	c := h.client()
	for _, id := range []string{"one", "two"} {
		var s api.Session
		place := map[string]any{"id": id, "placement": map[string]any{"requires": map[string]string{"zone": map[string]string{"one": "n1", "two": "n2"}[id]}}}
		if code := h.get("POST", "/v1/sessions", place, &s); code != http.StatusCreated || s.Owner != "ci" || s.ID != id {
			t.Fatalf(`%s: code = %d, s = %+v, want code == 201 and s.Owner == "ci" and s.ID == id`, id, code, s)
		}
	}
	if a, b := h.where("one"), h.where("two"); a.Node != "n1" || b.Node != "n2" || a.State != api.FleetClaimLive {
		t.Errorf(`a = %+v, b = %+v, want a.Node == "n1" and b.Node == "n2" and a.State == api.FleetClaimLive`, a, b)
	}
	for _, id := range []string{"one", "two"} {
		r, err := c.Exec(t.Context(), id, &api.ExecRequest{Argv: []string{"sh", "-c", "echo $0 > file; cat file", id}})
		if err != nil || r.Stdout != id+"\n" {
			t.Fatalf(`r = %+v, err = %v, want no error and r.Stdout == id + "\n"`, r, err)
		}
	}
	if _, err := c.Exec(t.Context(), "none", &api.ExecRequest{Argv: []string{"true"}}); !errors.Is(err, client.NotFound) {
		t.Errorf("a session that is nowhere: err = %v, want err is client.NotFound", err)
	}
	// A stream is a WebSocket, with much output, and input.
	big := strings.Repeat("0123456789abcdef", 1<<16)
	var out strings.Builder
	result, err := c.ExecStream(t.Context(), "two", &api.ExecRequest{Argv: []string{"cat"}}, client.Stdio{Stdin: strings.NewReader(big), Stdout: &out, Stderr: io.Discard}, nil)
	if err != nil || out.String() != big || result.Status != "exited" {
		t.Errorf("%d bytes, %+v, %v", out.Len(), result, err)
	}
	list, err := c.Sessions(t.Context(), false)
	if err != nil || len(list) != 2 || list[0].ID != "one" || list[1].ID != "two" {
		t.Errorf(`list = %+v, err = %v, want no error and len(list) == 2 and list[0].ID == "one" and list[1].ID == "two"`,
			list, err)
	}
	r, err := c.Run(t.Context(), &api.OneShotRequest{Exec: api.ExecRequest{Argv: []string{"echo", "once"}}})
	if err != nil || r.Stdout != "once\n" {
		t.Errorf(`r = %+v, err = %v, want no error and r.Stdout == "once\n"`, r, err)
	}
	// An existing session is returned, not created again; with other settings it is refused, as by a single boxd.
	var s api.Session
	if code := h.get("POST", "/v1/sessions", map[string]any{"id": "one"}, &s); code != http.StatusOK || s.ID != "one" {
		t.Errorf(`code = %d, s = %+v, want code == 200 and s.ID == "one"`, code, s)
	}
	if err := c.DeleteSession(t.Context(), "one"); err != nil {
		t.Fatal(err)
	}
	if claim := h.where("one"); claim.ID != "" {
		t.Errorf(`claim = %+v, want claim.ID == ""`, claim)
	}
}

// A caller without a token of the gateway is unauthenticated, and the gateway does not do on a node what it may not.
func TestCallersOfAGateway(t *testing.T) {
	t.Parallel()
	h := build(t, 1)
	a, err := http.Get("http://" + h.address + "/v1/sessions")
	if err != nil || a.StatusCode != http.StatusUnauthorized {
		t.Fatalf("a = %+v, err = %v, want no error and a.StatusCode == 401", a, err)
	}
	a.Body.Close()
	var p api.Problem
	if code := h.get("GET", "/v1/sessions?all=true", nil, &p); code == http.StatusOK && len(p.Detail) > 0 {
		t.Errorf("code = %d, p = %+v, want code != 200 or len(p.Detail) == 0", code, p)
	}
	if code := h.get("POST", "/v1/sessions", map[string]any{"placement": map[string]any{"node": "nowhere"}, "wait": "0s"}, &p); code != http.StatusTooManyRequests || !strings.Contains(p.Detail, "n1: the request names another") {
		t.Errorf(`code = %d, p = %+v, want code == 429 and p.Detail containing "n1: the request names another"`,
			code, p)
	}
}

// Sessions of a dead node are lost: they are not created again elsewhere, and are found when the node is back.
func TestANodeIsLostAndFound(t *testing.T) {
	t.Parallel()
	h := build(t, 2)
	c := h.client()
	if code := h.get("POST", "/v1/sessions", map[string]any{"id": "s", "placement": map[string]any{"node": "n1"}}, nil); code != http.StatusCreated {
		t.Fatal(code)
	}
	n := h.on("n1")
	n.agent.kill()
	boxtest.Eventually(t, "the session is lost", func() bool { return h.where("s").State == api.FleetClaimLost })
	var p api.Problem
	for _, ask := range []struct{ method, path string }{{"POST", "/v1/sessions"}, {"GET", "/v1/sessions/s"}, {"POST", "/v1/sessions/s/exec"}} {
		if code := h.get(ask.method, ask.path, map[string]any{"id": "s"}, &p); code != http.StatusConflict || !strings.Contains(p.Detail, "lost since") || !strings.Contains(p.Detail, "n1") {
			t.Errorf(`%s %s: code = %d, p = %+v, want code == 409 and p.Detail containing "lost since" and p.Detail containing "n1"`,
				ask.method, ask.path, code, p)
		}
	}
	list, err := c.Sessions(t.Context(), false)
	if err != nil || len(list) != 1 || list[0].State != api.FleetClaimLost {
		t.Errorf("list = %+v, err = %v, want no error and len(list) == 1 and list[0].State == api.FleetClaimLost",
			list, err)
	}
	n.agent.start()
	boxtest.Eventually(t, "the session is found", func() bool { return h.where("s").State == api.FleetClaimLive })
	h.ready(2)
	if r, err := c.Exec(t.Context(), "s", &api.ExecRequest{Argv: []string{"echo", "here"}}); err != nil || r.Stdout != "here\n" {
		t.Errorf(`r = %+v, err = %v, want no error and r.Stdout == "here\n"`, r, err)
	}
	// A session given up while its node is away, and created again elsewhere: the node ends its own when it is back.
	n.agent.kill()
	boxtest.Eventually(t, "the session is lost again", func() bool { return h.where("s").State == api.FleetClaimLost })
	if err := c.DeleteSession(t.Context(), "s"); err != nil {
		t.Fatal(err)
	}
	if code := h.get("POST", "/v1/sessions", map[string]any{"id": "s"}, nil); code != http.StatusCreated {
		t.Fatal(code)
	}
	if claim := h.where("s"); claim.Node != "n2" {
		t.Fatalf(`claim = %+v, want claim.Node == "n2"`, claim)
	}
	n.boxd.Owner = "ci"
	if _, err := n.boxd.Session(t.Context(), "s"); err != nil {
		t.Fatalf("the box on the lost node: %v", err)
	}
	n.agent.start()
	boxtest.Eventually(t, "the old one has ended", func() bool {
		_, err := n.boxd.Session(t.Context(), "s")
		return errors.Is(err, client.NotFound)
	})
	if r, err := c.Exec(t.Context(), "s", &api.ExecRequest{Argv: []string{"echo", "there"}}); err != nil || r.Stdout != "there\n" {
		t.Errorf(`r = %+v, err = %v, want no error and r.Stdout == "there\n"`, r, err)
	}
}

// A claim is not shown to other callers, and a lost session can only be given up by a caller that may remove it, although no node
// is there to refuse.
func TestALostSessionIsItsOwners(t *testing.T) {
	t.Parallel()
	h := build(t, 1)
	h.makes("s", "n1")
	attacks := func(state string) {
		t.Helper()
		for _, ask := range []struct{ token, method, path string }{
			{h.user, "GET", "/v1/sessions/s?owner=ci"},
			{h.user, "GET", "/v1/sessions/nothing?owner=ci"},
			{h.user, "GET", "/v1/sessions?owner=ci"},
			{h.user, "DELETE", "/v1/sessions/s?owner=ci"},
			{h.user, "DELETE", "/v1/sessions/s?owner=ci&owner=other"},
			{h.viewer, "DELETE", "/v1/sessions/s"},
			{h.viewer, "DELETE", "/v1/sessions/s?owner=ci"},
			{h.few, "DELETE", "/v1/sessions/s"},
			{h.few, "GET", "/v1/sessions"},
		} {
			var p api.Problem
			if code := h.as(ask.token, ask.method, ask.path, nil, &p); code != http.StatusForbidden || strings.Contains(p.Detail, "lost") {
				t.Errorf(`%s: ask.method = %s, ask.path = %s, code = %d, p = %+v, want code == 403 and p.Detail without "lost"`,
					state, ask.method, ask.path, code, p)
			}
		}
		if code := h.as(h.user, "DELETE", "/v1/sessions/s", nil, nil); code != http.StatusNotFound {
			t.Errorf("%s: code = %d, want 404", state, code)
		}
		if claim := h.where("s"); claim.State != state {
			t.Errorf("the claim is %+v, not %s", claim, state)
		}
	}
	attacks(api.FleetClaimLive)
	const tried = 100
	var elapsed [2][]time.Duration
	for range tried {
		for i, path := range []string{"/v1/sessions/s", "/v1/sessions/nothing"} {
			start := time.Now()
			if code := h.as(h.user, "GET", path, nil, nil); code != http.StatusNotFound {
				t.Errorf("%s: code = %d, want 404", path, code)
			}
			elapsed[i] = append(elapsed[i], time.Since(start))
		}
	}
	for i := range elapsed {
		slices.Sort(elapsed[i])
	}
	t.Logf("%d requests each: the median answer about a foreign session takes %v, about a missing one %v", tried, elapsed[0][tried/2], elapsed[1][tried/2])
	h.nodes[0].agent.kill()
	boxtest.Eventually(t, "the session is lost", func() bool { return h.where("s").State == api.FleetClaimLost })
	attacks(api.FleetClaimLost)
	if code := h.get("DELETE", "/v1/sessions/s", nil, nil); code != http.StatusNoContent {
		t.Errorf("code = %d, want 204", code)
	}
}

// A cordoned node gets no new sessions, from any gateway; its own sessions go on.
func TestACordonedNodeTakesNothingNew(t *testing.T) {
	t.Parallel()
	h := build(t, 2)
	h.makes("s", "n1")
	var c api.FleetCordon
	if code := h.get("PUT", "/v1/fleet/nodes/n1/cordon", map[string]string{"reason": "new disks"}, &c); code != http.StatusOK || c.By != "ci" {
		t.Fatalf(`code = %d, c = %+v, want code == 200 and c.By == "ci"`, code, c)
	}
	h.runs("s")
	h.gate.kill()
	h.gate.start()
	h.ready(2)
	for range 8 {
		if node := h.placed(); node != "n2" {
			t.Errorf("it is at %s", node)
		}
	}
	var p api.Problem
	if code := h.get("POST", "/v1/sessions", map[string]any{"placement": map[string]any{"node": "n1"}, "wait": "0s"}, &p); code != http.StatusTooManyRequests || !strings.Contains(p.Detail, "n1: it is cordoned: new disks") {
		t.Errorf(`code = %d, p = %+v, want code == 429 and p.Detail containing "n1: it is cordoned: new disks"`,
			code, p)
	}
	if code := h.get("DELETE", "/v1/fleet/nodes/n1/cordon", nil, nil); code != http.StatusNoContent {
		t.Fatal(code)
	}
	h.makes("t", "n1")
}

// The death of a gateway loses nothing: another one serves the same sessions.
func TestAGatewayDies(t *testing.T) {
	t.Parallel()
	h := build(t, 1)
	c := h.client()
	if code := h.get("POST", "/v1/sessions", map[string]any{"id": "s"}, nil); code != http.StatusCreated {
		t.Fatal(code)
	}
	if _, _, err := c.StartProcess(t.Context(), "s", "p", &api.ProcessRequest{Argv: []string{"sh", "-c", "for i in $(seq 2000); do echo $i; done; sleep 60"}}); err != nil {
		t.Fatal(err)
	}
	h.gate.kill()
	h.gate.start()
	h.ready(1)
	var want strings.Builder
	for i := range 2000 {
		fmt.Fprintln(&want, i+1)
	}
	boxtest.Eventually(t, "all output is there", func() bool {
		resp, err := http.NewRequestWithContext(t.Context(), "GET", "http://"+h.address+"/v1/sessions/s/processes/p/logs", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp.Header.Set("Authorization", "Bearer "+h.token)
		a, err := http.DefaultClient.Do(resp)
		if err != nil {
			return false
		}
		defer a.Body.Close()
		text, err := io.ReadAll(a.Body)
		return err == nil && string(text) == want.String()
	})
}

// An MCP session stays on the node where it started, whichever gateway its messages pass through.
func TestMCPThroughTheGateway(t *testing.T) {
	t.Parallel()
	h := build(t, 2)
	h.makes("s", "n2")
	session := ""
	say := func(path, message string) (code int, text string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), "POST", "http://"+h.address+path, strings.NewReader(message))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+h.token)
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Accept", "application/json, text/event-stream")
		if session != "" {
			req.Header.Set("Mcp-Session-Id", session)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		if id := resp.Header.Get("Mcp-Session-Id"); id != "" {
			session = id
		}
		return resp.StatusCode, string(body)
	}
	if code, text := say("/mcp?session=s", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`); code != 200 || !strings.HasPrefix(session, "n2.") {
		t.Fatalf(`code = %d, text = %s, session = %q, want code == 200 and session starting with "n2."`,
			code, text, session)
	}
	h.gate.kill()
	h.gate.start()
	h.ready(2)
	say("/mcp", `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	if code, text := say("/mcp", `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"box_exec","arguments":{"command":"echo $((6*7))"}}}`); code != 200 || !strings.Contains(text, "42") {
		t.Errorf(`code = %d, text = %s, want code == 200 and text containing "42"`, code, text)
	}
	session = "n1." + strings.TrimPrefix(session, "n2.")
	if code, text := say("/mcp", `{"jsonrpc":"2.0","id":3,"method":"tools/list"}`); code != http.StatusNotFound {
		t.Errorf("at another node: code = %d, text = %s, want code == 404", code, text)
	}
}
