// SPDX-License-Identifier: Apache-2.0

package sessions_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/internal/quantity"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

// shell is a process of a line for the shell.
func shell(line string) *api.ProcessRequest { return &api.ProcessRequest{Command: &line} }

// begin starts a process that does not exist.
func begin(t *testing.T, d *boxtest.Daemon, id, p string, req *api.ProcessRequest) api.Process {
	t.Helper()
	state, isNew, err := d.StartProcess(t.Context(), id, p, req)
	if err != nil || !isNew {
		t.Fatalf("start %q: new %v, %v", p, isNew, err)
	}
	return state
}

// over waits for the end of a process.
func over(t *testing.T, d *boxtest.Daemon, id, p string) api.Process {
	t.Helper()
	state, err := d.Process(t.Context(), id, p, time.Minute)
	if err != nil || state.State != "ended" || state.Result == nil {
		t.Fatalf("%q does not end: %+v, %v", p, state, err)
	}
	return state
}

func TestAProcessIsStartedOnce(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	create(t, d, api.SessionRequest{ID: "s1"})
	const p = "a/../%2f 😀"
	req := shell("echo $$ >> starts; echo out; echo err >&2; until [ -e go ]; do sleep 0.02; done; exit 3")
	req.Env = map[string]string{"TOKEN": "s3cret"}
	first := begin(t, d, "s1", p, req)
	if first.ID != p || first.Session != "s1" || first.State != "running" || first.PID == 0 || first.Starts != 1 || !slices.Equal(first.Env, []string{"TOKEN"}) || first.Timeout != nil {
		t.Errorf("%+v", first)
	}
	again, isNew, err := d.StartProcess(t.Context(), "s1", p, req)
	if err != nil || isNew || again.PID != first.PID {
		t.Errorf("again: %+v, new %v, %v", again, isNew, err)
	}
	other := *req
	other.Env, other.Cwd = map[string]string{"TOKEN": "another"}, "/tmp"
	_, _, err = d.StartProcess(t.Context(), "s1", p, &other)
	if e := refused(t, err, http.StatusConflict, "cwd, env"); strings.Contains(e.Detail, "s3cret") || strings.Contains(e.Detail, "another ") && strings.Contains(e.Detail, "TOKEN") {
		t.Errorf("%+v", e)
	}
	if state, err := d.Process(t.Context(), "s1", p, 10*time.Millisecond); err != nil || state.State != "running" {
		t.Errorf("%+v, %v", state, err)
	}
	succeeds(t, d, "s1", sh("touch go"))
	end := over(t, d, "s1", p)
	if r := end.Result; r.Status != "exited" || *r.ExitCode != 3 || r.Stdout != "out\n" || r.Stderr != "err\n" || end.EndedAt == nil || end.Output[0].Bytes != 4 {
		t.Errorf("%+v", end)
	}
	if again, isNew, err := d.StartProcess(t.Context(), "s1", p, req); err != nil || isNew || again.State != "ended" || again.Result == nil || *again.Result.ExitCode != 3 {
		t.Errorf("after its end: %+v, new %v, %v", again, isNew, err)
	}
	list, err := d.Processes(t.Context(), "s1")
	if err != nil || len(list) != 1 || list[0].Result == nil || *list[0].Result.ExitCode != 3 || list[0].Result.Stdout != "" {
		t.Errorf("%+v, %v", list, err)
	}
	if n := succeeds(t, d, "s1", sh("wc -l < starts")); n != "1\n" {
		t.Errorf("it was started %s times", n)
	}
	if err := d.DeleteProcess(t.Context(), "s1", p); err != nil {
		t.Fatal(err)
	}
	_, err = d.Process(t.Context(), "s1", p, 0)
	refused(t, err, http.StatusNotFound, "")
}

