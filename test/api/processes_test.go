// SPDX-License-Identifier: Apache-2.0

package api_test

import (
	"bytes"
	"net/http"
	"strings"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
)

const (
	startRoute  = "PUT /v1/sessions/{id}/processes/{p}"
	getRoute    = "GET /v1/sessions/{id}/processes/{p}"
	logsRoute   = "GET /v1/sessions/{id}/processes/{p}/logs"
	stdioRoute  = "GET /v1/sessions/{id}/processes/{p}/stdio"
	signalRoute = "POST /v1/sessions/{id}/processes/{p}/signal"
	resizeRoute = "POST /v1/sessions/{id}/processes/{p}/resize"
)

// ended waits for the end of a process.
func (c *contract) ended(p string) (state api.Process) {
	c.t.Helper()
	if c.reads(c.gets(200, request{route: getRoute, s: "s", p: p, query: "wait=1m"}), &state); state.State != "ended" {
		c.t.Fatalf(`state = %+v, want state.State == "ended"`, state)
	}
	return state
}

func (c *contract) processes() {
	full := request{
		route: startRoute, s: "s", p: "full/ü", body: `{"command":"echo ready; sleep 1000","env":{"A":"1"},"cwd":"/tmp","timeout":"1h","terminal":{"rows":24,"cols":80},` +
			`"restart":{"policy":"on-failure","delay":"1s","max_delay":30,"limit":0,"window":"1m"},"ready":{"line":"^ready","timeout":"1m"},` +
			`"stop":{"signal":"SIGKILL","grace":0},"lease":"1h","output":"64KiB","labels":{"task":"17"}}`,
	}
	c.gets(201, full)
	c.gets(200, full)
	c.refused(409, "cwd", request{route: startRoute, s: "s", p: full.p, body: strings.Replace(full.body, "/tmp", "/srv", 1)})
	c.gets(201, request{route: startRoute, s: "s", p: "plain", body: `{"argv":["sleep","1000"],"restart":{"policy":"always"}}`})
	c.gets(200, request{route: "GET /v1/sessions/{id}/processes", s: "s"})
	for body, field := range map[string]string{
		`{"argv":[]}`: "argv", `{"argv":["true"],"output":1}`: "output", `{"argv":["true"],"stop":{"signal":"SIGNONE"}}`: "stop.signal",
		`{"argv":["true"],"ready":{}}`: "ready", `{"argv":["true"],"restart":{"limit":-1}}`: "restart.limit", `{"argv":["true"],"stdio":"direct","stdin":true}`: "stdin",
	} {
		c.refused(400, field, request{route: startRoute, s: "s", p: "bad", body: body})
	}
	for body, field := range map[string]string{
		`{"argv":["true"],"terminal":{"rows":0,"cols":80}}`: "terminal.rows", `{"argv":["true"],"terminal":{"rows":24}}`: "terminal.cols", `{"argv":["true"],"ready":{"port":0}}`: "ready.port",
		`{"argv":["true"],"restart":{"policy":"ever"}}`: "restart.policy", `{"argv":["true"],"restart":{"colour":1}}`: "restart.colour", `{"argv":["true"],"stdio":"none"}`: "stdio",
		`{"argv":["true"],"stop":{"colour":1}}`: "stop.colour", `{"argv":["true"],"id":"x"}`: "id",
	} {
		c.refused(400, field, request{route: startRoute, s: "s", p: "bad", body: body, odd: true})
	}
	if !boxtest.Grouped() {
		c.refused(501, "pids", request{route: startRoute, s: "s", p: "bad", body: `{"argv":["true"],"pids":5}`})
	}
	c.refused(400, "wait", request{route: getRoute, s: "s", p: "plain", query: "wait=1h"})
	c.refused(400, "wait", request{route: getRoute, s: "s", p: "plain", query: "wait=soon", odd: true})

	c.gets(204, request{route: signalRoute, s: "s", p: "plain", body: `{"signal":"SIGCONT"}`})
	c.refused(400, "signal", request{route: signalRoute, s: "s", p: "plain", body: `{"signal":"SIGNONE"}`})
	c.refused(400, "signal", request{route: signalRoute, s: "s", p: "plain", body: `{}`, odd: true})
	c.gets(204, request{route: resizeRoute, s: "s", p: full.p, body: `{"rows":50,"cols":132}`})
	c.refused(409, "", request{route: resizeRoute, s: "s", p: "plain", body: `{"rows":50,"cols":132}`})
	c.refused(400, "rows", request{route: resizeRoute, s: "s", p: full.p, body: `{"rows":0,"cols":132}`, odd: true})
	c.refused(400, "colour", request{route: resizeRoute, s: "s", p: full.p, body: `{"rows":1,"cols":132,"colour":1}`, odd: true})
	c.gets(200, request{route: "POST /v1/sessions/{id}/processes/{p}/renew", s: "s", p: full.p})

	const stop = "POST /v1/sessions/{id}/processes/{p}/stop"
	c.refused(400, "body", request{route: stop, s: "s", p: "plain", body: `{"signal":"SIGKILL"}`, odd: true})
	var p api.Process
	if c.reads(c.gets(200, request{route: stop, s: "s", p: "plain"}), &p); p.State != "ended" || p.Reason != "stopped" || p.Result == nil || p.Result.Status != "signaled" {
		c.t.Errorf(`p = %+v, want p.State == "ended" and p.Reason == "stopped" and p.Result != nil and p.Result.Status == "signaled"`,
			p)
	}
	c.gets(200, request{route: stop, s: "s", p: "plain"}) // has the same result
	c.refused(409, "", request{route: signalRoute, s: "s", p: "plain", body: `{"signal":"SIGCONT"}`})
	const remove = "DELETE /v1/sessions/{id}/processes/{p}"
	c.gets(204, request{route: remove, s: "s", p: full.p})
	for path, item := range c.doc.Paths.Map() {
		if !strings.Contains(path, "{p}") {
			continue
		}
		for method := range item.Operations() {
			a := request{route: method + " " + path, s: "s", p: "none"}
			switch {
			case a.route == startRoute:
				a.s, a.body = "none", `{"argv":["true"]}`
			case strings.HasSuffix(path, "/signal"):
				a.body = `{"signal":"SIGHUP"}`
			case strings.HasSuffix(path, "/resize"):
				a.body = `{"rows":1,"cols":1}`
			case strings.HasSuffix(path, "/stdio"):
				a.head = http.Header{"Connection": {"Upgrade"}, "Upgrade": {api.StdioProtocol}}
			}
			c.refused(404, "", a)
		}
	}
	c.refused(404, "", request{route: "GET /v1/sessions/{id}/processes", s: "none"})
}

