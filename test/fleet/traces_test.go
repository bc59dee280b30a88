// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/internal/trace"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

// buildTraced is like build, with a [traces] table for all nodes and the gateway.
func buildTraced(t testing.TB, nodes int, table string) *house {
	t.Helper()
	h := &house{t: t, dir: boxtest.TempDir(t), traces: "[traces]\n" + table}
	h.nats = startNATS(t, filepath.Join(h.dir, "nats"), anyPort, "")
	return h.fill(nodes)
}

// traceOf returns a caller's trace id, which ends in digit, and its traceparent; flags are "01" for a recorded trace.
func traceOf(digit int, flags string) (id, parent string) {
	id = fmt.Sprintf("0af7651916cd43dd8448eb211c80319%d", digit)
	return id, "00-" + id + "-b7ad6b7169203331-" + flags
}

// within returns the context of a request with a traceparent.
func within(t testing.TB, parent string) context.Context {
	t.Helper()
	return trace.With(t.Context(), trace.Request{ID: "mine-17", Parent: parent})
}

// spansOf waits until a trace has spans of these names, each once, and returns them in the given order.
func spansOf(t testing.TB, c *boxtest.Collector, id string, names ...string) []boxtest.Span {
	t.Helper()
	var found []boxtest.Span
	boxtest.Eventually(t, fmt.Sprintf("spans of %s are %q", id, names), func() bool {
		all := slices.DeleteFunc(c.Spans(), func(s boxtest.Span) bool { return s.Trace != id })
		found = nil
		for _, name := range names {
			i := slices.IndexFunc(all, func(s boxtest.Span) bool { return s.Service+": "+s.Name == name })
			if i < 0 {
				return false
			}
			found = append(found, all[i])
			all = slices.Delete(all, i, i+1)
		}
		for _, s := range all { // nodes that refused may have added some
			if status, _ := s.Has["http.response.status_code"].(int); s.Service != "boxd" || status < http.StatusBadRequest {
				t.Errorf("%+v more", s)
			}
		}
		return true
	})
	return found
}

const (
	execRoute    = "POST /v1/sessions/{id}/exec"
	processRoute = "PUT /v1/sessions/{id}/processes/{p}"
	streamRoute  = "GET /v1/sessions/{id}/exec/stream"
)