func TestAnExecWithAnIDIsJoined(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	create(t, d, api.SessionRequest{ID: "s1"})
	req := sh("echo run >> runs; cat; until [ -e go ]; do sleep 0.02; done; echo done")
	req.ID, req.Stdin = "e1", "in\n"
	body, err := json.Marshal(&req)
	if err != nil {
		t.Fatal(err)
	}
	detached := strings.TrimSuffix(string(body), "}") + `,"detach":true}`
	a := raw(t, d, "POST", "/v1/sessions/s1/exec", detached)
	var state api.Process
	if err := json.Unmarshal(a.Body, &state); err != nil || a.Code != http.StatusAccepted || state.ID != "e1" || state.State != "running" || state.Timeout == nil {
		t.Fatalf("%d %s, %v", a.Code, a.Body, err)
	}
	conn, err := net.Dial("unix", d.Socket) // this one goes before it has its answer
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, request("POST", "/v1/sessions/s1/exec", string(body))); err != nil {
		t.Fatal(err)
	}
	conn.Close()
	results := make(chan api.ExecResult, 2)
	for range 2 {
		go func() {
			r, err := d.Exec(t.Context(), "s1", &req)
			if err != nil {
				t.Error(err)
			}
			results <- r
		}()
	}
	succeeds(t, d, "s1", sh("touch go"))
	for range 2 {
		if r := <-results; r.Status != "exited" || r.Stdout != "in\ndone\n" {
			t.Errorf("%s", show(r))
		}
	}
	if r := in(t, d, "s1", req); r.Stdout != "in\ndone\n" {
		t.Errorf("later: %s", show(r))
	}
	if n := succeeds(t, d, "s1", sh("wc -l < runs")); n != "1\n" {
		t.Errorf("it ran %s times", n)
	}
	req.Stdin = "other"
	_, err = d.Exec(t.Context(), "s1", &req)
	if e, ok := err.(*client.Error); !ok || e.Status != http.StatusConflict { //nolint:errorlint // as it is
		t.Errorf("%v", err)
	}
	for path, body := range map[string]string{
		"/v1/sessions/s1/exec": `{"argv":["true"],"detach":true}`, "/v1/exec": `{"exec":{"argv":["true"],"id":"x"}}`,
	} {
		if p := raw(t, d, "POST", path, body); p.Code != http.StatusBadRequest {
			t.Errorf("%s %s: %d %s", path, body, p.Code, p.Body)
		}
	}
}

// peer is a client of a stream by hand.
type peer struct {
	t  *testing.T
	ws *websocket.Conn
}

func attach(t *testing.T, d *boxtest.Daemon, p string, asked api.StreamAttach) (*peer, api.StreamAttached) {
	t.Helper()
	c := &peer{t, dial(t, d, "/v1/sessions/s1/processes/"+p+"/stream")}
	c.control(api.ClientControl{Attach: &asked})
	msg := c.hear()
	if msg.control == nil || msg.control.Attached == nil {
		t.Fatalf("%+v", msg)
	}
	return c, *msg.control.Attached
}

func (c *peer) control(msg api.ClientControl) {
	c.t.Helper()
	data, err := json.Marshal(msg)
	if err != nil {
		c.t.Fatal(err)
	}
	c.send(api.ChannelControl, data)
}

func (c *peer) send(channel byte, data []byte) {
	c.t.Helper()
	if err := c.ws.Write(c.t.Context(), websocket.MessageBinary, append([]byte{channel}, data...)); err != nil {
		c.t.Fatal(err)
	}
}

// message is one of boxd's.
type message struct {
	channel byte
	data    []byte
	control *api.ServerControl
	closed  error
}

func (c *peer) hear() message {
	c.t.Helper()
	_, data, err := c.ws.Read(c.t.Context())
	if err != nil {
		return message{closed: err}
	}
	m := message{channel: data[0], data: data[1:]}
	if data[0] == api.ChannelControl {
		m.control = &api.ServerControl{}
		if err := json.Unmarshal(data[1:], m.control); err != nil {
			c.t.Fatalf("%s: %v", data, err)
		}
	}
	return m
}

// hears reads standard output until that is what was wanted.
func (c *peer) hears(want string) {
	c.t.Helper()
	got := ""
	for len(got) < len(want) {
		m := c.hear()
		if m.closed != nil || m.control != nil && m.control.StdinTaken == 0 {
			c.t.Fatalf("after %q: %+v %s", got, m, m.data)
		}
		if m.channel == api.ChannelStdout {
			got += string(m.data)
		}
	}
	if got != want {
		c.t.Fatalf("got %q, want %q", got, want)
	}
}

// next is the next control message that is no confirmation.
func (c *peer) next() *api.ServerControl {
	c.t.Helper()
	for {
		m := c.hear()
		if m.closed != nil {
			c.t.Fatal(m.closed)
		}
		if m.control != nil && m.control.StdinTaken == 0 {
			return m.control
		}
	}
}

