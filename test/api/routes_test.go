// SPDX-License-Identifier: Apache-2.0

package api_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
)

// profile is a profile that locks a limit.
const profile = "[profiles.fixed]\nlocked = [\"memory\"]\n"

// Every route is called for every answer that the description has, with valid and invalid requests, and all of it matches the
// description: the request, unless it is invalid by intent, the status, the headers and the body.
func TestEveryAnswerIsAsDescribed(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	c := begin(t, seen, profile+boxtest.MountSources)
	c.daemon()
	c.grants()
	c.observing()
	c.sessions()
	c.life()
	c.changes()
	c.stops()
	c.snapshots()
	c.executions()
	c.files()
	c.mounts()
	c.skills()
	c.spaces()
	c.drives()
	c.images()
	c.oneShots()
	c.processes()
	c.logs()
	c.streams()
	c.stdio()
	c.ports()
	c.mcp()
	small := begin(t, seen, "[images]\nmax = 1\n[skills]\nmax = 1\n[drives]\nmax = 0\n[sessions]\nmax = 2\nmax_workspaces = 0\nmax_snapshots = 0\n[exec]\nmax_per_session = 1\n[processes]\nmax = 1\n")
	small.limits()
	small.fewSkills()
	small.fewSpaces()
	small.fewSnapshots()
	small.fewDrives()
	small.fewImages()
	boxtest.OneDay(t)
	begin(t, seen, bounded).policies()
	snapshotsElsewhere(t, seen)
	// Answers that depend on whether the kernel enforces limits here. The same test runs on hosts of both kinds.
	without := []string{
		"PATCH /v1/sessions/{id} 409", "POST /v1/sessions/{id}/freeze 200", "POST /v1/sessions/{id}/thaw 200",
	}
	if boxtest.Grouped() {
		without = []string{
			"PATCH /v1/sessions/{id} 501", "POST /v1/sessions/{id}/exec 501", "POST /v1/sessions/{id}/freeze 501", "POST /v1/sessions/{id}/thaw 501",
			"PUT /v1/sessions/{id}/processes/{p} 501",
		}
	}
	for _, name := range without {
		if seen[name] {
			t.Errorf("%s has been seen, although this host has control groups: %v", name, boxtest.Grouped())
		}
		seen[name] = true
	}
	if list := c.missing(); len(list) > 0 {
		t.Errorf("described, and never seen:\n%s", strings.Join(list, "\n"))
	}
}

// instructions tests the instructions for a model.
func (c *contract) instructions(id string) {
	const planned, living = "GET /v1/instructions", "GET /v1/sessions/{id}/instructions"
	var usual, other, its api.Instructions
	c.reads(c.gets(200, request{route: planned, uid: boxtest.OtherUID}), &usual)
	c.reads(c.gets(200, request{route: planned, query: "profile=offline_readonly"}), &other)
	if usual.Session != "" || usual.Profile != "default" || other.Profile != "offline_readonly" || usual.Instructions == other.Instructions {
		c.t.Errorf(`usual = %+v, other = %+v, want usual.Session == "" and usual.Profile == "default" and other.Profile == "offline_readonly" and usual.Instructions != %v`,
			usual, other, other.Instructions)
	}
	c.reads(c.gets(200, request{route: living, s: id}), &its)
	if its.Session != id || !strings.Contains(its.Instructions, "256MiB memory") || !strings.Contains(its.Instructions, "the box "+strconv.Quote(id)) {
		c.t.Errorf(`its = %+v, want its.Session == %v and its.Instructions containing "256MiB memory" and its.Instructions containing "the box " + strconv.Quote(id)`,
			its, id)
	}
	c.refused(400, "profile", request{route: planned, query: "profile=none-such"})
	c.refused(404, "", request{route: living, s: id, uid: boxtest.OtherUID})
	c.refused(404, "", request{route: living, s: "none"})
}

