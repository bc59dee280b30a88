// SPDX-License-Identifier: Apache-2.0

package abuse_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay"
	"github.com/boxd-dev/boxd/relay/api"
)

// A foreign process, a missing one and one of a missing session get the same answer on every route: the answers differ only in
// what the caller has sent.
func TestAForeignProcessIsLikeAMissingOne(t *testing.T) {
	t.Parallel()
	d := boxtest.Beside(t)
	d.NewSession(t, api.SessionRequest{ID: "s1"})
	d.NewProcess(t, "s1", "process-there", boxtest.ShellProcess("echo secret; sleep 1000"))
	a := d.AsUser(t, boxtest.OtherUID, boxtest.Request("POST", "/v1/sessions", `{"id":"mine"}`))
	if a[0].Code != http.StatusCreated {
		t.Fatalf("a[0].Body = %s, want a[0].Code == 201", a[0].Body)
	}
	tried := 0
	for _, pattern := range relay.Patterns() {
		method, path, _ := strings.Cut(pattern, " ")
		if !strings.Contains(path, "{p}") {
			continue
		}
		header := []string{}
		if strings.HasSuffix(path, "/stream") {
			header = boxtest.Upgrade()
		}
		for _, body := range []string{"", `{"argv":["true"]}`, `{"signal":"SIGKILL"}`, `{"rows":1,"cols":1}`, `{"nonsense":1}`, `{`} {
			want := http.StatusNotFound
			if method == "GET" && body != "" { // refused whatever it is about
				want = http.StatusBadRequest
			}
			list := []string{}
			for _, ids := range [][2]string{{"s1", "process-there"}, {"s1", "process-none"}, {"s0", "process-there"}} {
				list = append(list, boxtest.Request(method, strings.NewReplacer("{id}", ids[0], "{p}", ids[1]).Replace(path), body, header...))
			}
			if method != "PUT" { // it would create the process
				list = append(list, boxtest.Request(method, strings.NewReplacer("{id}", "mine", "{p}", "process-there").Replace(path), body, header...))
			}
			answers := d.AsUser(t, boxtest.OtherUID, list...)
			for i := range answers[:3] {
				answers[i].Header.Del("Date")
				answers[i].Header.Del("X-Request-Id") // each has its own
				answers[i].Body = []byte(strings.NewReplacer("s0", "s1", "process-none", "process-there").Replace(string(answers[i].Body)))
				answers[i].Header.Del("Content-Length")
				if answers[i].Code != want || answers[i].Problem(t).Title == "" {
					t.Errorf(`%s with %q: answers[i].Code = %d, answers[i].Body = %s, want answers[i].Code == %v and answers[i].Problem(t).Title != ""`,
						pattern, body, answers[i].Code, answers[i].Body, want)
				}
				if diff := cmp.Diff(answers[0], answers[i]); diff != "" {
					t.Errorf("%s with %q: the answers about an existing and a missing session differ (-existing +missing):\n%s", pattern, body, diff)
				}
			}
			if own := answers[len(answers)-1]; own.Code != want {
				t.Errorf("%s with %q in a session of their own: own.Code = %d, own.Body = %s, want own.Code == %v",
					pattern, body, own.Code, own.Body, want)
			}
			tried++
		}
	}
	if tried < 8*6 {
		t.Errorf("only %d requests were tried", tried)
	}
	if s, err := d.Process(t.Context(), "s1", "process-there", 0); err != nil || s.State != "running" || s.Readers != 0 {
		t.Errorf(`s = %+v, err = %v, want no error and s.State == "running" and s.Readers == 0`, s, err)
	}
}