// A caller's trace runs through gateway and node to the execution, over REST and over WebSocket. It contains nothing of the
// command.
func TestOneTraceThroughGatewayNodeAndExec(t *testing.T) {
	t.Parallel()
	spans := boxtest.NewCollector(t)
	h := buildTraced(t, 2, fmt.Sprintf("endpoint = %q\nratio = 0.0", spans.URL))
	c := h.client()
	h.makes("s", "n2")
	id, parent := traceOf(1, "01")
	ask := &api.ExecRequest{Argv: []string{"sh", "-c", "echo hush-argv >hush-file; exit 3"}, Env: map[string]string{"A": "hush-env"}}
	if r, err := c.Exec(within(t, parent), "s", ask); err != nil || r.ExitCode == nil || *r.ExitCode != 3 {
		t.Fatalf("r = %+v, err = %v, want no error and r.ExitCode != nil and *r.ExitCode == 3", r, err)
	}
	got := spansOf(t, spans, id, "boxfleet: "+execRoute, "boxd: "+execRoute, "boxd: exec")
	gateway, node, exec := got[0], got[1], got[2]
	if gateway.Parent != parent[36:52] || node.Parent != gateway.ID || exec.Parent != node.ID {
		t.Errorf("the parents are wrong: got %+v, want gateway.Parent == parent[36:52] and node.Parent == gateway.ID and exec.Parent == node.ID",
			got)
	}
	if gateway.Kind != "SPAN_KIND_SERVER" || node.Kind != "SPAN_KIND_SERVER" || exec.Kind != "SPAN_KIND_INTERNAL" || gateway.Instance != "main" || node.Instance != "n2" || exec.Instance != "n2" {
		t.Errorf("got %+v", got)
	}
	if gateway.Failed || node.Failed || !exec.Failed || exec.End <= exec.Begin || gateway.End <= gateway.Begin {
		t.Errorf("got %+v, want gateway.Failed == false and node.Failed == false and exec.Failed == true and exec.End > exec.Begin and gateway.End > gateway.Begin",
			got)
	}
	for _, tc := range []struct {
		of  boxtest.Span
		has map[string]any
	}{
		{gateway, map[string]any{"http.request.method": "POST", "http.route": "/v1/sessions/{id}/exec", "http.response.status_code": 200, "boxd.request": "mine-17", "boxd.principal": "ci", "boxd.session": "s", "boxd.node": "n2"}},
		{node, map[string]any{"http.request.method": "POST", "http.route": "/v1/sessions/{id}/exec", "http.response.status_code": 200, "boxd.request": "mine-17", "boxd.principal": "ci", "boxd.session": "s"}},
		{exec, map[string]any{"boxd.session": "s", "boxd.principal": "ci", "boxd.exec.status": "exited", "process.exit.code": 3}},
	} {
		if fmt.Sprint(tc.of.Has) != fmt.Sprint(tc.has) {
			t.Errorf("%s of %s has %v, want %v", tc.of.Name, tc.of.Service, tc.of.Has, tc.has)
		}
	}
	// A stream is a request that lasts as long as the stream.
	id, parent = traceOf(2, "01")
	var out strings.Builder
	if r, err := c.ExecStream(within(t, parent), "s", &api.ExecRequest{Argv: []string{"cat"}}, client.Stdio{Stdin: strings.NewReader("hush-input"), Stdout: &out, Stderr: io.Discard}, nil); err != nil || out.String() != "hush-input" {
		t.Fatalf(`r = %+v, err = %v, want no error and out.String() == "hush-input"`, r, err)
	}
	got = spansOf(t, spans, id, "boxfleet: "+streamRoute, "boxd: "+streamRoute, "boxd: exec")
	if got[1].Parent != got[0].ID || got[2].Parent != got[1].ID || got[0].Failed || got[1].Failed || got[2].Failed || got[2].Has["process.exit.code"] != 0 {
		t.Errorf("got %+v", got)
	}
	// A managed process has one too, when it has ended: by itself, or by a caller.
	id, parent = traceOf(4, "01")
	for name, argv := range map[string][]string{"ends": {"sh", "-c", "sleep 0.01; exit 4"}, "stopped": {"sleep", "1000"}, "removed": {"sleep", "1000"}} {
		if _, _, err := c.StartProcess(within(t, parent), "s", name, &api.ProcessRequest{Argv: argv}); err != nil {
			t.Fatal(err)
		}
	}
	if is, err := c.Process(t.Context(), "s", "ends", time.Minute); err != nil || is.EndedAt == nil {
		t.Fatalf("is = %+v, err = %v, want no error and is.EndedAt != nil", is, err)
	}
	if _, err := c.StopProcess(t.Context(), "s", "stopped"); err != nil {
		t.Fatal(err)
	}
	if err := c.DeleteSession(t.Context(), "s"); err != nil {
		t.Fatal(err)
	}
	ways := []string{"boxfleet: " + processRoute, "boxd: " + processRoute, "boxd: process"}
	for _, s := range spansOf(t, spans, id, slices.Repeat(ways, 3)...) {
		ended := s.Has["boxd.process"] == "ends"
		if s.Name == "process" && (s.Has["boxd.session"] != "s" || s.Has["boxd.principal"] != "ci" || s.Failed != ended || s.End-s.Begin < 1_000_000 || (s.Has["process.exit.code"] == 4) != ended) {
			t.Errorf("s = %+v", s)
		}
	}
	// A new session is placed by the gateway, whose span names it too.
	id, parent = traceOf(3, "01")
	made, _, err := c.CreateSession(within(t, parent), &api.SessionRequest{})
	if err != nil {
		t.Fatal(err)
	}
	got = spansOf(t, spans, id, "boxfleet: POST /v1/sessions", "boxd: POST /v1/sessions")
	if got[1].Parent != got[0].ID || got[0].Has["boxd.session"] != made.ID || got[1].Has["boxd.session"] != made.ID || got[0].Has["boxd.node"] != got[1].Instance || got[0].Has["http.response.status_code"] != 201 {
		t.Errorf("got %+v", got)
	}
	if all := spans.Bytes(); bytes.Contains(all, []byte("hush")) {
		t.Errorf(`the command is in the spans: all = %q, want all without []byte("hush")`, all)
	}
}

