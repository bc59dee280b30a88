// SPDX-License-Identifier: Apache-2.0

package sessions_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/internal/hashchain"
	"github.com/boxd-dev/boxd/relay/api"
)

// answered is the status and head of an answer.
type answered struct {
	status int
	head   http.Header
}

// fetch makes a request to a boxd, with headers, and returns its answer.
func fetch(t *testing.T, d *boxtest.Daemon, method, path, body string, head map[string]string) (answered, string) {
	t.Helper()
	tr := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", d.Socket)
	}}
	defer tr.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://boxd"+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range head {
		req.Header.Set(name, value)
	}
	resp, err := tr.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answered{resp.StatusCode, resp.Header}, string(data)
}

// happened lists the events that a boxd reports.
func happened(t *testing.T, d *boxtest.Daemon, query string) (list []api.Event) {
	t.Helper()
	_, text := fetch(t, d, http.MethodGet, "/v1/events?follow=false"+query, "", nil)
	for line := range strings.Lines(text) {
		if data, ok := strings.CutPrefix(line, "data: "); ok {
			var e api.Event
			if err := json.Unmarshal([]byte(data), &e); err != nil {
				t.Fatal(err)
			}
			list = append(list, e)
		}
	}
	return list
}

func records(t *testing.T, d *boxtest.Daemon, query string) api.AuditList {
	t.Helper()
	_, text := fetch(t, d, http.MethodGet, "/v1/audit?"+query, "", nil)
	var list api.AuditList
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		t.Fatalf("err = %v, text = %v, want no error", err, text)
	}
	return list
}

const someTrace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

// The id of a request is in its answer, in the log, in events and in the audit log.
func TestARequestIsFoundAgainEverywhere(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, "[log]\nformat = \"json\"")
	named := map[string]string{"X-Request-Id": "mine-17", "Traceparent": someTrace}
	fetch(t, d, http.MethodPost, "/v1/sessions", `{"id":"s"}`, nil)
	resp, text := fetch(t, d, http.MethodPost, "/v1/sessions/s/exec", `{"argv":["sh","-c","exit 3"],"env":{"TOKEN":"hush"}}`, named)
	if resp.status != http.StatusOK || resp.head.Get("X-Request-Id") != "mine-17" {
		t.Fatalf(`resp = %v, text = %v, want resp.status == 200 and resp.head.Get("X-Request-Id") == "mine-17"`, resp, text)
	}
	if resp, _ := fetch(t, d, http.MethodGet, "/v1/sessions/none", "", map[string]string{"X-Request-Id": "not\tlegal"}); resp.head.Get("X-Request-Id") == "" || strings.Contains(resp.head.Get("X-Request-Id"), "legal") {
		t.Errorf("an id that is not legal is answered with %q", resp.head.Get("X-Request-Id"))
	}
	var types []string
	for _, e := range happened(t, d, "&session=s") {
		types = append(types, e.Type)
		if strings.HasPrefix(e.Type, "exec.") && (e.Request != "mine-17" || e.Parent != someTrace || e.Principal != "uid:0") {
			t.Errorf(`e = %+v, want e.Type not starting with "exec." or e.Request == "mine-17" and e.Parent == someTrace and e.Principal == "uid:0"`,
				e)
		}
	}
	if want := []string{"session.started", "exec.started", "exec.ended"}; !slices.Equal(types, want) {
		t.Errorf("%q has happened, want %q", types, want)
	}
	found := calls(records(t, d, "request=mine-17"))
	if len(found) != 1 {
		t.Fatalf("records: found = %+v, want len(found) == 1", found)
	}
	r := found[0]
	if r.Parent != someTrace || r.Session != "s" || r.Principal != "uid:0" || *r.UID != 0 || r.PID != os.Getpid() || r.Via != "socket" || r.Status != 200 || r.Outcome != "exited" ||
		r.Route != "POST /v1/sessions/{id}/exec" || !slices.Equal(r.What.Argv, []string{"sh", "-c", "exit 3"}) || !slices.Equal(r.What.Env, []string{"TOKEN"}) {
		t.Errorf("r = %+v, r.What = %+v", r, r.What)
	}
	if log := d.Log(); !strings.Contains(log, `"request":"mine-17"`) || !strings.Contains(log, `"traceparent":"`+someTrace) || strings.Contains(log, "hush") {
		t.Errorf("the log has %s, want log containing `\"request\":\"mine-17\"` and log containing `\"traceparent\":\"` + someTrace and log without \"hush\"",
			log)
	}
	for line := range strings.Lines(d.Log()) {
		if strings.HasPrefix(line, "{") && !json.Valid([]byte(line)) {
			t.Errorf(`no JSON: line = %s, want line not starting with "{" or json.Valid([]byte(line))`, line)
		}
	}
	files, err := filepath.Glob(filepath.Join(d.State, "audit", "*"))
	if err != nil || len(files) != 1 {
		t.Fatalf("files = %v, err = %v, want no error and len(files) == 1", files, err)
	}
	if data, err := os.ReadFile(files[0]); err != nil || strings.Contains(string(data), "hush") {
		t.Errorf(`%v; the audit log has the value of a variable: data = %s, want no error and data without "hush"`,
			err, data)
	}
}