// A client that attaches to an ended process gets all its output; one with invalid offsets is told which.
func TestAttachWhereThereIsNothing(t *testing.T) {
	t.Parallel()
	d := boxtest.Beside(t)
	d.NewSession(t, api.SessionRequest{ID: "s1"})
	if a := d.Raw(t, "GET", "/v1/sessions/s1/processes/none/stream", "", boxtest.Upgrade()...); a.Problem(t).Status != http.StatusNotFound {
		t.Errorf("a.Body = %s, want a.Problem(t).Status == 404", a.Body)
	}
	req := boxtest.ShellProcess("seq -f %07.0f 0 999999; echo end >&2; exit 3")
	req.Output = new(quantity.MiB)
	d.NewProcess(t, "s1", "p", req)
	const size = 8_000_000
	state := d.Ended(t, "s1", "p")
	if state.Output[0].Bytes != size || state.Output[0].From < size/2 {
		t.Fatalf("state.Output = %+v, want state.Output[0].Bytes == size and state.Output[0].From >= size / 2",
			state.Output)
	}
	for _, from := range []int64{0, 1, 4096, state.Output[0].From, size - 8, size} {
		c, a := d.AttachPeer(t, "s1", "p", api.StreamAttach{Stdout: new(from), Stderr: new(int64(4))})
		came, missing, exit := drain(t, c)
		if a.Stdout != from || a.Process.State != "ended" || came+missing != size-from || (missing > 0) != (from < state.Output[0].From) || *exit.ExitCode != 3 {
			t.Errorf("from %d: %+v; %d bytes arrived, %d are missing, %+v", from, a, came, missing, exit)
		}
	}
	for field, asked := range map[string]api.StreamAttach{
		"attach.stdout": {Stdout: new(int64(size + 1))}, "attach.stderr": {Stdout: new(int64(0)), Stderr: new(int64(5))}, "attach.stdin": {Stdin: new(int64(-1))},
		"attach.replay": {Stdout: new(int64(0)), Replay: true}, "attach.write": {Write: true},
	} {
		c := d.DialProcess(t, "s1", "p")
		c.Control(api.ClientControl{Attach: &asked})
		if p := c.Next().Error; p == nil || p.Status != http.StatusBadRequest || p.Field != field || p.Allowed == "" {
			t.Errorf(`%s: p = %+v, want p != nil and p.Status == 400 and p.Field == field and p.Allowed != ""`,
				field, p)
		}
	}
	for _, n := range []int64{-1, -1 << 63, 1<<63 - 1} {
		c := d.DialProcess(t, "s1", "p")
		c.Control(api.ClientControl{Attach: &api.StreamAttach{Stdout: new(n)}})
		if p := c.Next().Error; p == nil || p.Field != "attach.stdout" {
			t.Errorf(`%d: p = %+v, want p != nil and p.Field == "attach.stdout"`, n, p)
		}
	}
}

func TestOneIDIsOneRequest(t *testing.T) {
	t.Parallel()
	d := boxtest.Beside(t)
	d.NewSession(t, api.SessionRequest{ID: "s1"})
	req := api.ProcessRequest{Command: new("echo run >> runs; sleep 1000"), Stdin: true, Env: map[string]string{"KEY": "s3cret"}}
	d.NewProcess(t, "s1", "p", &req)
	for field, change := range map[string]func(r *api.ProcessRequest){
		"argv, command": func(r *api.ProcessRequest) { r.Command, r.Argv = nil, []string{"/bin/sh", "-c", *req.Command} },
		"command":       func(r *api.ProcessRequest) { r.Command = new(*req.Command + " ") },
		"env":           func(r *api.ProcessRequest) { r.Env = map[string]string{"KEY": "other"} },
		"stdin":         func(r *api.ProcessRequest) { r.Stdin = false },
		"terminal":      func(r *api.ProcessRequest) { r.Terminal = &api.Terminal{Rows: 1, Cols: 1} },
		"lease":         func(r *api.ProcessRequest) { r.Lease = boxtest.Duration("1h") },
		"restart":       func(r *api.ProcessRequest) { r.Restart = &api.Restart{Policy: "always"} },
		"labels":        func(r *api.ProcessRequest) { r.Labels = map[string]string{"a": "b"} },
		"timeout":       func(r *api.ProcessRequest) { r.Timeout = boxtest.Duration("1m") },
		"cwd, stop":     func(r *api.ProcessRequest) { r.Cwd, r.Stop = "/tmp", &api.Stop{Signal: "SIGHUP"} },
	} {
		other := req
		change(&other)
		_, _, err := d.StartProcess(t.Context(), "s1", "p", &other)
		if e := boxtest.Refused(t, err, http.StatusConflict, field); strings.Contains(fmt.Sprintf("%+v", e.Problem), "s3cret") {
			t.Errorf(`%s: e.Problem = %+v, want fmt.Sprintf("%%+v", e.Problem) without "s3cret"`, field, e.Problem)
		}
	}
	var wg sync.WaitGroup
	for range 30 { // the same concurrently, for existing and missing processes
		for _, p := range []string{"p", "q"} {
			wg.Go(func() {
				if s, _, err := d.StartProcess(t.Context(), "s1", p, &req); err != nil || s.State != "running" {
					t.Errorf(`%s: s = %+v, err = %v, want no error and s.State == "running"`, p, s, err)
				}
			})
		}
	}
	wg.Wait()
	boxtest.Eventually(t, "both processes have run", func() bool { return d.Sh(t, "s1", "cat runs 2>&- | wc -l") >= "2\n" })
	if n := d.Sh(t, "s1", "wc -l < runs"); n != "2\n" {
		t.Errorf("two processes ran %s times", n)
	}
}