// grants tests temporary roles.
func (c *contract) grants() {
	const give = "POST /v1/grants"
	var list api.GrantList
	c.reads(c.gets(200, request{route: "GET /v1/grants"}), &list)
	if len(list.Grants) != 0 {
		c.t.Errorf("list = %+v, want len(list.Grants) == 0", list)
	}
	var g api.Grant
	c.reads(c.gets(201, request{route: give, body: `{"principal":"uid:4242","role":"operator","for":"1h"}`}), &g)
	if g.Principal != "uid:4242" || g.Role != "operator" || g.By != "uid:0" || g.Until.Sub(g.CreatedAt) != time.Hour {
		c.t.Errorf(`g = %+v, want g.Principal == "uid:4242" and g.Role == "operator" and g.By == "uid:0" and g.Until.Sub(g.CreatedAt) == time.Hour`,
			g)
	}
	c.refused(400, "role", request{route: give, body: `{"principal":"uid:4242","role":"none","for":"1h"}`, odd: true})
	c.refused(400, "for", request{route: give, body: `{"principal":"uid:4242","role":"admin","for":"169h"}`})
	c.refused(400, "principal", request{route: give, body: `{"principal":"alcie","role":"admin","for":"1h"}`})
	for _, a := range []request{{route: "GET /v1/grants"}, {route: give, body: `{"principal":"uid:4242","role":"admin","for":"1h"}`}, {route: "DELETE /v1/grants/{principal}", p: "uid:4242"}} {
		a.uid = boxtest.OtherUID // now an operator, but no admin
		if p := c.refused(403, "role", a); p.By != "uid:4242" || p.Denial == nil || p.Denial.Rule != "grant" || p.Value != "operator" {
			c.t.Errorf(`p = %+v, want p.By == "uid:4242" and p.Denial != nil and p.Denial.Rule == "grant" and p.Value == "operator"`,
				p)
		}
	}
	c.gets(204, request{route: "DELETE /v1/grants/{principal}", p: "uid:4242"})
	c.refused(404, "", request{route: "DELETE /v1/grants/{principal}", p: "uid:4242"})
}

// daemon tests routes that concern no session.
func (c *contract) daemon() {
	for _, route := range []string{"GET /healthz", "GET /readyz", "GET /v1/openapi.json", "GET /v1/status", "GET /v1/profiles", "GET /v1/doctor"} {
		c.gets(200, request{route: route, uid: boxtest.OtherUID})
		c.refused(400, "query", request{route: route, query: "nonsense=1"})
	}
	c.gets(200, request{route: "GET /v1/config"})
	c.refused(400, "query", request{route: "GET /v1/config", query: "nonsense=1"})
	c.refused(403, "role", request{route: "GET /v1/config", uid: boxtest.OtherUID})
	// Requests that no route describes.
	for _, tc := range []struct {
		method, path, field string
		status              int
	}{
		{"DELETE", "/healthz", "method", 405}, {"PUT", "/v1/sessions", "method", 405}, {"GET", "/v2/sessions", "", 404}, {"GET", "/", "", 404},
	} {
		req, err := http.NewRequestWithContext(c.t.Context(), tc.method, "http://boxd"+tc.path, nil)
		if err != nil {
			c.t.Fatal(err)
		}
		got := c.exchange(req, 0)
		c.problem(tc.status, tc.field, got)
		c.is("Problem", got.Body)
		if allow := got.Header.Get("Allow"); (allow != "") != (tc.status == 405) {
			c.t.Errorf(`%s %s: Allow is %q, want (allow != "") == (tc.status == 405)`, tc.method, tc.path, allow)
		}
	}
	head := c.request(request{route: "GET /v1/status"})
	head.Method = http.MethodHead
	if got := c.exchange(head, 0); got.Code != 200 || len(got.Body) > 0 {
		c.t.Errorf("HEAD: got.Code = %d, got.Body = %q, want got.Code == 200 and len(got.Body) == 0",
			got.Code, got.Body)
	}
}