// Requests of E2B's clients belong to the trace that they send, through gateway and node to the program; what is for a port of a program's
// belongs to that.
func TestOneTraceThroughE2B(t *testing.T) {
	t.Parallel()
	spans := boxtest.NewCollector(t)
	h := &house{t: t, dir: boxtest.TempDir(t), e2b: boxtest.FreeAddress(t, "127.0.0.1"), traces: fmt.Sprintf("[traces]\nendpoint = %q\nratio = 0.0", spans.URL)}
	h.nats = startNATS(t, filepath.Join(h.dir, "nats"), anyPort, "")
	h.fill(2)
	sb := h.sandbox(h.token, "n2", `{"templateID":"base"}`)

	id, parent := traceOf(1, "01")
	if a := h.sends("GET", "/v2/sandboxes", "", "X-Api-Key", h.token, "Traceparent", parent); a.code != http.StatusOK {
		t.Fatalf("a = %+v, want a.code == 200", a)
	}
	got := spansOf(t, spans, id, "boxfleet: e2b GET /v2/sandboxes", "boxd: e2b GET /v2/sandboxes", "boxd: e2b GET /v2/sandboxes")
	if got[0].Parent != parent[36:52] || got[1].Parent != got[0].ID || got[2].Parent != got[0].ID {
		t.Errorf("got %+v, want got[0].Parent == parent[36:52] and got[1].Parent == got[0].ID and got[2].Parent == got[0].ID",
			got)
	}
	id, parent = traceOf(2, "01")
	if a := h.sends("GET", "/sandboxes/"+sb.ID, "", "X-Api-Key", h.token, "Traceparent", parent, "X-Request-Id", "mine-18"); a.code != http.StatusOK {
		t.Fatalf("a = %+v, want a.code == 200", a)
	}
	got = spansOf(t, spans, id, "boxfleet: e2b GET /sandboxes/{id}", "boxd: e2b GET /sandboxes/{id}")
	for _, s := range got {
		if s.Has["boxd.request"] != "mine-18" || s.Has["boxd.principal"] != "ci" || s.Has["http.route"] != "/sandboxes/{id}" || s.Has["http.response.status_code"] != 200 {
			t.Errorf("s = %+v", s)
		}
	}
	if got[1].Parent != got[0].ID || got[0].Has["boxd.node"] != "n2" {
		t.Errorf(`got %+v, want got[1].Parent == got[0].ID and got[0].Has["boxd.node"] == "n2"`, got)
	}
	id, parent = traceOf(3, "01")
	if a := h.sends("POST", "/files?path=/workspace/f", "x", append(sb.on("49983"), "Content-Type", "application/octet-stream", "Traceparent", parent)...); a.code != http.StatusOK {
		t.Fatalf("a = %+v, want a.code == 200", a)
	}
	got = spansOf(t, spans, id, "boxfleet: e2b POST /files", "boxd: e2b POST /files", "boxd: exec")
	if got[1].Parent != got[0].ID || got[2].Parent != got[1].ID || got[0].Has["boxd.principal"] != "ci" || got[1].Has["boxd.session"] != sb.ID {
		t.Errorf(`got %+v, want got[1].Parent == got[0].ID and got[2].Parent == got[1].ID and got[0].Has["boxd.principal"] == "ci" and got[1].Has["boxd.session"] == sb.ID`,
			got)
	}
	id, parent = traceOf(4, "01")
	if a := h.sends("POST", "/v2/sandboxes", `{"templateID":"base"}`, "X-Api-Key", h.token, "Traceparent", parent); a.code != http.StatusCreated {
		t.Fatalf("a = %+v, want a.code == 201", a)
	}
	got = spansOf(t, spans, id, "boxfleet: e2b POST /v2/sandboxes", "boxd: e2b POST /v2/sandboxes")
	if got[1].Parent != got[0].ID || got[0].Has["http.response.status_code"] != 201 || got[0].Has["boxd.node"] != got[1].Instance {
		t.Errorf(`got %+v, want got[1].Parent == got[0].ID and got[0].Has["http.response.status_code"] == 201 and got[0].Has["boxd.node"] == got[1].Instance`,
			got)
	}
	// The trace of an unauthenticated client is not recorded, whatever it says.
	_, parent = traceOf(5, "01")
	if a := h.sends("GET", "/v2/sandboxes", "", "X-Api-Key", "none", "Traceparent", parent); a.code != http.StatusUnauthorized {
		t.Fatalf("a = %+v, want a.code == 401", a)
	}
	_, other := traceOf(6, "01")
	if a := h.sends("GET", "/health", "", append(sb.on("8080"), "Traceparent", other)...); a.code < 400 { // no collector listens there
		t.Fatalf("a = %+v, want a.code >= 400", a)
	}
	id, last := traceOf(7, "01")
	if a := h.sends("GET", "/sandboxes/"+sb.ID, "", "X-Api-Key", h.token, "Traceparent", last); a.code != http.StatusOK {
		t.Fatalf("a = %+v, want a.code == 200", a)
	}
	spansOf(t, spans, id, "boxfleet: e2b GET /sandboxes/{id}", "boxd: e2b GET /sandboxes/{id}") // the others would have come before
	for _, s := range spans.Spans() {
		if s.Trace == parent[3:35] || s.Trace == other[3:35] {
			t.Errorf("the spans are %+v, want s.Trace != parent[3:35] and s.Trace != other[3:35]", s)
		}
	}
}