// A stream that is cut off again and again goes on at the byte where it was, in both directions.
func TestAStreamGoesOnWhereItWas(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	create(t, d, api.SessionRequest{ID: "s1"})
	req := shell("tee /dev/stderr")
	req.Stdin = true
	begin(t, d, "s1", "p", req)
	sent, taken := bytes.Repeat([]byte("0123456789abcdef\n"), 1<<16), int64(0)
	for i := range sent {
		sent[i] += byte(i >> 12 & 7)
	}
	var got [2][]byte
	for round := 0; int64(len(got[0])) < int64(len(sent)) || len(got[1]) < len(sent); round++ {
		asked := api.StreamAttach{Stdout: new(int64(len(got[0]))), Stderr: new(int64(len(got[1]))), Stdin: new(taken), Write: true, TakeOver: true, Lossless: true}
		c, a := attach(t, d, "p", asked)
		if a.Stdout != *asked.Stdout || a.Stderr != *asked.Stderr || a.Stdin < taken || !a.Writer {
			t.Fatalf("round %d begins with %+v", round, a)
		}
		begun := taken
		for end := min(begun+3*40_000, int64(len(sent))); begun < end; begun += 40_000 { // 40,000 divides nothing here
			c.send(api.ChannelStdin, sent[begun:min(begun+40_000, end)])
		}
		for budget := 100_000 + 10_007*round; budget > 0 && (len(got[0]) < len(sent) || len(got[1]) < len(sent)); {
			m := c.hear()
			switch {
			case m.closed != nil || m.control != nil && m.control.StdinTaken == 0:
				t.Fatalf("round %d: %+v %s", round, m, m.data)
			case m.control != nil:
				taken = int64(m.control.StdinTaken)
			default:
				got[m.channel-api.ChannelStdout] = append(got[m.channel-api.ChannelStdout], m.data...)
			}
			if taken >= begun && min(int64(len(got[0])), int64(len(got[1]))) >= taken {
				break // there is no more to come
			}
			budget -= len(m.data)
		}
		_ = c.ws.CloseNow()
	}
	if !bytes.Equal(got[0], sent) || !bytes.Equal(got[1], sent) {
		t.Errorf("sent %s, got %s and %s", sum(sent), sum(got[0]), sum(got[1]))
	}
	c, _ := attach(t, d, "p", api.StreamAttach{Write: true, TakeOver: true})
	c.send(api.ChannelStdin, nil)
	if end := c.next().Exit; end == nil || end.Status != "exited" || end.Output[0].Bytes != uint64(len(sent)) || end.Stdout != "" {
		t.Errorf("%+v", end)
	}
}

func TestOneWritesAndManyRead(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	create(t, d, api.SessionRequest{ID: "s1"})
	req := shell("echo up; cat")
	req.Stdin = true
	begin(t, d, "s1", "p", req)
	first, a := attach(t, d, "p", api.StreamAttach{Replay: true, Write: true})
	if !a.Writer || a.Process.ID != "p" || !a.Process.Writer || a.Process.Readers != 1 {
		t.Errorf("%+v", a)
	}
	first.hears("up\n")
	first.send(api.ChannelStdin, []byte("one\n"))
	first.hears("one\n")
	second, a := attach(t, d, "p", api.StreamAttach{Write: true})
	if a.Writer || a.Stdout != 7 || a.Stdin != 4 {
		t.Errorf("%+v", a)
	}
	first.send(api.ChannelStdin, []byte("two\n"))
	first.hears("two\n")
	second.hears("two\n")
	third, a := attach(t, d, "p", api.StreamAttach{Write: true, TakeOver: true})
	if !a.Writer {
		t.Errorf("%+v", a)
	}
	if !first.next().WriterLost {
		t.Error("the first writer does not hear that it is none any more")
	}
	first.send(api.ChannelStdin, []byte("late\n")) // nobody's
	third.send(api.ChannelStdin, []byte("three\n"))
	for _, c := range []*peer{first, second, third} {
		c.hears("three\n")
	}
	reader, _ := attach(t, d, "p", api.StreamAttach{Replay: true})
	reader.hears("up\none\ntwo\nthree\n")
	reader.send(api.ChannelStdin, []byte("x"))
	if m := reader.hear(); websocket.CloseStatus(m.closed) != websocket.StatusPolicyViolation {
		t.Errorf("a reader that writes: %v", m.closed)
	}
	third.send(api.ChannelStdin, nil)
	for _, c := range []*peer{first, second, third} {
		if end := c.next().Exit; end == nil || end.Status != "exited" || *end.ExitCode != 0 {
			t.Errorf("%+v", end)
		}
	}
	if state := over(t, d, "s1", "p"); state.Readers != 0 || state.Writer || state.Result.Stdout != "up\none\ntwo\nthree\n" {
		t.Errorf("%+v", state)
	}
}