// observing tests events, metrics and audit.
func (c *contract) observing() {
	c.gets(200, request{route: "GET /metrics", uid: boxtest.OtherUID})
	c.refused(400, "query", request{route: "GET /metrics", query: "nonsense=1"})
	const happened = "GET /v1/events"
	got := c.gets(200, request{route: happened, query: "follow=false"})
	types := 0
	for line := range strings.Lines(string(got.Body)) {
		if data, ok := strings.CutPrefix(line, "data: "); ok {
			c.is("Event", []byte(data))
			types++
		}
	}
	if types == 0 || !strings.Contains(string(got.Body), "event: daemon.started\n") {
		c.t.Errorf(`events: got.Body = %s, want types != 0 and got.Body containing "event: daemon.started\n"`, got.Body)
	}
	if got := c.gets(200, request{route: happened, query: "follow=false", uid: boxtest.OtherUID}); strings.Contains(string(got.Body), "daemon.started") {
		c.t.Errorf(`a user sees events of others: got.Body = %s, want got.Body without "daemon.started"`, got.Body)
	}
	got = c.gets(200, request{route: happened, query: "follow=false&after=aaaaaaaaaaaa-7"})
	if _, gap, ok := strings.Cut(string(got.Body), "event: gap\ndata: "); !ok {
		c.t.Errorf("after an event of another boxd: got.Body = %s, want ok == true", got.Body)
	} else {
		gap, _, _ = strings.Cut(gap, "\n")
		c.is("Event", []byte(gap))
	}
	c.refused(400, "after", request{route: happened, query: "after=soon"})
	c.refused(400, "after", request{route: happened, head: http.Header{"Last-Event-Id": {"7"}}})
	c.refused(400, "type", request{route: happened, query: "type=denied,nonsense"})
	c.refused(400, "follow", request{route: happened, query: "follow=maybe", odd: true})
	c.refused(403, "owner", request{route: happened, query: "owner=uid%3A0", uid: boxtest.OtherUID})
	const wrong = "GET /v1/errors"
	boxtest.Eventually(c.t, "the refused request is in the list of errors", func() bool {
		return strings.Contains(string(c.gets(200, request{route: wrong, uid: boxtest.OtherUID}).Body), `"route":"GET /v1/events","status":403`)
	})
	c.refused(403, "owner", request{route: wrong, query: "owner=uid%3A0", uid: boxtest.OtherUID})
	const who = "GET /v1/audit"
	if got := c.gets(200, request{route: who, query: "n=1"}); !strings.Contains(string(got.Body), `"outcome":"`) {
		c.t.Errorf("audit: got.Body = %s, want got.Body containing `\"outcome\":\"`", got.Body)
	}
	c.refused(400, "n", request{route: who, query: "n=0", odd: true})
	c.refused(403, "role", request{route: who, uid: boxtest.OtherUID})
}

// is checks JSON against a schema of the description.
func (c *contract) is(schema string, data []byte) {
	c.t.Helper()
	var v any
	if err := json.Unmarshal(data, &v); err != nil {
		c.t.Fatalf("%s: %v", data, err)
	}
	if err := c.doc.Components.Schemas[schema].Value.VisitJSON(v, openapi3.EnableJSONSchema2020(), openapi3.MultiErrors()); err != nil {
		c.t.Errorf("%s is no %s: %v", data, schema, err)
	}
}