// When the stop or removal of a session is answered, its event can be read already, after the events of what ended with it.
func TestAnEndHasHappenedWhenItIsAnswered(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	for i := range 10 {
		id := fmt.Sprintf("s%d", i)
		d.NewSession(t, api.SessionRequest{ID: id})
		method, path, last := http.MethodDelete, "/v1/sessions/"+id, "session.ended"
		if i%2 == 1 {
			method, path, last = http.MethodPost, path+"/stop", "session.stopped"
		}
		for _, call := range []struct{ method, path, body string }{
			{http.MethodPut, "/v1/sessions/" + id + "/processes/p", `{"argv":["sleep","60"]}`},
			{method, path, ""},
		} {
			if resp, text := fetch(t, d, call.method, call.path, call.body, nil); resp.status >= http.StatusBadRequest {
				t.Fatalf("call = %v, resp.status = %v, text = %v, want resp.status < 400", call, resp.status, text)
			}
		}
		var types []string
		for _, e := range happened(t, d, "&session="+id) {
			types = append(types, e.Type)
		}
		if want := []string{"session.started", "process.started", "process.ended", last}; !slices.Equal(types, want) {
			t.Errorf("%q has happened to %s, want %q", types, id, want)
		}
	}
}

// A refused call is in the audit log too, with the reason.
func TestEveryCallThatWouldChangeSomethingHasARecord(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, "[audit]\nargv = \"digest\"")
	for _, call := range []struct{ method, path, body, outcome, kind, session string }{
		{http.MethodPost, "/v1/sessions", `{"id":"s","memory":"64MiB"}`, "done", "", "s"},
		{http.MethodPost, "/v1/sessions", `{"id":"s","memory":"65MiB"}`, "failed", "conflict", "s"},
		{http.MethodPost, "/v1/sessions", `{`, "failed", "invalid", ""},
		{http.MethodPut, "/v1/sessions/s/processes/p", `{"argv":["sleep","60"]}`, "done", "", "s"},
		{http.MethodPost, "/v1/sessions/s/processes/p/signal", `{"signal":"SIGCONT"}`, "done", "", "s"},
		{http.MethodPost, "/v1/exec", `{"exec":{"argv":["sh","-c","kill -9 $$"]}}`, "signaled", "", ""},
		{http.MethodDelete, "/v1/sessions/s", "", "done", "", "s"},
		{http.MethodDelete, "/v1/sessions/s", "", "failed", "not_found", "s"},
	} {
		resp, text := fetch(t, d, call.method, call.path, call.body, nil)
		list := records(t, d, "n=1")
		r := list.Records[0]
		if !strings.HasPrefix(r.Route, call.method) || r.Status != resp.status || r.Outcome != call.outcome || r.Error != call.kind || call.session != "" && r.Session != call.session || r.Request != resp.head.Get("X-Request-Id") {
			t.Errorf("%s %s %s: %d %s; the record is %+v", call.method, call.path, call.body, resp.status, text, r)
		}
		if r.What != nil && (len(r.What.Argv) > 0 || (r.What.SHA256 != "") != (r.What.Argc > 0)) {
			t.Errorf(`of the command it has %+v, want r.What == nil or len(r.What.Argv) == 0 and (r.What.SHA256 != "") == (r.What.Argc > 0)`,
				r.What)
		}
	}
	fetch(t, d, http.MethodGet, "/v1/sessions", "", nil)
	list := records(t, d, "")
	if n := len(calls(list)); n != 9 {
		t.Errorf("%d records, want one for the start and one for each call", n)
	}
	place, err := hashchain.ParseLink(list.Head)
	if err != nil {
		t.Fatal(err)
	}
	report, err := hashchain.Verify(os.DirFS(filepath.Join(d.State, "audit")), &place)
	if err != nil || len(report.Problems) > 0 {
		t.Errorf("err = %v, report = %+v, want no error and len(report.Problems) == 0", err, report)
	}
}