// Who comes too late is told how much is missing, and gets exactly the rest.
func TestAGapIsTold(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	create(t, d, api.SessionRequest{ID: "s1"})
	const lines, width = 1 << 20, 8 // 8 MiB
	req := shell(fmt.Sprintf("seq -f %%07.0f 0 %d", lines-1))
	req.Output = new(quantity.MiB)
	begin(t, d, "s1", "p", req)
	state := over(t, d, "s1", "p")
	if state.Output[0].Bytes != lines*width || state.Output[0].From < 4<<20 {
		t.Fatalf("%+v", state.Output)
	}
	for _, tc := range []struct {
		asked api.StreamAttach
		begin int64
	}{
		{api.StreamAttach{Stdout: new(int64(12345))}, 12345},
		{api.StreamAttach{Replay: true}, 0},
		{api.StreamAttach{Stdout: new(state.Output[0].Bytes - 9)}, state.Output[0].Bytes - 9},
		{api.StreamAttach{Stdout: new(int64(12345)), Lines: true}, 12345},
		{api.StreamAttach{Stdout: new(state.Output[0].Bytes - 8), Lines: true}, state.Output[0].Bytes - 8},
	} {
		c, a := attach(t, d, "p", tc.asked)
		at := a.Stdout
		for end := false; !end; {
			m := c.hear()
			switch {
			case m.closed != nil:
				t.Fatal(m.closed)
			case m.control != nil && m.control.Gap != nil:
				at += m.control.Gap.Bytes
			case m.control != nil:
				if end = true; m.control.Exit == nil {
					t.Fatalf("%s", m.data)
				}
			case tc.asked.Lines:
				if want := fmt.Sprintf("%07d", at/width); at%width != 0 || string(m.data) != want {
					t.Fatalf("at %d is %q", at, m.data)
				}
				at += width
			default:
				for i, b := range m.data {
					if n := at + int64(i); b != fmt.Sprintf("%07d\n", n/width)[n%width] {
						t.Fatalf("at %d is %q", n, b)
					}
				}
				at += int64(len(m.data))
			}
		}
		if at != state.Output[0].Bytes || a.Stdout != tc.begin {
			t.Errorf("%+v: from %d it ends at %d of %d", tc.asked, a.Stdout, at, state.Output[0].Bytes)
		}
	}
	c := &peer{t, dial(t, d, "/v1/sessions/s1/processes/p/stream")}
	c.control(api.ClientControl{Attach: &api.StreamAttach{Stdout: new(state.Output[0].Bytes + 1)}})
	if p := c.next().Error; p == nil || p.Status != 400 || p.Field != "attach.stdout" {
		t.Errorf("%+v", p)
	}
}

// A reader that does not read costs neither the program its time nor boxd memory, and learns what it missed.
func TestASlowReaderHoldsUpNothing(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	create(t, d, api.SessionRequest{ID: "s1"})
	const size = 200 << 20
	req := shell(fmt.Sprintf("until [ -e go ]; do sleep 0.02; done; head -c %d /dev/zero", size))
	begin(t, d, "s1", "p", req)
	slow, a := attach(t, d, "p", api.StreamAttach{})
	before := anonymous(t, d.PID())
	succeeds(t, d, "s1", sh("touch go"))
	var state api.Process
	boxtest.Eventually(t, "it has ended", func() bool { // asked for without its output
		list, err := d.Processes(t.Context(), "s1")
		if err != nil || len(list) != 1 {
			t.Fatalf("%+v, %v", list, err)
		}
		state = list[0]
		return state.State == "ended"
	})
	if now := anonymous(t, d.PID()); now > before+16<<20 {
		t.Errorf("boxd has grown from %d to %d bytes", before, now)
	}
	at, gaps := a.Stdout, 0
	for {
		m := slow.hear()
		if m.closed != nil {
			t.Fatal(m.closed)
		}
		if m.control != nil && m.control.Exit != nil {
			break
		}
		if m.control != nil {
			at += m.control.Gap.Bytes
			gaps++
		} else {
			at += int64(len(m.data))
		}
	}
	if at != size || state.Output[0].Bytes != size || gaps == 0 {
		t.Errorf("it ends at %d with %d gaps", at, gaps)
	}
}