func (c *contract) sessions() {
	const route = "POST /v1/sessions"
	const id = "a/b %2f ü"
	made := request{
		route: route, body: `{"id":"a/b %2f ü","memory":"256MiB","ttl":"1h","max_lifetime":3600,"env":{"TOKEN":"secret"},"labels":{"task":"17"},` +
			`"mounts":[{"source":"/nowhere","target":"/data","mode":"none"}]}`,
	}
	c.gets(201, made)
	if got := c.gets(200, made); bytes.Contains(got.Body, []byte("secret")) {
		c.t.Errorf(`the answer has the value of a variable: got.Body = %s, want got.Body without []byte("secret")`,
			got.Body)
	}
	c.gets(201, request{route: route, body: `{"id":"fixed","profile":"fixed"}`})
	c.instructions(id)
	c.refused(409, "memory, ttl", request{route: route, body: `{"id":"a/b %2f ü","memory":"64MiB","ttl":"2h"}`})
	c.refused(409, "env", request{route: route, body: `{"id":"a/b %2f ü","env":{"TOKEN":"other"}}`})
	c.refused(403, "memory", request{route: route, body: `{"profile":"fixed","memory":"64MiB"}`})
	c.refused(501, "workspace_quota", request{route: route, body: `{"mounts":[{"source":"/srv","target":"/workspace"}],"workspace_quota":"1GiB"}`})
	c.refused(403, "network", request{route: route, body: `{"network":"host"}`})
	for body, field := range map[string]string{
		`{"memory":"1KiB"}`: "memory", `{"cpus":0}`: "cpus", `{"pids":0}`: "pids", `{"tmp":"1B"}`: "tmp", `{"profile":"none"}`: "profile", `{"id":"\u0007"}`: "id",
		`{"cpu_weight":0}`: "cpu_weight", `{"env":{"A=B":""}}`: "env", `{"mounts":[{"source":"","target":"/x"}]}`: "mounts[0].source",
		`{"mounts":[{"source":"/home","target":"x"}]}`: "mounts[0].target", `{"image":"debian"}`: "image",
	} {
		c.refused(400, field, request{route: route, body: body})
	}
	for body, field := range map[string]string{
		`{"colour":"red"}`: "colour", `{"memory":true}`: "memory", `{"memory":"64 MB"}`: "memory", `{"ttl":"soon"}`: "ttl", `{"cpus":"1"}`: "cpus", `{"oom":"nobody"}`: "oom",
		`{"mounts":[{"source":"/x","target":"/y","colour":"red"}]}`: "mounts[0].colour", `{"mounts":[{"target":"/x"}]}`: "mounts[0].source",
		`{"mounts":[{"source":"/home"}]}`: "mounts[0].target", `{"env":{"A":1}}`: "env.A", `[]`: "body", `{"network":"on"}`: "network", `{`: "body",
	} {
		c.refused(400, field, request{route: route, body: body, odd: true})
	}
	var s api.Session
	c.reads(c.gets(201, request{route: route, body: "{}", uid: boxtest.OtherUID}), &s)

	const list = "GET /v1/sessions"
	c.gets(200, request{route: list})
	c.gets(200, request{route: list, query: "all=true"})
	c.refused(403, "all", request{route: list, query: "all=true", uid: boxtest.OtherUID})
	c.refused(400, "all", request{route: list, query: "all=maybe", odd: true})

	const one = "GET /v1/sessions/{id}"
	c.gets(200, request{route: one, s: id})
	c.gets(200, request{route: one, s: s.ID, query: "owner=uid:4242"})
	c.refused(404, "", request{route: one, s: s.ID})
	c.refused(404, "", request{route: one, s: id, uid: boxtest.OtherUID})
	c.refused(403, "owner", request{route: one, s: id, query: "owner=uid:0", uid: boxtest.OtherUID})

	const history = "GET /v1/sessions/{id}/usage/history"
	var used api.UsageHistory
	if c.reads(c.gets(200, request{route: history, s: id}), &used); used.Interval.String() != "5s" || used.Kept.String() != "1h" || used.Samples == nil {
		c.t.Errorf(`used = %+v, want used.Interval.String() == "5s" and used.Kept.String() == "1h" and used.Samples != nil`,
			used)
	}
	c.gets(200, request{route: history, s: id, query: "after=2026-11-21T09:30:00Z"})
	c.refused(400, "after", request{route: history, s: id, query: "after=yesterday", odd: true})
	c.refused(404, "", request{route: history, s: id, uid: boxtest.OtherUID})

	const remove = "DELETE /v1/sessions/{id}"
	c.gets(204, request{route: remove, s: s.ID, query: "owner=uid:4242"})
	c.refused(404, "", request{route: remove, s: s.ID, query: "owner=uid:4242"})
	c.gets(204, request{route: remove, s: id})
	c.gets(201, request{route: route, body: `{"id":"s"}`})
}