// Calls that an MCP tool makes belong to the trace of the request that called the tool.
func TestOneTraceThroughMCP(t *testing.T) {
	t.Parallel()
	spans := boxtest.NewCollector(t)
	h := buildTraced(t, 1, fmt.Sprintf("endpoint = %q\nratio = 0.0", spans.URL))
	h.makes("s", "n1")
	session := ""
	say := func(parent, path, message string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), "POST", h.base()+path, strings.NewReader(message))
		if err != nil {
			t.Fatal(err)
		}
		for name, value := range map[string]string{"Authorization": "Bearer " + h.token, "Content-Type": "application/json", "Accept": "application/json, text/event-stream", "Mcp-Session-Id": session, "Traceparent": parent} {
			if value != "" {
				req.Header.Set(name, value)
			}
		}
		resp, err := h.http().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if body, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode/100 != 2 {
			t.Fatalf("resp.StatusCode = %d, body = %s, err = %v, want no error and resp.StatusCode / 100 == 2",
				resp.StatusCode, body, err)
		}
		session = cmp.Or(resp.Header.Get("Mcp-Session-Id"), session)
	}
	say("", "/mcp?session=s", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`)
	say("", "/mcp", `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	id, parent := traceOf(1, "01")
	say(parent, "/mcp", `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"box_exec","arguments":{"command":"echo hush"}}}`)
	var line []string // from the execution upwards
	boxtest.Eventually(t, "the execution is below the request of the gateway", func() bool {
		line = nil
		all := spans.Spans()
		i := slices.IndexFunc(all, func(s boxtest.Span) bool { return s.Trace == id && s.Name == "exec" })
		for i >= 0 {
			line = append(line, all[i].Service+": "+all[i].Name)
			above := all[i].Parent
			if i = slices.IndexFunc(all, func(s boxtest.Span) bool { return s.Trace == id && s.ID == above }); i < 0 {
				return above == parent[36:52]
			}
		}
		return false
	})
	if len(line) < 4 || line[len(line)-1] != "boxfleet: POST /mcp" || line[len(line)-2] != "boxd: POST /mcp" || !strings.HasPrefix(line[1], "boxd: ") {
		t.Errorf(`line = %q, want len(line) >= 4 and line[len(line)-1] == "boxfleet: POST /mcp" and line[len(line)-2] == "boxd: POST /mcp" and line[1] starting with "boxd: "`,
			line)
	}
	for _, s := range spans.Spans() {
		if s.Trace != id {
			t.Errorf("it is recorded: s = %+v, want s.Trace == %v", s, id)
		}
	}
}