// There is room for 64 clients; another one is refused without disturbing the others.
func TestReadersAndWritersAreBounded(t *testing.T) {
	t.Parallel()
	d := boxtest.Beside(t)
	d.NewSession(t, api.SessionRequest{ID: "s1"})
	req := boxtest.ShellProcess("stty raw -echo; echo up; cat")
	req.Terminal = &api.Terminal{Rows: 24, Cols: 80}
	d.NewProcess(t, "s1", "p", req)
	awaitOutput(t, d, "p", "up")
	list := make([]*boxtest.Peer, 64)
	for i := range list {
		var a api.StreamAttached
		if list[i], a = d.AttachPeer(t, "s1", "p", api.StreamAttach{Write: true, TakeOver: i == 63}); a.Writer != (i == 0 || i == 63) {
			t.Errorf("client %d is the writer: a.Writer = %v, want (i == 0 || i == 63)", i, a.Writer)
		}
	}
	c := d.DialProcess(t, "s1", "p")
	c.Control(api.ClientControl{Attach: &api.StreamAttach{Write: true, TakeOver: true}})
	if p := c.Next().Error; p == nil || p.Status != http.StatusTooManyRequests {
		t.Errorf("the 65th: p = %+v, want p != nil and p.Status == 429", p)
	}
	if a := d.Raw(t, "GET", "/v1/sessions/s1/processes/p/logs", ""); a.Code != http.StatusTooManyRequests {
		t.Errorf("the 65th by its logs: a.Code = %d, a.Body = %s, want a.Code == 429", a.Code, a.Body)
	}
	if !list[0].Next().WriterLost {
		t.Error("the first writer got no message that it lost the write access")
	}
	for _, i := range []int{0, 31} { // these are not attached
		list[i].Send(api.ChannelStdin, []byte("stolen"))
	}
	list[63].Send(api.ChannelStdin, []byte("mine"))
	for _, c := range list {
		c.Hears("mine")
	}
	_ = list[5].WS.CloseNow()
	boxtest.Eventually(t, "another reader can attach", func() bool {
		s, err := d.Process(t.Context(), "s1", "p", 0)
		return err == nil && s.Readers == 63
	})
	d.AttachPeer(t, "s1", "p", api.StreamAttach{})
}

// Invalid requests are refused by field, and the process goes on.
func TestNonsenseIsRefusedByItsName(t *testing.T) {
	t.Parallel()
	d := boxtest.Beside(t)
	d.NewSession(t, api.SessionRequest{ID: "s1"})
	req := boxtest.ShellProcess("stty size; echo up; sleep 1000")
	req.Terminal = &api.Terminal{Rows: 24, Cols: 80}
	d.NewProcess(t, "s1", "p", req)
	awaitOutput(t, d, "p", "up")
	const path = "/v1/sessions/s1/processes/p/"
	for _, size := range []string{`{"rows":0,"cols":0}`, `{"rows":24,"cols":0}`, `{"rows":65536,"cols":80}`, `{"rows":-1,"cols":80}`, `{"rows":1.5,"cols":80}`, `{"rows":"24","cols":"80"}`, `{}`, `[]`, `null`, ``} {
		if a := d.Raw(t, "POST", path+"resize", size); a.Problem(t).Status != http.StatusBadRequest {
			t.Errorf("resize %s: a.Code = %d, a.Body = %s, want a.Problem(t).Status == 400", size, a.Code, a.Body)
		}
	}
	for _, signal := range []string{`"KILL"`, `"9"`, `9`, `""`, `"SIGKILL\n"`, `"sigkill"`, `"SIGRTMIN+1000"`, `null`, `["SIGKILL"]`, `"SIG\u0000KILL"`, `"` + strings.Repeat("S", 5000) + `"`} {
		if a := d.Raw(t, "POST", path+"signal", `{"signal":`+signal+`}`); a.Problem(t).Status != http.StatusBadRequest {
			t.Errorf("signal %.40s: a.Code = %d, a.Body = %s, want a.Problem(t).Status == 400", signal, a.Code, a.Body)
		}
	}
	for query, field := range map[string]string{
		"tail=-1": "tail", "tail=x": "tail", "tail=1e400": "tail", "lines=-1": "lines", "lines=10001": "lines", "lines=x": "lines", "stdout=-1": "stdout", "stdout=1000000": "stdout", "stderr=9223372036854775808": "stderr",
		"stream=stdin": "stream", "stream=both": "stream", "format=xml": "format", "follow=yes": "follow", "follow=1": "follow", "timestamps=maybe": "timestamps", "nonsense=1": "query", "follow=true&follow=false": "query", "tail=1&lines=1": "query", "lines=1&stdout=0": "query",
	} {
		a := d.Raw(t, "GET", path+"logs?"+query, "")
		if p := a.Problem(t); p.Status != http.StatusBadRequest || p.Field != field || p.Detail == "" {
			t.Errorf(`logs?%s: p = %+v, want p.Status == 400 and p.Field == %v and p.Detail != ""`, query, p, field)
		}
	}
	for _, id := range []string{"x", "1", "1.", ".", "-1.0", "1.2.3", "99999.0", strings.Repeat("9", 400) + ".0"} {
		if a := d.Raw(t, "GET", path+"logs?format=sse", "", "Last-Event-ID: "+id); a.Problem(t).Field != "Last-Event-ID" {
			t.Errorf(`%.40s: a.Body = %s, want a.Problem(t).Field == "Last-Event-ID"`, id, a.Body)
		}
	}
	if s, err := d.Process(t.Context(), "s1", "p", 0); err != nil || s.State != "running" || *s.Terminal != *req.Terminal {
		t.Errorf(`s = %+v, err = %v, want no error and s.State == "running" and *s.Terminal == *req.Terminal`, s, err)
	}
}