// life tests the life cycle of sessions.
func (c *contract) life() {
	const drain, undrain = "POST /v1/drain", "DELETE /v1/drain"
	c.gets(200, request{route: drain, body: `{"reason":"new disk"}`})
	c.gets(200, request{route: drain})
	c.refused(503, "", request{route: "GET /readyz"})
	c.refused(503, "", request{route: "POST /v1/sessions", body: `{}`})
	c.gets(200, request{route: "GET /v1/status"})
	c.refused(400, "reason", request{route: drain, body: `{"reason":"` + strings.Repeat("x", 257) + `"}`, odd: true})
	c.refused(400, "colour", request{route: drain, body: `{"colour":"red"}`, odd: true})
	c.refused(403, "role", request{route: drain, uid: boxtest.OtherUID})
	c.refused(403, "role", request{route: undrain, uid: boxtest.OtherUID})
	for range 2 { // has the same result
		c.gets(204, request{route: undrain})
	}
	c.gets(200, request{route: "POST /v1/sessions/{id}/renew", s: "s"})
	c.refused(404, "", request{route: "POST /v1/sessions/{id}/renew", s: "none"})
}

func (c *contract) changes() {
	const change = "PATCH /v1/sessions/{id}"
	c.gets(200, request{route: change, s: "s", body: `{"ttl":"2h","labels":{"task":"18"}}`})
	c.refused(400, "memory", request{route: change, s: "s", body: `{"memory":1}`})
	c.refused(400, "id", request{route: change, s: "s", body: `{"id":"t"}`, odd: true})
	c.refused(403, "memory", request{route: change, s: "fixed", body: `{"memory":"64MiB"}`})
	c.refused(404, "", request{route: change, s: "none", body: `{}`})
	c.refused(400, "network_rules", request{route: change, s: "s", body: `{"network_rules":[]}`}) // it has no network
	c.refused(404, "", request{route: change, s: "none", body: `{"network_rules":["example.org"]}`})
	const freeze, thaw = "POST /v1/sessions/{id}/freeze", "POST /v1/sessions/{id}/thaw"
	c.refused(404, "", request{route: freeze, s: "none"})
	c.refused(404, "", request{route: thaw, s: "none"})
	if !boxtest.Grouped() {
		c.refused(501, "", request{route: change, s: "s", body: `{"memory":"64MiB"}`})
		c.refused(501, "", request{route: freeze, s: "s"})
		c.refused(501, "", request{route: thaw, s: "s"})
		return
	}
	c.gets(200, request{route: change, s: "s", body: `{"memory":"256MiB","cpus":0.5,"pids":100}`})
	for range 2 { // has the same result
		c.gets(200, request{route: freeze, s: "s"})
	}
	c.refused(409, "", request{route: "POST /v1/sessions/{id}/exec", s: "s", body: `{"argv":["true"]}`})
	c.gets(200, request{route: thaw, s: "s"})
	c.gets(201, request{route: "POST /v1/sessions", body: `{"id":"full","tmp":"128MiB"}`})
	c.gets(200, request{route: "POST /v1/sessions/{id}/exec", s: "full", body: `{"command":"head -c 100M /dev/zero > /tmp/f"}`})
	c.refused(409, "memory", request{route: change, s: "full", body: `{"memory":"32MiB"}`})
}

// stops stops a session and starts it again.
func (c *contract) stops() {
	const stop, start = "POST /v1/sessions/{id}/stop", "POST /v1/sessions/{id}/start"
	c.gets(201, request{route: "POST /v1/sessions", body: `{"id":"rests","home_on_disk":true}`})
	var s api.Session
	for range 2 { // has the same result
		c.reads(c.gets(200, request{route: stop, s: "rests"}), &s)
		if s.State != "stopped" || s.StoppedAt == nil || !s.HomeOnDisk {
			c.t.Errorf(`s = %+v, want s.State == "stopped" and s.StoppedAt != nil and s.HomeOnDisk == true`, s)
		}
	}
	c.gets(200, request{route: "GET /v1/sessions/{id}", s: "rests"})
	c.refused(409, "", request{route: "POST /v1/sessions/{id}/exec", s: "rests", body: `{"argv":["true"]}`})
	c.refused(404, "", request{route: stop, s: "none"})
	c.refused(404, "", request{route: start, s: "none"})
	c.refused(404, "", request{route: start, s: "rests", uid: boxtest.OtherUID})
	c.refused(400, "wait", request{route: start, s: "rests", body: `{"wait":"soon"}`, odd: true})
	c.gets(200, request{route: start, s: "rests", body: `{"wait":"1s"}`})
	c.reads(c.gets(200, request{route: start, s: "rests"}), &s)
	if s.State != "ready" {
		c.t.Errorf(`s = %+v, want s.State == "ready"`, s)
	}
	c.gets(204, request{route: "DELETE /v1/sessions/{id}", s: "rests"})
}