// Requests of unsampled traces, of unknown callers and for health checks leave no spans; long ids and names from callers are truncated.
func TestUnsampledAndUnauthenticatedRequestsLeaveNoSpans(t *testing.T) {
	t.Parallel()
	spans := boxtest.NewCollector(t)
	h := buildTraced(t, 1, fmt.Sprintf("endpoint = %q\nratio = 0.0", spans.URL))
	c := h.client()
	h.makes("s", "n1")
	ask := func(token, parent, method, path string) int {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, h.base()+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+token)
		req.Header.Set("Traceparent", parent)
		resp, err := h.http().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	unrecorded, quiet := traceOf(1, "00")
	if r, err := c.Exec(within(t, quiet), "s", &api.ExecRequest{Argv: []string{"true"}}); err != nil || r.Status != "exited" {
		t.Fatalf(`r = %+v, err = %v, want no error and r.Status == "exited"`, r, err)
	}
	strangers, loud := traceOf(2, "01")
	if code := ask("nobody's", loud, "GET", "/v1/sessions"); code != http.StatusUnauthorized {
		t.Errorf("code = %d, want 401", code)
	}
	if code := ask(h.token, loud, "GET", "/healthz"); code != http.StatusOK {
		t.Errorf("code = %d, want 200", code)
	}
	long, parent := traceOf(3, "01")
	if code := ask(h.token, parent, "GET", "/v1/sessions/"+strings.Repeat("%c3%a4", 5000)); code != http.StatusNotFound {
		t.Errorf("code = %d, want 404", code)
	}
	if code := ask(h.token, parent, strings.Repeat("M", 2000), "/v1/"+strings.Repeat("x", 2000)); code != http.StatusNotImplemented {
		t.Errorf("code = %d, want 501", code)
	}
	if code := ask(h.token, parent, "GET", "/v1/fleet/"+strings.Repeat("x", 2000)); code == http.StatusOK {
		t.Errorf("code = %d, want code != 200", code)
	}
	got := spansOf(t, spans, long, "boxfleet: GET /v1/sessions/{id}", "boxfleet: none", "boxfleet: GET /v1/fleet/...")
	if s := got[0].Has["boxd.session"].(string); len(s) > 256 || !strings.HasPrefix(s, "ää") || got[0].Has["http.response.status_code"] != 404 || got[0].Failed {
		t.Errorf(`got[0] = %+v, want len(s) <= 256 and s starting with "ää" and got[0].Has["http.response.status_code"] == 404 and got[0].Failed == false`,
			got[0])
	}
	if got[1].Has["http.request.method"] != "_OTHER" || !got[1].Failed { // 501
		t.Errorf(`got[1] = %+v, want got[1].Has["http.request.method"] == "_OTHER" and got[1].Failed == true`, got[1])
	}
	// The same at the node itself: a request on the gateways' socket without an identity is unauthenticated.
	d := h.nodes[0].boxd
	if answer, err := boxtest.Ask(t.Context(), filepath.Join(d.Dir, "fleet"), boxtest.Request("GET", "/v1/sessions", "", "Traceparent: "+loud)); err != nil || answer.Code != http.StatusUnauthorized {
		t.Errorf("answer = %+v, err = %v, want no error and answer.Code == 401", answer, err)
	}
	if answer := d.Raw(t, "GET", "/healthz", "", "Traceparent: "+loud); answer.Code != http.StatusOK {
		t.Errorf("answer = %+v, want answer.Code == 200", answer)
	}
	last, parent := traceOf(4, "01")
	d.Owner = "ci"
	if r, err := d.Exec(within(t, parent), "s", &api.ExecRequest{Argv: []string{"sh", "-c", "kill -KILL $$"}}); err != nil || r.Status != "signaled" {
		t.Fatalf(`r = %+v, err = %v, want no error and r.Status == "signaled"`, r, err)
	}
	got = spansOf(t, spans, last, "boxd: "+execRoute, "boxd: exec")
	if !got[1].Failed || got[1].Has["boxd.exec.status"] != "signaled" || got[0].Has["boxd.principal"] != "uid:0" || got[1].Has["boxd.principal"] != "ci" {
		t.Errorf("got %+v", got)
	}
	for _, s := range spans.Spans() { // spans arrive in order, so earlier ones would be here
		if s.Trace != long && s.Trace != last {
			t.Errorf("%s, or %s, is recorded: s = %+v, want s.Trace == %v or s.Trace == %v",
				unrecorded, strangers, s, long, last)
		}
	}
}