func (c *contract) logs() {
	c.gets(201, request{route: startRoute, s: "s", p: "writer", body: `{"command":"echo out; echo err >&2; printf '\\377\\n'"}`})
	c.ended("writer")
	text := c.gets(200, request{route: logsRoute, s: "s", p: "writer", query: "follow=true&timestamps=true&stream=stdout&lines=1"})
	if !bytes.HasSuffix(text.Body, []byte("Z \xff\n")) || !strings.HasPrefix(text.Header.Get("Content-Type"), "text/plain") {
		c.t.Errorf(`%v: text.Body = %q, want bytes.HasSuffix(text.Body, []byte("Z \xff\n")) and text.Header.Get("Content-Type") starting with "text/plain"`,
			text.Header, text.Body)
	}
	lines := c.gets(200, request{route: logsRoute, s: "s", p: "writer", query: "format=ndjson&tail=64KiB"})
	if all := c.gets(200, request{route: logsRoute, s: "s", p: "writer", query: "lines=9&since=2020-01-01T00:00:00Z"}); len(all.Body) == 0 {
		c.t.Error("nothing was written since 2020")
	}
	if n := c.lines("LogLine", lines.Body); n < 2 || lines.Header.Get("Content-Type") != "application/x-ndjson" {
		c.t.Errorf("%d lines in %q, %v", n, lines.Body, lines.Header)
	}
	events := c.gets(200, request{route: logsRoute, s: "s", p: "writer", query: "format=sse&follow=true"})
	last := c.events(events)
	c.gets(204, request{route: logsRoute, s: "s", p: "writer", query: "format=sse&follow=true", head: http.Header{"Last-Event-Id": {last}}})
	for query, field := range map[string]string{"stdout=1000": "stdout", "tail=10&lines=1": "query", "tail=64KiB&stdout=1": "query", "since=2026-11-21T09:30:00Z&tail=1": "query"} {
		c.refused(400, field, request{route: logsRoute, s: "s", p: "writer", query: query})
	}
	for query, field := range map[string]string{
		"format=xml": "format", "lines=-1": "lines", "lines=10001": "lines", "stream=stdin": "stream", "follow=yes": "follow", "timestamps=1": "timestamps", "stderr=-1": "stderr",
		"tail=much": "tail", "since=10m": "since",
	} {
		c.refused(400, field, request{route: logsRoute, s: "s", p: "writer", query: query, odd: true})
	}
	c.refused(400, "Last-Event-ID", request{route: logsRoute, s: "s", p: "writer", query: "format=sse", head: http.Header{"Last-Event-Id": {"x"}}, odd: true})
}