// calls returns the records without those of calls that go on, of which there is one of each that takes longer than five seconds.
func calls(list api.AuditList) []api.AuditRecord {
	return slices.DeleteFunc(slices.Clone(list.Records), func(r api.AuditRecord) bool { return r.Kind == "running" })
}

// A call whose client disconnects is never recorded as done.
func TestACallThatIsCutOffIsNotDone(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.NewSession(t, api.SessionRequest{ID: "s"})
	d.Sh(t, "s", "head -c 64M /dev/urandom > big")
	for _, call := range []struct {
		name, body, outcome string
		status              int
	}{
		{"POST /v1/sessions/s/exec", `{"argv":["sleep","600"]}`, "canceled", http.StatusOK},
		{"POST /v1/sessions/s/archive", `{"paths":["big"]}`, "cut_off", 499},
	} {
		name, body := call.name, call.body
		method, path, _ := strings.Cut(name, " ")
		conn, err := net.Dial("unix", d.Socket)
		if err != nil {
			t.Fatal(err)
		}
		id := "cut-" + filepath.Base(path)
		if _, err := fmt.Fprintf(conn, "%s %s HTTP/1.1\r\nHost: boxd\r\nX-Request-Id: %s\r\nContent-Length: %d\r\n\r\n%s", method, path, id, len(body), body); err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(path, "archive") { // it has begun, and waits for the reader
			if _, err := conn.Read(make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
		} else {
			boxtest.Eventually(t, "the program runs", func() bool {
				s, err := d.Session(t.Context(), "s")
				return err == nil && s.Running > 0
			})
		}
		conn.Close()
		var list api.AuditList
		boxtest.Eventually(t, name+" has its audit record", func() bool {
			list = records(t, d, "request="+id)
			return len(list.Records) > 0 && list.Records[len(list.Records)-1].Kind == "call"
		})
		if r := list.Records[len(list.Records)-1]; r.Outcome != call.outcome || r.Status != call.status {
			t.Errorf("%s: r = %+v, want r.Outcome == %v and r.Status == %v", name, r, call.outcome, call.status)
		}
	}
}

// A client that reconnects after a restart is told that events may be missing, and the hash chain of the audit log continues.
func TestSeeingGoesOnOverAKill(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, boxtest.Lasting)
	fetch(t, d, http.MethodPost, "/v1/sessions", `{"id":"s"}`, nil)
	fetch(t, d, http.MethodPut, "/v1/sessions/s/processes/p", `{"argv":["sleep","600"]}`, nil)
	before := happened(t, d, "")
	place := before[len(before)-1].ID
	if more := happened(t, d, "&after="+place); len(more) != 0 {
		t.Errorf("events after the last one: %+v, want len(more) == 0", more)
	}
	if _, text := fetch(t, d, http.MethodGet, "/v1/events?follow=false&after=latest&type=session.adopted", "", nil); text != "id: "+place+"\n\n" { // where to resume without any event yet
		t.Errorf(`before the first event the stream has %q, want "id: " + place + "\n\n"`, text)
	}
	head := records(t, d, "n=1").Head
	d.Kill()
	d.Restart()
	after := happened(t, d, "&after="+place)
	var types []string
	for _, e := range after {
		types = append(types, e.Type)
	}
	if len(after) == 0 || after[0].Type != api.EventGap || after[0].Gap == nil || !after[0].Gap.Restarted || !slices.Contains(types, "session.adopted") || slices.Contains(types, "session.ended") {
		t.Errorf("after a kill: %+v", after)
	}
	expect, err := hashchain.ParseLink(head)
	if err != nil {
		t.Fatal(err)
	}
	report, err := hashchain.Verify(os.DirFS(filepath.Join(d.State, "audit")), &expect)
	if err != nil || len(report.Problems) > 0 || report.Records < 4 {
		t.Errorf("err = %v, report = %+v, want no error and len(report.Problems) == 0 and report.Records >= 4",
			err, report)
	}
	if _, text := fetch(t, d, http.MethodGet, "/metrics", "", nil); !strings.Contains(text, `boxd_sessions{profile="default",state="ready"} 1`) || !strings.Contains(text, `boxd_leaks{kind="box"} 0`) {
		t.Errorf("metrics: text = %s, want text containing `boxd_sessions{profile=\"default\",state=\"ready\"} 1` and text containing `boxd_leaks{kind=\"box\"} 0`",
			text)
	}
}