// Any text is a valid id and none is a path; an invalid id is refused and starts nothing.
func TestAnyTextIsAnIDOfAProcess(t *testing.T) {
	t.Parallel()
	d := boxtest.Beside(t)
	d.NewSession(t, api.SessionRequest{ID: "s1"})
	ids := []string{
		".", "..", "/", "../../etc/passwd", "a/b", "%2e%2e", "a%00b", "?wait=1s", "#", "p/stream", "-rf", "$(id)", "'; ls", " ", "é", "e\u0301", "\u202e\u2066", "日本語", "😀", `\`, "null", "{p}",
		strings.Repeat("x", 256), strings.Repeat("é", 128), strings.Repeat("😀", 64),
	}
	for i, id := range ids {
		req := boxtest.ShellProcess(fmt.Sprintf("echo %d", i))
		d.NewProcess(t, "s1", id, req)
		if end := d.Ended(t, "s1", id); end.ID != id || end.Result.Stdout != fmt.Sprintf("%d\n", i) {
			t.Errorf(`%q: end = %+v, want end.ID == id and end.Result.Stdout == fmt.Sprintf("%%d\n", i)`, id, end)
		}
	}
	for i, id := range ids { // each is itself and no other
		if a := d.Raw(t, "GET", "/v1/sessions/s1/processes/"+url.PathEscape(id)+"/logs", ""); string(a.Body) != fmt.Sprintf("%d\n", i) && id != "." && id != ".." {
			t.Errorf(`%q: a.Code = %d, a.Body = %s, want a.Body == fmt.Sprintf("%%d\n", i) or id == "." or id == ".."`,
				id, a.Code, a.Body)
		}
		if err := d.DeleteProcess(t.Context(), "s1", id); err != nil {
			t.Errorf("%q: %v", id, err)
		}
	}
	for _, id := range []string{"", strings.Repeat("x", 257), strings.Repeat("é", 128) + "x", "a\nb", "\x00", "\x1b[2J", "\u0085", "\xff\xfe", "a\xc3"} {
		a := d.Raw(t, "PUT", "/v1/sessions/s1/processes/"+url.PathEscape(id), `{"argv":["true"]}`)
		var p api.Problem
		if err := json.Unmarshal(a.Body, &p); err != nil || a.Code != http.StatusBadRequest || p.Field != "id" {
			t.Errorf(`%q: a.Code = %d, a.Body = %s, want no error and a.Code == 400 and p.Field == "id"`,
				id, a.Code, a.Body)
		}
	}
	if list, err := d.Processes(t.Context(), "s1"); err != nil || len(list) != 0 {
		t.Errorf("list = %+v, err = %v, want no error and len(list) == 0", list, err)
	}
}