func TestMessagesOfMCPAreLines(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	create(t, d, api.SessionRequest{ID: "s1"})
	req := shell(`printf half; sleep 0.1; echo; printf 'a\n\nb\n'; printf log >&2; while read -r line; do echo "<$line>"; done; printf unfinished`)
	req.Stdin = true
	begin(t, d, "s1", "p", req)
	c, _ := attach(t, d, "p", api.StreamAttach{Replay: true, Write: true, Lines: true})
	line := func(want string) {
		t.Helper()
		for {
			m := c.hear()
			if m.channel == api.ChannelStdout {
				if string(m.data) != want {
					t.Fatalf("%.40q, want %.40q", m.data, want)
				}
				return
			}
			if m.closed != nil || m.control != nil && m.control.StdinTaken == 0 {
				t.Fatalf("%+v %s", m, m.data)
			}
		}
	}
	for _, want := range []string{"half", "a", "", "b"} {
		line(want)
	}
	c.send(api.ChannelStdin, []byte(`{"id":1}`))
	line(`<{"id":1}>`)
	long := strings.Repeat("x", 1<<20)
	c.send(api.ChannelStdin, []byte(long))
	line("<" + long + ">")
	late, a := attach(t, d, "p", api.StreamAttach{Lines: true}) // at the beginning of a line
	c.send(api.ChannelStdin, []byte("both"))
	line("<both>")
	if m := late.hear(); string(m.data) != "<both>" || a.Stdout == 0 {
		t.Errorf("%+v %s", m, m.data)
	}
	c.send(api.ChannelStdin, nil)
	if msg := c.next(); msg.Gap == nil || msg.Gap.Bytes != int64(len("unfinished")) {
		t.Errorf("%+v", msg)
	}
	if msg := c.next(); msg.Exit == nil {
		t.Errorf("%+v", msg)
	}
	two, _ := attach(t, d, "p", api.StreamAttach{Write: true, Lines: true})
	two.send(api.ChannelStdin, []byte("two\nlines"))
}

func TestWhoBreaksTheRulesLeavesTheProcessAlone(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	create(t, d, api.SessionRequest{ID: "s1"})
	begin(t, d, "s1", "p", shell("sleep 1000"))
	for _, path := range []string{"/v1/sessions/s1/processes/none/stream", "/v1/sessions/none/processes/p/stream"} {
		a := raw(t, d, "GET", path, "")
		if a.problem(t); a.Code != http.StatusNotFound {
			t.Errorf("%s: %d", path, a.Code)
		}
	}
	for _, a := range asOther(t, d, request("GET", "/v1/sessions/s1/processes/p", ""), request("DELETE", "/v1/sessions/s1/processes/p", ""), request("GET", "/v1/sessions/s1/processes/p/logs", "")) {
		if p := a.problem(t); a.Code != http.StatusNotFound || !strings.Contains(p.Detail, "no session") {
			t.Errorf("%d %s", a.Code, a.Body)
		}
	}
	attach := `{"attach":{}}`
	for name, tc := range map[string]struct {
		first string
		then  []byte
		field string
		close websocket.StatusCode
	}{
		"no attach":        {first: `{"start":{"exec":{"argv":["true"]}}}`, field: "attach"},
		"an unknown key":   {first: `{"attach":{"from":1}}`, field: "attach.from"},
		"two beginnings":   {first: `{"attach":{"replay":true,"stdout":0}}`, field: "attach.replay"},
		"input for none":   {first: `{"attach":{"write":true}}`, field: "attach.write"},
		"no JSON":          {first: `{"attach":`},
		"a second attach":  {first: attach, then: []byte("\x03" + attach), close: websocket.StatusPolicyViolation},
		"an odd signal":    {first: attach, then: []byte("\x03" + `{"signal":"SIGX"}`), close: websocket.StatusPolicyViolation},
		"no terminal":      {first: attach, then: []byte("\x03" + `{"resize":{"rows":1,"cols":1}}`), close: websocket.StatusPolicyViolation},
		"an odd size":      {first: attach, then: []byte("\x03" + `{"resize":{"rows":0,"cols":1}}`), close: websocket.StatusPolicyViolation},
		"an odd channel":   {first: attach, then: []byte{9}, close: websocket.StatusPolicyViolation},
		"too long a frame": {first: attach, then: make([]byte, api.MaxFrame+1), close: websocket.StatusMessageTooBig},
	} {
		c := &peer{t, dial(t, d, "/v1/sessions/s1/processes/p/stream")}
		c.send(api.ChannelControl, []byte(tc.first))
		if tc.close == 0 {
			if p := c.next().Error; p == nil || p.Status != 400 || tc.field != "" && p.Field != tc.field {
				t.Errorf("%s: %+v", name, p)
			}
			continue
		}
		c.hear()
		if err := c.ws.Write(t.Context(), websocket.MessageBinary, tc.then); err != nil {
			t.Error(err)
		}
		if m := c.hear(); websocket.CloseStatus(m.closed) != tc.close {
			t.Errorf("%s: %+v %s", name, m, m.data)
		}
	}
	for path, body := range map[string]string{
		"signal": `{"signal":"HUP"}`, "resize": `{"rows":0,"cols":80}`, "stop": `{"signal":"SIGINT"}`,
	} {
		if a := raw(t, d, "POST", "/v1/sessions/s1/processes/p/"+path, body); a.Code != http.StatusBadRequest {
			t.Errorf("%s: %d %s", path, a.Code, a.Body)
		}
	}
	for _, query := range []string{"wait=x", "wait=11m", "wait=-1s", "follow=true"} {
		if a := raw(t, d, "GET", "/v1/sessions/s1/processes/p?"+query, ""); a.Code != http.StatusBadRequest {
			t.Errorf("%s: %d %s", query, a.Code, a.Body)
		}
	}
	if state, err := d.Process(t.Context(), "s1", "p", 0); err != nil || state.State != "running" {
		t.Errorf("%+v, %v", state, err)
	}
	if state, err := d.StopProcess(t.Context(), "s1", "p"); err != nil || state.State != "ended" || state.Reason != "stopped" || state.Result.Signal != "SIGTERM" {
		t.Errorf("%+v, %v", state, err)
	}
}