func (c *contract) executions() {
	const exec = "POST /v1/sessions/{id}/exec"
	runs := func(status, body string) (r api.ExecResult) {
		c.t.Helper()
		c.reads(c.gets(200, request{route: exec, s: "s", body: body}), &r)
		if r.Status != status {
			c.t.Errorf("%s: %s, want %s", body, r.Status, status)
		}
		return r
	}
	runs("exited", `{"argv":["sh","-c","cat; echo e >&2; exit 3"],"stdin":"b3V0","stdin_encoding":"base64","env":{"A":"1"},"cwd":"/workspace/new"}`)
	runs("signaled", `{"command":"kill -9 $$"}`)
	runs("exited", `{"code":"sleep 100 & echo left","language":"sh"}`)
	if r := runs("timed_out", `{"argv":["sleep","100"],"timeout":0.2}`); r.Timeout.String() != "200ms" {
		c.t.Errorf(`timeout is %v, want r.Timeout.String() == "200ms"`, r.Timeout)
	}
	if r := runs("start_failed", `{"argv":["nosuch"],"timeout":"10h"}`); r.Failure == nil || len(r.Clamped) != 1 {
		c.t.Errorf("r = %+v, want r.Failure != nil and len(r.Clamped) == 1", r)
	}
	if r := runs("exited", `{"command":"seq 100000","output_limit":"4KiB","encoding":"base64"}`); r.Output[0].Omitted == 0 {
		c.t.Errorf("r.Output = %+v, want r.Output[0].Omitted != 0", r.Output)
	}
	if r := runs("exited", `{"command":"echo 1 >made","changes":true,"changes_with":{"include":["made"],"exclude":[".git"],"max_size":"1MiB","limit":10,"digest":true}}`); r.Changes == nil || r.Changes.Counts.Created != 1 {
		c.t.Errorf("r.Changes = %+v, want r.Changes != nil and r.Changes.Counts.Created == 1", r.Changes)
	}
	runs("exited", `{"command":"mv made renamed; echo 2 >>renamed","changes":true}`)
	for body, field := range map[string]string{
		`{"argv":["true"],"changes":true,"changes_with":{"limit":-1}}`: "changes_with.limit", `{"argv":["true"],"changes_with":{}}`: "changes_with",
		`{"argv":["true"],"changes":true,"id":"x","detach":true}`: "changes", `{"argv":["true"],"changes":true,"changes_with":{"exclude":["{"]}}`: "pattern",
		`{"argv":[]}`: "argv", `{"command":" "}`: "command", `{"code":"x","language":"cobol"}`: "language", `{"code":"x"}`: "language", `{"argv":["true"],"cwd":"up"}`: "cwd",
		`{"argv":["true"],"timeout":"0s"}`: "timeout", `{"argv":["true"],"output_limit":"1TiB"}`: "output_limit", `{"argv":["true"],"detach":true}`: "detach",
		`{"argv":["true"],"stdin":"?","stdin_encoding":"base64"}`: "stdin", `{"argv":["true"],"id":"\u0007"}`: "id",
	} {
		c.refused(400, field, request{route: exec, s: "s", body: body})
	}
	for body, field := range map[string]string{
		`{}`: "argv, command, code", `{"argv":["true"],"command":"true"}`: "argv, command, code", `{"argv":"true"}`: "argv", `{"argv":[1]}`: "argv[0]", `{"argv":["true"],"encoding":"hex"}`: "encoding",
		`{"argv":["true"],"shell":true}`: "shell",
	} {
		c.refused(400, field, request{route: exec, s: "s", body: body, odd: true})
	}
	c.refused(404, "", request{route: exec, s: "none", body: `{"argv":["true"]}`})
	if !boxtest.Grouped() {
		c.refused(501, "memory", request{route: exec, s: "s", body: `{"argv":["true"],"memory":"64MiB"}`})
	}
	report := request{route: exec, s: "s", body: `{"id":"report/17","command":"echo once >> count; cat count; until [ -e read ]; do sleep 0.02; done","detach":true}`}
	var p api.Process
	if c.reads(c.gets(202, report), &p); p.ID != "report/17" || p.State == "ended" {
		c.t.Errorf(`p = %+v, want p.ID == "report/17" and p.State != "ended"`, p)
	}
	c.refused(409, "command", request{route: exec, s: "s", body: `{"id":"report/17","command":"echo other"}`})
	report.body = strings.ReplaceAll(report.body, `,"detach":true`, "")
	c.gets(200, request{route: exec, s: "s", body: `{"argv":["touch","read"]}`})
	for range 2 {
		var r api.ExecResult
		if c.reads(c.gets(200, report), &r); r.Stdout != "once\n" {
			c.t.Errorf(`it ran twice, or not at all: r.Stdout = %q, want "once\n"`, r.Stdout)
		}
	}
	c.gets(200, request{route: "GET /v1/sessions/{id}/processes/{p}", s: "s", p: "report/17"})
}