// Without a collector the caller's traceparent is passed on unchanged, and there is nothing to count.
func TestTracesAreOffByDefault(t *testing.T) {
	t.Parallel()
	h := build(t, 1)
	h.makes("s", "n1")
	_, parent := traceOf(1, "01")
	if r, err := h.client().Exec(within(t, parent), "s", &api.ExecRequest{Argv: []string{"true"}}); err != nil || r.Status != "exited" {
		t.Fatalf(`r = %+v, err = %v, want no error and r.Status == "exited"`, r, err)
	}
	d := h.nodes[0].boxd
	if answer := d.Raw(t, "GET", "/v1/events?follow=false&owner=ci&session=s", ""); !strings.Contains(string(answer.Body), `"traceparent":"`+parent+`"`) {
		t.Errorf("answer.Body = %s, want answer.Body containing `\"traceparent\":\"` + parent + `\"`", answer.Body)
	}
	if n, ok := spansCounted(t, d); ok {
		t.Errorf("spans are counted: n = %v, want ok == false", n)
	}
}

// spansCounted returns boxd's span counters, by outcome.
func spansCounted(t testing.TB, d *boxtest.Daemon) (map[string]int, bool) {
	t.Helper()
	counts := map[string]int{}
	for line := range strings.Lines(string(d.Raw(t, "GET", "/metrics", "").Body)) {
		var outcome string
		var n float64
		if _, err := fmt.Sscanf(line, `boxd_spans_total{outcome=%q} %g`, &outcome, &n); err == nil {
			counts[outcome] = int(n)
		}
	}
	return counts, len(counts) > 0
}

// A collector that hangs or is down costs spans and nothing else: executions go on, lost spans are counted and logged once, and
// boxd can be stopped.
func TestExecutionsGoOnWithoutACollector(t *testing.T) {
	t.Parallel()
	hangs, err := net.Listen("tcp", "127.0.0.1:0") // the kernel accepts connections, and no process reads from them
	if err != nil {
		t.Fatal(err)
	}
	defer hangs.Close()
	for name, address := range map[string]string{"hangs": hangs.Addr().String(), "away": boxtest.FreeAddress(t, "127.0.0.1")} {
		t.Run(name, func(t *testing.T) {
			d := boxtest.Start(t, fmt.Sprintf("[traces]\nendpoint = \"http://%s\"", address))
			d.NewSession(t, api.SessionRequest{ID: "s"})
			run := func() {
				t.Helper()
				if out := d.Sh(t, "s", "echo on"); out != "on\n" {
					t.Fatalf(`out = %q, want "on\n"`, out)
				}
			}
			run()
			ask := func(times int) {
				t.Helper()
				for range times {
					if _, err := d.Sessions(t.Context(), false); err != nil {
						t.Fatal(err)
					}
				}
			}
			ask(2048 + 2*512) // queued, being sent, and the next batch
			run()
			boxtest.Eventually(t, "lost spans are counted", func() bool {
				ask(512) // faster than batches time out
				n, _ := spansCounted(t, d)
				return n["sent"] == 0 && n["dropped"]+n["failed"] > 0 // a batch that hangs may have timed out already
			})
			run()
			d.Stop()
			if n := strings.Count(d.Log(), "the trace collector does not accept spans"); n != 1 {
				t.Errorf("%d lines of the log are about it", n)
			}
		})
	}
}