// A terminal is one for the program, has the size its clients say, and interrupts at a key.
func TestAStreamWithATerminal(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	create(t, d, api.SessionRequest{ID: "s1"})
	for _, id := range []string{"", `,"id":"e1"`} {
		c := &peer{t, dial(t, d, "/v1/sessions/s1/exec/stream")}
		c.send(api.ChannelControl, fmt.Appendf(nil, `{"start":{"exec":{"command":"stty size; read x; stty size; trap 'echo int; exit 4' INT; echo on; while :; do sleep 0.02; done"%s},"stdin":true,"terminal":{"rows":33,"cols":99}}}`, id))
		if msg := c.next(); msg.Started == nil {
			t.Fatalf("%+v", msg)
		}
		c.hears("33 99\r\n")
		c.control(api.ClientControl{Resize: &api.Terminal{Rows: 40, Cols: 100}})
		c.send(api.ChannelStdin, []byte("\n"))
		c.hears("\r\n40 100\r\non\r\n")
		c.send(api.ChannelStdin, []byte{3})
		if end := c.next().Exit; end == nil || end.Status != "exited" || *end.ExitCode != 4 {
			t.Errorf("%+v", end)
		}
	}
	c := &peer{t, dial(t, d, "/v1/sessions/s1/exec/stream")}
	c.send(api.ChannelControl, []byte(`{"start":{"exec":{"command":"echo up; sleep 1000"},"terminal":{"rows":33,"cols":99}}}`))
	c.next()
	c.hears("up\r\n")
	_ = c.ws.CloseNow()
	boxtest.Eventually(t, "what nobody can come back to is hung up", func() bool {
		list, err := d.Processes(t.Context(), "s1")
		return err == nil && len(list) == 1 && list[0].ID == "e1"
	})
}