// events checks a response of events against the description, and returns the id of the last.
func (c *contract) events(a boxtest.Answer) (id string) {
	c.t.Helper()
	text := string(a.Body)
	if a.Header.Get("Content-Type") != "text/event-stream" || !strings.HasSuffix(text, "data: {}\n\n") {
		c.t.Errorf(`%v: text = %q, want a.Header.Get("Content-Type") == "text/event-stream" and text ending with "data: {}\n\n"`,
			a.Header, text)
	}
	for event := range strings.SplitSeq(strings.TrimSuffix(text, "\n\n"), "\n\n") {
		fields := map[string]string{}
		for line := range strings.SplitSeq(event, "\n") {
			name, value, _ := strings.Cut(line, ": ")
			fields[name] = value
		}
		if id = fields["id"]; id == "" {
			c.t.Errorf(`an event without an id: event = %q, want id != ""`, event)
		}
		if fields["event"] != "end" {
			c.is("LogLine", []byte(fields["data"]))
		}
	}
	return id
}

func (c *contract) stdio() {
	up := http.Header{"Connection": {"Upgrade"}, "Upgrade": {api.StdioProtocol}}
	c.gets(201, request{route: startRoute, s: "s", p: "direct", body: `{"argv":["cat"],"stdio":"direct"}`})
	c.refused(400, "Upgrade", request{route: stdioRoute, s: "s", p: "direct", odd: true})
	c.refused(400, "Upgrade", request{route: stdioRoute, s: "s", p: "direct", head: http.Header{"Connection": {"Upgrade"}, "Upgrade": {"h2c"}}, odd: true})
	if got := c.gets(101, request{route: stdioRoute, s: "s", p: "direct", head: up}); got.Header.Get("Upgrade") != api.StdioProtocol {
		c.t.Errorf(`got.Header = %v, want got.Header.Get("Upgrade") == api.StdioProtocol`, got.Header)
	}
	c.refused(409, "", request{route: stdioRoute, s: "s", p: "direct", head: up}) // the descriptors are passed only once
	c.refused(409, "", request{route: logsRoute, s: "s", p: "direct"})
	c.refused(409, "", request{route: processStream, s: "s", p: "direct"})
}

// ports tests connections to ports of a box.
func (c *contract) ports() {
	const route = "GET /v1/sessions/{id}/ports/{port}/stream"
	up := http.Header{"Connection": {"Upgrade"}, "Upgrade": {api.PortProtocol}}
	c.refused(400, "Upgrade", request{route: route, s: "s", p: "8000", odd: true})
	c.refused(400, "Upgrade", request{route: route, s: "s", p: "8000", head: http.Header{"Connection": {"Upgrade"}, "Upgrade": {"websocket"}}, odd: true})
	for _, port := range []string{"0", "65536", "http", "-1"} {
		c.refused(400, "port", request{route: route, s: "s", p: port, head: up, odd: true})
	}
	c.refused(404, "", request{route: route, s: "none", p: "8000", head: up})
	c.refused(404, "", request{route: route, s: "s", p: "8000", head: up, uid: boxtest.OtherUID}) // a foreign session is like a missing one
	c.refused(409, "", request{route: route, s: "s", p: "1", head: up})
	c.gets(201, request{route: startRoute, s: "s", p: "listener", body: `{"argv":["python3","-c","import socket; l = socket.socket(); l.bind(('127.0.0.1', 8000)); l.listen(); [l.accept()[0].close() for i in range(9)]"],"ready":{"port":8000}}`})
	boxtest.Eventually(c.t, "the process listens on its port", func() bool {
		var p api.Process
		c.reads(c.gets(200, request{route: getRoute, s: "s", p: "listener"}), &p)
		return p.Ready
	})
	if got := c.gets(101, request{route: route, s: "s", p: "8000", head: up}); got.Header.Get("Upgrade") != api.PortProtocol {
		c.t.Errorf(`got.Header = %v, want got.Header.Get("Upgrade") == api.PortProtocol`, got.Header)
	}
	c.gets(204, request{route: "DELETE /v1/sessions/{id}/processes/{p}", s: "s", p: "listener"})
	const tokens = "POST /v1/sessions/{id}/ports/{port}/token"
	c.gets(201, request{route: tokens, s: "s", p: "8000", body: `{}`})
	c.gets(201, request{route: tokens, s: "s", p: "8000", body: `{"lifetime":"1s"}`})
	for _, life := range []string{"0s", "61m"} {
		c.refused(400, "lifetime", request{route: tokens, s: "s", p: "8000", body: `{"lifetime":"` + life + `"}`})
	}
	c.refused(400, "lifetime", request{route: tokens, s: "s", p: "8000", body: `{"lifetime":"soon"}`, odd: true})
	c.refused(400, "port", request{route: tokens, s: "s", p: "0", body: `{}`, odd: true})
	c.refused(404, "", request{route: tokens, s: "none", p: "8000", body: `{}`})
	c.refused(404, "", request{route: tokens, s: "s", p: "8000", body: `{}`, uid: boxtest.OtherUID})
	c.refused(403, "owner", request{route: tokens, s: "s", p: "8000", query: "owner=uid%3A0", body: `{}`, uid: boxtest.OtherUID})
}