// A gateway's span shows what its caller got: a node that rejects the gateway is a failure, a client that disconnects is not. The span of
// a list that all nodes answer names no node. Requests running when the gateway stops get a span, and pending spans are sent.
func TestWhatBecameOfARequestIsInItsSpan(t *testing.T) {
	t.Parallel()
	spans := boxtest.NewCollector(t)
	h := buildTraced(t, 2, fmt.Sprintf("endpoint = %q", spans.URL))
	c := h.client()
	h.makes("s", "n1")
	id, parent := traceOf(1, "01")
	if _, err := c.Sessions(within(t, parent), false); err != nil {
		t.Fatal(err)
	}
	got := spansOf(t, spans, id, "boxfleet: GET /v1/sessions", "boxd: GET /v1/sessions", "boxd: GET /v1/sessions")
	if got[0].Has["boxd.node"] != nil || got[0].Failed || got[1].Parent != got[0].ID || got[2].Parent != got[0].ID {
		t.Errorf(`got %+v, want got[0].Has["boxd.node"] == nil and got[0].Failed == false and got[1].Parent == got[0].ID and got[2].Parent == got[0].ID`,
			got)
	}
	// gateway waits for the gateway's span of a trace.
	gateway := func(id string) (found boxtest.Span) {
		t.Helper()
		boxtest.Eventually(t, "the gateway has sent its span", func() bool {
			all := spans.Spans()
			i := slices.IndexFunc(all, func(s boxtest.Span) bool { return s.Trace == id && s.Service == "boxfleet" })
			if i >= 0 {
				found = all[i]
			}
			return i >= 0
		})
		return found
	}
	// waits starts an execution that runs until its context ends.
	waits := func(ctx context.Context) (over <-chan error) {
		t.Helper()
		done := make(chan error, 1)
		go func() {
			_, err := c.Exec(ctx, "s", &api.ExecRequest{Argv: []string{"sleep", "1000"}})
			done <- err
		}()
		boxtest.Eventually(t, "the execution runs", func() bool {
			s, err := h.nodes[0].boxd.Status(t.Context())
			return err == nil && s.Running == 1
		})
		return done
	}
	id, parent = traceOf(2, "01")
	ctx, hangUp := context.WithCancel(within(t, parent))
	over := waits(ctx)
	hangUp()
	<-over
	if s := gateway(id); s.Failed || s.Has["http.response.status_code"] != 499 {
		t.Errorf(`s = %+v, want s.Failed == false and s.Has["http.response.status_code"] == 499`, s)
	}
	boxtest.Eventually(t, "the execution has ended", func() bool {
		s, err := h.nodes[0].boxd.Status(t.Context())
		return err == nil && s.Running == 0
	})
	id, parent = traceOf(3, "01")
	over = waits(within(t, parent))
	if err := h.gate.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-over
	if err := h.gate.cmd.Wait(); err != nil {
		t.Error(err)
	}
	h.gate.cmd = nil
	if !slices.ContainsFunc(spans.Spans(), func(s boxtest.Span) bool { return s.Trace == id && s.Service == "boxfleet" }) {
		t.Errorf("the request that ran when the gateway stopped has no span: %+v", spans.Spans())
	}
	other := filepath.Join(h.dir, "other-key")
	if out, err := exec.CommandContext(t.Context(), filepath.Join(boxtest.Programs(t), "boxfleet"), "key", "-file", other).CombinedOutput(); err != nil {
		t.Fatalf("%s, %v", out, err)
	}
	file := filepath.Join(h.dir, "fleet.toml")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	replaceFile(t, file, []byte(strings.Replace(string(text), filepath.Join(h.dir, "key"), other, 1)))
	h.gate.start()
	h.ready(2)
	id, parent = traceOf(4, "01")
	if _, err := c.Session(within(t, parent), "s"); err == nil {
		t.Error("a node accepts a gateway with another key")
	}
	if s := gateway(id); !s.Failed || s.Has["http.response.status_code"] != 503 || s.Has["boxd.node"] != "n1" {
		t.Errorf(`s = %+v, want s.Failed == true and s.Has["http.response.status_code"] == 503 and s.Has["boxd.node"] == "n1"`,
			s)
	}
}

// A gateway that stops sends the spans that it has not sent yet.
func TestAGatewaySendsItsLastSpans(t *testing.T) {
	t.Parallel()
	spans := boxtest.NewCollector(t)
	h := buildTraced(t, 1, fmt.Sprintf("endpoint = %q", spans.URL))
	id, parent := traceOf(1, "01")
	if _, err := h.client().Sessions(within(t, parent), false); err != nil {
		t.Fatal(err)
	}
	if err := h.gate.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := h.gate.cmd.Wait(); err != nil {
		t.Error(err)
	}
	h.gate.cmd = nil
	for _, s := range spans.Spans() {
		if s.Trace == id && s.Service == "boxfleet" && s.Name == "GET /v1/sessions" {
			return
		}
	}
	t.Errorf("%+v", spans.Spans())
}