func (c *contract) oneShots() {
	const run = "POST /v1/exec"
	c.gets(200, request{route: run, body: `{"session":{"memory":"64MiB"},"exec":{"argv":["true"]}}`})
	c.gets(200, request{route: run, body: `{"exec":{"argv":["true"]}}`, uid: boxtest.OtherUID})
	c.refused(400, "exec.id", request{route: run, body: `{"exec":{"argv":["true"],"id":"x"}}`})
	c.refused(400, "timeout", request{route: run, body: `{"exec":{"argv":["true"],"timeout":0}}`})
	c.refused(400, "argv, command, code", request{route: run, body: `{"session":{}}`, odd: true})
	c.refused(400, "exec.shell", request{route: run, body: `{"exec":{"argv":["true"],"shell":1}}`, odd: true})
	c.refused(403, "memory", request{route: run, body: `{"session":{"profile":"fixed","memory":"64MiB"},"exec":{"argv":["true"]}}`})
	c.refused(409, "", request{route: run, body: `{"session":{"id":"s"},"exec":{"argv":["true"]}}`})
	c.refused(501, "workspace_quota", request{route: run, body: `{"session":{"mounts":[{"source":"/srv","target":"/workspace"}],"workspace_quota":"1GiB"},"exec":{"argv":["true"]}}`})
}

// limits tests a boxd that is full.
func (c *contract) limits() {
	c.gets(201, request{route: "POST /v1/sessions", body: `{"id":"s"}`})
	c.gets(201, request{route: "PUT /v1/sessions/{id}/processes/{p}", s: "s", p: "one", body: `{"argv":["sleep","1000"]}`})
	c.gets(202, request{route: "POST /v1/sessions/{id}/exec", s: "s", body: `{"id":"long","argv":["sleep","100"],"detach":true}`})
	for _, full := range []request{
		{route: "PUT /v1/sessions/{id}/processes/{p}", s: "s", p: "two", body: `{"argv":["true"]}`},
		{route: "POST /v1/sessions/{id}/exec", s: "s", body: `{"argv":["true"]}`},
	} {
		if p := c.refused(429, "", full); p.Hint == "" {
			c.t.Errorf("%+v does not say what to do", p)
		}
	}
	c.gets(201, request{route: "POST /v1/sessions", body: `{"id":"rests"}`})
	c.gets(200, request{route: "POST /v1/sessions/{id}/stop", s: "rests"})
	c.gets(201, request{route: "POST /v1/sessions", body: `{"id":"t"}`})
	for _, full := range []request{{route: "POST /v1/sessions/{id}/start", s: "rests"}, {route: "POST /v1/sessions", body: `{}`}, {route: "POST /v1/exec", body: `{"exec":{"argv":["true"]}}`}} {
		if p := c.refused(429, "", full); p.Hint == "" {
			c.t.Errorf("%+v does not say what to do", p)
		}
	}
}

// lines checks every line of an answer against a schema, and returns their number.
func (c *contract) lines(schema string, body []byte) (n int) {
	c.t.Helper()
	for s := bufio.NewScanner(bytes.NewReader(body)); s.Scan(); n++ {
		c.is(schema, s.Bytes())
	}
	return n
}