func TestLogsAreWhatWasWritten(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	create(t, d, api.SessionRequest{ID: "s1"})
	begin(t, d, "s1", "p", shell("echo one; sleep 0.3; echo two >&2; sleep 0.3; echo thrée; until [ -e go ]; do sleep 0.02; done; echo four"))
	boxtest.Eventually(t, "it has written three lines", func() bool {
		s, err := d.Process(t.Context(), "s1", "p", 0)
		return err == nil && s.Output[0].Bytes == 11
	})
	get := func(query string) string {
		t.Helper()
		a := raw(t, d, "GET", "/v1/sessions/s1/processes/p/logs?"+query, "")
		if a.Code != http.StatusOK {
			t.Errorf("%s: %d %s", query, a.Code, a.Body)
		}
		return string(a.Body)
	}
	for query, want := range map[string]string{
		"": "one\ntwo\nthrée\n", "stream=stderr": "two\n", "stream=stdout": "one\nthrée\n", "tail=4": "two\née\n", "lines=1": "thrée\n", "lines=2": "two\nthrée\n",
		"lines=0": "", "stdout=4": "two\nthrée\n", "stderr=4": "one\nthrée\n", "stdout=11&stderr=4": "",
	} {
		if got := get(query); got != want {
			t.Errorf("%s: %q, want %q", query, got, want)
		}
	}
	if got := get("timestamps=true&lines=2"); strings.Count(got, "Z t") != 2 || strings.Count(got, time.Now().UTC().Format("2006-")) != 2 {
		t.Errorf("%q", got)
	}
	conn, err := net.Dial("unix", d.Socket)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, request("GET", "/v1/sessions/s1/processes/p/logs?follow=true&format=sse", "")); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil || resp.Header.Get("Content-Type") != "text/event-stream" {
		t.Fatalf("%+v, %v", resp, err)
	}
	defer resp.Body.Close()
	events := bufio.NewReader(resp.Body)
	ids := []string{}
	for len(ids) < 3 { // before the program goes on
		line, err := events.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		if id, ok := strings.CutPrefix(line, "id: "); ok {
			ids = append(ids, strings.TrimSpace(id))
		}
	}
	if want := []string{"4.0", "4.4", "11.4"}; !slices.Equal(ids, want) {
		t.Errorf("%q, want %q", ids, want)
	}
	succeeds(t, d, "s1", sh("touch go"))
	rest, err := io.ReadAll(events)
	if err != nil || !strings.Contains(string(rest), `"data":"four\n"`) || !strings.HasSuffix(string(rest), "event: end\nid: 16.4\ndata: {}\n\n") {
		t.Errorf("%q, %v", rest, err)
	}
	for last, want := range map[string]string{"4.4": `"offset":4,`, "11.4": `"offset":11,`, "16.4": ""} {
		a, err := ask(d.Socket, request("GET", "/v1/sessions/s1/processes/p/logs?follow=true&format=sse", "", "Last-Event-ID: "+last))
		if _, first, _ := strings.Cut(string(a.Body), "stdout\","); err != nil || !strings.HasPrefix(first, want) || (a.Code == http.StatusNoContent) != (want == "") {
			t.Errorf("%s: %d %s, %v", last, a.Code, a.Body, err)
		}
	}
	var all strings.Builder
	at := [2]int64{}
	err = d.LogLines(t.Context(), "s1", "p", client.LogOptions{Follow: true}, func(l *api.LogLine) error {
		i := map[string]int{"stdout": 0, "stderr": 1}[l.Stream]
		if l.Offset != at[i] || time.Since(l.Time) > time.Hour {
			t.Errorf("%+v, want offset %d", l, at[i])
		}
		at[i] += int64(len(l.Data))
		all.WriteString(l.Data)
		return nil
	})
	if err != nil || all.String() != "one\ntwo\nthrée\nfour\n" {
		t.Errorf("%q, %v", all.String(), err)
	}
}

// What a program writes is read no faster than its reader takes it, through logs as well.
func TestLogsOfMuchTakeNoMemory(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	create(t, d, api.SessionRequest{ID: "s1"})
	req := shell("head -c 100000000 /dev/zero; until [ -e go ]; do sleep 0.02; done")
	begin(t, d, "s1", "p", req)
	before := anonymous(t, d.PID())
	body, err := d.Logs(t.Context(), "s1", "p", client.LogOptions{Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	defer body.Close()
	boxtest.Eventually(t, "it has written it all", func() bool {
		s, err := d.Process(t.Context(), "s1", "p", 0)
		return err == nil && s.Output[0].Bytes == 100_000_000
	})
	if now := anonymous(t, d.PID()); now > before+16<<20 {
		t.Errorf("boxd has grown from %d to %d bytes", before, now)
	}
	succeeds(t, d, "s1", sh("touch go"))
	text, err := io.ReadAll(body)
	if err != nil || !bytes.Contains(text, []byte("bytes omitted] ...")) || len(text) < 1<<20 {
		t.Errorf("%d bytes, %v", len(text), err)
	}
}
