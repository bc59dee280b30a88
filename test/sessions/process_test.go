// SPDX-License-Identifier: Apache-2.0

package sessions_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

func TestAProcessIsStartedOnce(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.NewSession(t, api.SessionRequest{ID: "s1"})
	const p = "a/../%2f 😀"
	req := boxtest.ShellProcess("echo $$ >> starts; echo out; echo err >&2; until [ -e go ]; do sleep 0.02; done; exit 3")
	req.Env = map[string]string{"TOKEN": "s3cret"}
	first := d.NewProcess(t, "s1", p, req)
	if first.ID != p || first.Session != "s1" || first.State != "running" || first.PID == 0 || first.Starts != 1 || !slices.Equal(first.Env, []string{"TOKEN"}) || first.Timeout != nil {
		t.Errorf("first = %+v", first)
	}
	again, isNew, err := d.StartProcess(t.Context(), "s1", p, req)
	if err != nil || isNew || again.PID != first.PID {
		t.Errorf("again: %+v, new %v, %v", again, isNew, err)
	}
	other := *req
	other.Env, other.Cwd = map[string]string{"TOKEN": "another"}, "/tmp"
	_, _, err = d.StartProcess(t.Context(), "s1", p, &other)
	if e := boxtest.Refused(t, err, http.StatusConflict, "cwd, env"); strings.Contains(e.Detail, "s3cret") || strings.Contains(e.Detail, "another ") && strings.Contains(e.Detail, "TOKEN") {
		t.Errorf(`e = %+v, want e.Detail without "s3cret" and (e.Detail without "another " or e.Detail without "TOKEN")`,
			e)
	}
	if state, err := d.Process(t.Context(), "s1", p, 10*time.Millisecond); err != nil || state.State != "running" {
		t.Errorf(`state = %+v, err = %v, want no error and state.State == "running"`, state, err)
	}
	d.Sh(t, "s1", "touch go")
	end := d.Ended(t, "s1", p)
	if r := end.Result; r.Status != "exited" || *r.ExitCode != 3 || r.Stdout != "out\n" || r.Stderr != "err\n" || end.EndedAt == nil || end.Output[0].Bytes != 4 {
		t.Errorf(`end = %+v, want r.Status == "exited" and *r.ExitCode == 3 and r.Stdout == "out\n" and r.Stderr == "err\n" and end.EndedAt != nil and end.Output[0].Bytes == 4`,
			end)
	}
	if again, isNew, err := d.StartProcess(t.Context(), "s1", p, req); err != nil || isNew || again.State != "ended" || again.Result == nil || *again.Result.ExitCode != 3 {
		t.Errorf("after its end: %+v, new %v, %v", again, isNew, err)
	}
	list, err := d.Processes(t.Context(), "s1")
	if err != nil || len(list) != 1 || list[0].Result == nil || *list[0].Result.ExitCode != 3 || list[0].Result.Stdout != "" {
		t.Errorf(`list = %+v, err = %v, want no error and len(list) == 1 and list[0].Result != nil and *list[0].Result.ExitCode == 3 and list[0].Result.Stdout == ""`,
			list, err)
	}
	if n := d.Sh(t, "s1", "wc -l < starts"); n != "1\n" {
		t.Errorf("it was started %s times", n)
	}
	if err := d.DeleteProcess(t.Context(), "s1", p); err != nil {
		t.Fatal(err)
	}
	_, err = d.Process(t.Context(), "s1", p, 0)
	boxtest.Refused(t, err, http.StatusNotFound, "")
}

func TestAnExecWithAnIDIsJoined(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.NewSession(t, api.SessionRequest{ID: "s1"})
	req := boxtest.Shell("echo run >> runs; cat; until [ -e go ]; do sleep 0.02; done; echo done")
	req.ID, req.Stdin = "e1", "in\n"
	body, err := json.Marshal(&req)
	if err != nil {
		t.Fatal(err)
	}
	detached := strings.TrimSuffix(string(body), "}") + `,"detach":true}`
	a := d.Raw(t, "POST", "/v1/sessions/s1/exec", detached)
	var state api.Process
	if err := json.Unmarshal(a.Body, &state); err != nil || a.Code != http.StatusAccepted || state.ID != "e1" || state.State != "running" || state.Timeout == nil {
		t.Fatalf(`a.Code = %d, a.Body = %s, err = %v, want no error and a.Code == 202 and state.ID == "e1" and state.State == "running" and state.Timeout != nil`,
			a.Code, a.Body, err)
	}
	conn, err := net.Dial("unix", d.Socket) // this client disconnects before it has its answer
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, boxtest.Request("POST", "/v1/sessions/s1/exec", string(body))); err != nil {
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
	d.Sh(t, "s1", "touch go")
	for range 2 {
		if r := <-results; r.Status != "exited" || r.Stdout != "in\ndone\n" {
			t.Errorf(`r = %s, want r.Status == "exited" and r.Stdout == "in\ndone\n"`, boxtest.Show(r))
		}
	}
	if r := d.Result(t, "s1", req); r.Stdout != "in\ndone\n" {
		t.Errorf(`later: r = %s, want r.Stdout == "in\ndone\n"`, boxtest.Show(r))
	}
	if n := d.Sh(t, "s1", "wc -l < runs"); n != "1\n" {
		t.Errorf("it ran %s times", n)
	}
	req.Stdin = "other"
	_, err = d.Exec(t.Context(), "s1", &req)
	if e, ok := err.(*client.Error); !ok || e.Status != http.StatusConflict { //nolint:errorlint // as it is
		t.Errorf("err = %v, want ok == true and e.Status == 409", err)
	}
	for path, body := range map[string]string{
		"/v1/sessions/s1/exec": `{"argv":["true"],"detach":true}`, "/v1/exec": `{"exec":{"argv":["true"],"id":"x"}}`,
	} {
		if p := d.Raw(t, "POST", path, body); p.Code != http.StatusBadRequest {
			t.Errorf("%s %s: p.Code = %d, p.Body = %s, want p.Code == 400", path, body, p.Code, p.Body)
		}
	}
}

// A stream that is cut off repeatedly resumes at the byte where it was, in both directions.
func TestAStreamGoesOnWhereItWas(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.NewSession(t, api.SessionRequest{ID: "s1"})
	req := boxtest.ShellProcess("tee /dev/stderr")
	req.Stdin = true
	d.NewProcess(t, "s1", "p", req)
	sent, taken := bytes.Repeat([]byte("0123456789abcdef\n"), 1<<16), int64(0)
	for i := range sent {
		sent[i] += byte(i >> 12 & 7)
	}
	var got [2][]byte
	for round := 0; int64(len(got[0])) < int64(len(sent)) || len(got[1]) < len(sent); round++ {
		asked := api.StreamAttach{Stdout: new(int64(len(got[0]))), Stderr: new(int64(len(got[1]))), Stdin: new(taken), Write: true, TakeOver: true, Lossless: new(true)}
		c, a := d.AttachPeer(t, "s1", "p", asked)
		if a.Stdout != *asked.Stdout || a.Stderr != *asked.Stderr || a.Stdin < taken || !a.Writer {
			t.Fatalf("round %d begins with %+v", round, a)
		}
		begun := taken
		for end := min(begun+3*40_000, int64(len(sent))); begun < end; begun += 40_000 { // 40,000 is no multiple of any size here
			c.Send(api.ChannelStdin, sent[begun:min(begun+40_000, end)])
		}
		for budget := 100_000 + 10_007*round; budget > 0 && (len(got[0]) < len(sent) || len(got[1]) < len(sent)); {
			m := c.Hear()
			switch {
			case m.Closed != nil || m.Control != nil && m.Control.StdinTaken == 0:
				t.Fatalf("round %d: m = %+v, m.Data = %s, want m.Closed == nil and (m.Control == nil or m.Control.StdinTaken != 0)",
					round, m, m.Data)
			case m.Control != nil:
				taken = int64(m.Control.StdinTaken)
			default:
				got[m.Channel-api.ChannelStdout] = append(got[m.Channel-api.ChannelStdout], m.Data...)
			}
			if taken >= begun && min(int64(len(got[0])), int64(len(got[1]))) >= taken {
				break // the stream has ended
			}
			budget -= len(m.Data)
		}
		_ = c.WS.CloseNow()
	}
	if !bytes.Equal(got[0], sent) || !bytes.Equal(got[1], sent) {
		t.Errorf("sent %s, got %s and %s", sum(sent), sum(got[0]), sum(got[1]))
	}
	c, _ := d.AttachPeer(t, "s1", "p", api.StreamAttach{Write: true, TakeOver: true})
	c.Send(api.ChannelStdin, nil)
	if end := c.Next().Exit; end == nil || end.Status != "exited" || end.Output[0].Bytes != uint64(len(sent)) || end.Stdout != "" {
		t.Errorf(`end = %+v, want end != nil and end.Status == "exited" and end.Output[0].Bytes == uint64(len(sent)) and end.Stdout == ""`,
			end)
	}
}

// The replacement of a writer is reported before anything that results from it, even if that ends the program.
func TestAReplacedWriterIsToldBeforeTheEnd(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.NewSession(t, api.SessionRequest{ID: "s"})
	for i := range 20 {
		id := fmt.Sprint("p", i)
		d.NewProcess(t, "s", id, &api.ProcessRequest{Argv: []string{"cat"}, Stdin: true})
		first, _ := d.AttachPeer(t, "s", id, api.StreamAttach{Write: true})
		second, _ := d.AttachPeer(t, "s", id, api.StreamAttach{Write: true, TakeOver: true})
		second.Send(api.ChannelStdin, nil)
		if m := first.Next(); !m.WriterLost {
			t.Fatalf("the first client gets %+v, want m.WriterLost == true", m)
		}
		if end := first.Next().Exit; end == nil || end.Status != "exited" {
			t.Fatalf("and then %+v", end)
		}
		if end := second.Next().Exit; end == nil || end.Status != "exited" {
			t.Fatalf(`the second client gets %+v, want end != nil and end.Status == "exited"`, end)
		}
	}
}

// A writer that has lost its connection can resume, even where boxd has not noticed the loss: it presents the same id, and other
// clients have none or another.
func TestAWriterGoesOnWhereBoxdStillHasItsLostConnection(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.NewSession(t, api.SessionRequest{ID: "s"})
	d.NewProcess(t, "s", "p", &api.ProcessRequest{Argv: []string{"cat"}, Stdin: true, Output: new(64 * quantity.KiB)})
	socket, cut := halfCut(t, d.Socket)
	through := client.New(socket)
	defer through.Close()
	input, typing := io.Pipe()
	reading, output := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		_, err := through.Attach(t.Context(), "s", "p", client.AttachOptions{Write: true, Lossless: true, WriterLost: func() { t.Error("the writer was replaced by another client") }}, client.Stdio{Stdin: input, Stdout: output}, nil)
		output.CloseWithError(io.EOF)
		ended <- err
	}()
	for _, text := range []string{"one", strings.Repeat("much", 1<<20), "three"} {
		go func() { _, _ = io.WriteString(typing, text) }() // ends when the input has been read
		got := make([]byte, len(text))
		if _, err := io.ReadFull(reading, got); err != nil || string(got) != text {
			t.Fatalf("of %d bytes %d are the same, %v", len(text), commonPrefix(text, string(got)), err)
		}
		if _, a := d.AttachPeer(t, "s", "p", api.StreamAttach{Write: true, WriterID: "another", Lossless: new(false)}); a.Writer {
			t.Error("another client became the writer")
		}
		cut()
	}
	typing.Close()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func commonPrefix(a, b string) (n int) {
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}

// halfCut returns a socket that forwards to another. cut closes the connections of its clients, and leaves open those to the other socket.
func halfCut(t *testing.T, to string) (socket string, cut func()) {
	t.Helper()
	socket = filepath.Join(boxtest.TempDir(t), "s")
	ln, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var near, all []net.Conn
	var work sync.WaitGroup
	work.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("unix", to)
			if err != nil {
				conn.Close()
				continue
			}
			mu.Lock()
			near, all = append(near, conn), append(all, conn, far)
			mu.Unlock()
			work.Go(func() { _, _ = io.Copy(far, conn) })
			work.Go(func() { _, _ = io.Copy(conn, far) })
		}
	})
	t.Cleanup(func() {
		ln.Close()
		mu.Lock()
		for _, conn := range all {
			conn.Close()
		}
		mu.Unlock()
		work.Wait()
	})
	return socket, func() {
		mu.Lock()
		defer mu.Unlock()
		for _, conn := range near {
			conn.Close()
		}
		near = nil
	}
}

func TestOneWritesAndManyRead(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.NewSession(t, api.SessionRequest{ID: "s1"})
	req := boxtest.ShellProcess("echo up; cat")
	req.Stdin = true
	d.NewProcess(t, "s1", "p", req)
	first, a := d.AttachPeer(t, "s1", "p", api.StreamAttach{Replay: true, Write: true})
	if !a.Writer || a.Process.ID != "p" || !a.Process.Writer || a.Process.Readers != 1 {
		t.Errorf(`a = %+v, want a.Writer == true and a.Process.ID == "p" and a.Process.Writer == true and a.Process.Readers == 1`,
			a)
	}
	first.Hears("up\n")
	first.Send(api.ChannelStdin, []byte("one\n"))
	first.Hears("one\n")
	second, a := d.AttachPeer(t, "s1", "p", api.StreamAttach{Write: true})
	if a.Writer || a.Stdout != 7 || a.Stdin > 4 { // input of the first counts once boxd knows that it was written
		t.Errorf("a = %+v, want a.Writer == false and a.Stdout == 7 and a.Stdin <= 4", a)
	}
	first.Send(api.ChannelStdin, []byte("two\n"))
	first.Hears("two\n")
	second.Hears("two\n")
	third, a := d.AttachPeer(t, "s1", "p", api.StreamAttach{Write: true, TakeOver: true})
	if !a.Writer || a.Stdin != 8 {
		t.Errorf("a = %+v, want a.Writer == true and a.Stdin == 8", a)
	}
	if !first.Next().WriterLost {
		t.Error("the first writer got no message that it lost the write access")
	}
	first.Send(api.ChannelStdin, []byte("late\n")) // from a writer that has been replaced
	third.Send(api.ChannelStdin, []byte("three\n"))
	for _, c := range []*boxtest.Peer{first, second, third} {
		c.Hears("three\n")
	}
	reader, _ := d.AttachPeer(t, "s1", "p", api.StreamAttach{Replay: true})
	reader.Hears("up\none\ntwo\nthree\n")
	reader.Send(api.ChannelStdin, []byte("x"))
	if m := reader.Hear(); websocket.CloseStatus(m.Closed) != websocket.StatusPolicyViolation {
		t.Errorf("a reader that writes: m.Closed = %v, want websocket.CloseStatus(m.Closed) == websocket.StatusPolicyViolation",
			m.Closed)
	}
	third.Send(api.ChannelStdin, nil)
	for _, c := range []*boxtest.Peer{first, second, third} {
		if end := c.Next().Exit; end == nil || end.Status != "exited" || *end.ExitCode != 0 {
			t.Errorf(`end = %+v, want end != nil and end.Status == "exited" and *end.ExitCode == 0`, end)
		}
	}
	if state := d.Ended(t, "s1", "p"); state.Writer || state.Result.Stdout != "up\none\ntwo\nthree\n" {
		t.Errorf(`state = %+v, want state.Writer == false and state.Result.Stdout == "up\none\ntwo\nthree\n"`, state)
	}
	boxtest.Eventually(t, "the reader that was the writer is detached too", func() bool { return d.Ended(t, "s1", "p").Readers == 0 })
}

// However many executions end after a process, a caller that lost its connection finds it. Of executions only the last are kept.
func TestExecutionsForgetNoProcess(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, boxtest.Lasting)
	d.NewSession(t, api.SessionRequest{ID: "s1"})
	d.NewProcess(t, "s1", "ends alone", boxtest.ShellProcess("echo out; exit 3"))
	d.NewProcess(t, "s1", "ends without boxd", boxtest.ShellProcess("until [ -e go ]; do sleep 0.02; done; echo out; exit 3"))
	d.Ended(t, "s1", "ends alone")
	d.NewProcess(t, "s1", "goes", boxtest.ShellProcess("sleep 1; touch go"))
	d.Kill()
	d.Restart()
	boxtest.Eventually(t, "all executions have ended", func() bool { // a list has no results
		list, err := d.Processes(t.Context(), "s1")
		return err == nil && len(list) == 3 && !slices.ContainsFunc(list, func(p api.Process) bool { return p.State != "ended" })
	})
	for i := range 70 {
		d.Result(t, "s1", api.ExecRequest{ID: fmt.Sprint("e", i), Argv: []string{"true"}})
	}
	for _, id := range []string{"ends alone", "ends without boxd"} {
		var out strings.Builder
		r, err := d.Attach(t.Context(), "s1", id, client.AttachOptions{Replay: true}, client.Stdio{Stdout: &out, Stderr: io.Discard}, nil)
		if err != nil || out.String() != "out\n" || *r.ExitCode != 3 {
			t.Errorf(`%s: out = %q, r = %+v, err = %v, want no error and out.String() == "out\n" and *r.ExitCode == 3`,
				id, &out, r, err)
		}
	}
	if _, err := d.Process(t.Context(), "s1", "e69", 0); err != nil {
		t.Error(err)
	}
	boxtest.Eventually(t, "the first execution is forgotten", func() bool { // this happens after the answer of the last
		_, err := d.Process(t.Context(), "s1", "e0", 0)
		return errors.Is(err, client.NotFound)
	})
}

// A writer that takes over while input of the previous one is pending starts right after the part of it that the program gets.
func TestWhoTakesOverLosesNothing(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.NewSession(t, api.SessionRequest{ID: "s1"})
	for i := range 8 {
		name := fmt.Sprint("p", i)
		req := boxtest.ShellProcess("dd bs=1 count=1 2>/dev/null; until [ -e go-" + name + " ]; do sleep 0.02; done; cat")
		req.Stdin = true
		d.NewProcess(t, "s1", name, req)
		first, _ := d.AttachPeer(t, "s1", name, api.StreamAttach{Write: true})
		for range 2 { // more than the capacity of a pipe
			first.Send(api.ChannelStdin, bytes.Repeat([]byte("a"), 60<<10))
		}
		first.Hears("a")
		d.Sh(t, "s1", "true") // by now the second message is pending
		second, a := d.AttachPeer(t, "s1", name, api.StreamAttach{Write: true, TakeOver: true})
		second.Send(api.ChannelStdin, []byte("second's\n"))
		second.Send(api.ChannelStdin, nil)
		d.Sh(t, "s1", "touch go-"+name)
		second.Hears(strings.Repeat("a", int(a.Stdin)-1) + "second's\n")
		if end := second.Next().Exit; !a.Writer || end == nil || end.Status != "exited" || *end.ExitCode != 0 {
			t.Errorf(`a = %+v, end = %+v, want a.Writer == true and end != nil and end.Status == "exited" and *end.ExitCode == 0`,
				a, end)
		}
	}
}

// A reader that attaches too late is told how many bytes it missed, and gets exactly the rest.
func TestAGapIsTold(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.NewSession(t, api.SessionRequest{ID: "s1"})
	const lines, width = 1 << 20, 8 // 8 MiB
	req := boxtest.ShellProcess(fmt.Sprintf("seq -f %%07.0f 0 %d", lines-1))
	req.Output = new(quantity.MiB)
	d.NewProcess(t, "s1", "p", req)
	state := d.Ended(t, "s1", "p")
	if state.Output[0].Bytes != lines*width || state.Output[0].From < 4<<20 {
		t.Fatalf("state.Output = %+v, want state.Output[0].Bytes == lines * width and state.Output[0].From >= 4 << 20",
			state.Output)
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
		c, a := d.AttachPeer(t, "s1", "p", tc.asked)
		at := a.Stdout
		for end := false; !end; {
			m := c.Hear()
			switch {
			case m.Closed != nil:
				t.Fatal(m.Closed)
			case m.Control != nil && m.Control.Gap != nil:
				at += m.Control.Gap.Bytes
			case m.Control != nil:
				if end = true; m.Control.Exit == nil {
					t.Fatalf("m.Data = %s, want m.Control.Exit != nil", m.Data)
				}
			case tc.asked.Lines:
				if want := fmt.Sprintf("%07d", at/width); at%width != 0 || string(m.Data) != want {
					t.Fatalf("at %d is %q, want at %% width == 0 and m.Data == want", at, m.Data)
				}
				at += width
			default:
				for i, b := range m.Data {
					if n := at + int64(i); b != fmt.Sprintf("%07d\n", n/width)[n%width] {
						t.Fatalf(`at %d is %q, want b == fmt.Sprintf("%%07d\n", n/width)[n%%width]`, n, b)
					}
				}
				at += int64(len(m.Data))
			}
		}
		if at != state.Output[0].Bytes || a.Stdout != tc.begin {
			t.Errorf("%+v: from %d it ends at %d of %d", tc.asked, a.Stdout, at, state.Output[0].Bytes)
		}
	}
	c := d.DialProcess(t, "s1", "p")
	c.Control(api.ClientControl{Attach: &api.StreamAttach{Stdout: new(state.Output[0].Bytes + 1)}})
	if p := c.Next().Error; p == nil || p.Status != 400 || p.Field != "attach.stdout" {
		t.Errorf(`p = %+v, want p != nil and p.Status == 400 and p.Field == "attach.stdout"`, p)
	}
}

// A reader that does not read neither slows the program down nor costs boxd memory, and is told what it missed.
func TestASlowReaderHoldsUpNothing(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.NewSession(t, api.SessionRequest{ID: "s1"})
	const size = 200 << 20
	req := boxtest.ShellProcess(fmt.Sprintf("until [ -e go ]; do sleep 0.02; done; head -c %d /dev/zero", size))
	d.NewProcess(t, "s1", "p", req)
	slow, a := d.AttachPeer(t, "s1", "p", api.StreamAttach{})
	before := boxtest.Memory(t, d.PID(), "RssAnon")
	d.Sh(t, "s1", "touch go")
	var state api.Process
	boxtest.Eventually(t, "the process has ended", func() bool { // requested without its output
		list, err := d.Processes(t.Context(), "s1")
		if err != nil || len(list) != 1 {
			t.Fatalf("list = %+v, err = %v, want no error and len(list) == 1", list, err)
		}
		state = list[0]
		return state.State == "ended"
	})
	if now := boxtest.Memory(t, d.PID(), "RssAnon"); now > before+16<<20 {
		t.Errorf("boxd has grown from %d to %d bytes", before, now)
	}
	at, gaps := a.Stdout, 0
	for {
		m := slow.Hear()
		if m.Closed != nil {
			t.Fatal(m.Closed)
		}
		if m.Control != nil && m.Control.Exit != nil {
			break
		}
		if m.Control != nil {
			at += m.Control.Gap.Bytes
			gaps++
		} else {
			at += int64(len(m.Data))
		}
	}
	if at != size || state.Output[0].Bytes != size || gaps == 0 {
		t.Errorf("it ends at %d with %d gaps", at, gaps)
	}
}

func TestMessagesOfMCPAreLines(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.NewSession(t, api.SessionRequest{ID: "s1"})
	req := boxtest.ShellProcess(`printf half; sleep 0.1; echo; printf 'a\n\nb\n'; printf log >&2; while read -r line; do echo "<$line>"; done; printf unfinished`)
	req.Stdin = true
	d.NewProcess(t, "s1", "p", req)
	c, _ := d.AttachPeer(t, "s1", "p", api.StreamAttach{Replay: true, Write: true, Lines: true})
	line := func(want string) {
		t.Helper()
		for {
			m := c.Hear()
			if m.Channel == api.ChannelStdout {
				if string(m.Data) != want {
					t.Fatalf("%.40q, want %.40q", m.Data, want)
				}
				return
			}
			if m.Closed != nil || m.Control != nil && m.Control.StdinTaken == 0 {
				t.Fatalf("m = %+v, m.Data = %s, want m.Closed == nil and (m.Control == nil or m.Control.StdinTaken != 0)",
					m, m.Data)
			}
		}
	}
	for _, want := range []string{"half", "a", "", "b"} {
		line(want)
	}
	c.Send(api.ChannelStdin, []byte(`{"id":1}`))
	line(`<{"id":1}>`)
	long := strings.Repeat("x", 1<<20)
	c.Send(api.ChannelStdin, []byte(long))
	line("<" + long + ">")
	late, a := d.AttachPeer(t, "s1", "p", api.StreamAttach{Lines: true}) // attached at the start of a line
	c.Send(api.ChannelStdin, []byte("both"))
	line("<both>")
	if m := late.Hear(); string(m.Data) != "<both>" || a.Stdout == 0 {
		t.Errorf(`m = %+v, m.Data = %s, want m.Data == "<both>" and a.Stdout != 0`, m, m.Data)
	}
	c.Send(api.ChannelStdin, nil)
	if msg := c.Next(); msg.Gap == nil || msg.Gap.Bytes != int64(len("unfinished")) {
		t.Errorf(`msg = %+v, want msg.Gap != nil and msg.Gap.Bytes == int64(len("unfinished"))`, msg)
	}
	if msg := c.Next(); msg.Exit == nil {
		t.Errorf("msg = %+v, want msg.Exit != nil", msg)
	}
	two, _ := d.AttachPeer(t, "s1", "p", api.StreamAttach{Write: true, Lines: true})
	two.Send(api.ChannelStdin, []byte("two\nlines"))
}

func TestWhoBreaksTheRulesLeavesTheProcessAlone(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.NewSession(t, api.SessionRequest{ID: "s1"})
	d.NewProcess(t, "s1", "p", boxtest.ShellProcess("sleep 1000"))
	for _, path := range []string{"/v1/sessions/s1/processes/none/stream", "/v1/sessions/none/processes/p/stream"} {
		a := d.Raw(t, "GET", path, "")
		if a.Problem(t); a.Code != http.StatusNotFound {
			t.Errorf("%s: a.Code = %d, want 404", path, a.Code)
		}
	}
	for _, a := range d.AsUser(t, boxtest.OtherUID, boxtest.Request("GET", "/v1/sessions/s1/processes/p", ""), boxtest.Request("DELETE", "/v1/sessions/s1/processes/p", ""), boxtest.Request("GET", "/v1/sessions/s1/processes/p/logs", "")) {
		if p := a.Problem(t); a.Code != http.StatusNotFound || !strings.Contains(p.Detail, "no session") {
			t.Errorf(`a.Code = %d, a.Body = %s, want a.Code == 404 and p.Detail containing "no session"`,
				a.Code, a.Body)
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
		c := d.DialProcess(t, "s1", "p")
		c.Send(api.ChannelControl, []byte(tc.first))
		if tc.close == 0 {
			if p := c.Next().Error; p == nil || p.Status != 400 || tc.field != "" && p.Field != tc.field {
				t.Errorf(`%s: p = %+v, want p != nil and p.Status == 400 and (tc.field == "" or p.Field == %v)`,
					name, p, tc.field)
			}
			continue
		}
		c.Hear()
		if err := c.WS.Write(t.Context(), websocket.MessageBinary, tc.then); err != nil {
			t.Error(err)
		}
		if m := c.Hear(); websocket.CloseStatus(m.Closed) != tc.close {
			t.Errorf("%s: m = %+v, m.Data = %s, want websocket.CloseStatus(m.Closed) == tc.close", name, m, m.Data)
		}
	}
	for path, body := range map[string]string{
		"signal": `{"signal":"HUP"}`, "resize": `{"rows":0,"cols":80}`, "stop": `{"signal":"SIGINT"}`,
	} {
		if a := d.Raw(t, "POST", "/v1/sessions/s1/processes/p/"+path, body); a.Code != http.StatusBadRequest {
			t.Errorf("%s: a.Code = %d, a.Body = %s, want a.Code == 400", path, a.Code, a.Body)
		}
	}
	for _, query := range []string{"wait=x", "wait=11m", "wait=-1s", "follow=true"} {
		if a := d.Raw(t, "GET", "/v1/sessions/s1/processes/p?"+query, ""); a.Code != http.StatusBadRequest {
			t.Errorf("%s: a.Code = %d, a.Body = %s, want a.Code == 400", query, a.Code, a.Body)
		}
	}
	if state, err := d.Process(t.Context(), "s1", "p", 0); err != nil || state.State != "running" {
		t.Errorf(`state = %+v, err = %v, want no error and state.State == "running"`, state, err)
	}
	if state, err := d.StopProcess(t.Context(), "s1", "p"); err != nil || state.State != "ended" || state.Reason != "stopped" || state.Result.Signal != "SIGTERM" {
		t.Errorf(`state = %+v, err = %v, want no error and state.State == "ended" and state.Reason == "stopped" and state.Result.Signal == "SIGTERM"`,
			state, err)
	}
}

// A terminal is a real one for the program, has the size that its client sets, and sends an interrupt on a key.
func TestAStreamWithATerminal(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.NewSession(t, api.SessionRequest{ID: "s1"})
	for _, id := range []string{"", `,"id":"e1"`} {
		c := d.Dial(t, "/v1/sessions/s1/exec/stream")
		c.Send(api.ChannelControl, fmt.Appendf(nil, `{"start":{"exec":{"command":"stty size; read x; stty size; trap 'echo int; exit 4' INT; echo on; while :; do sleep 0.02; done"%s},"stdin":true,"terminal":{"rows":33,"cols":99}}}`, id))
		if msg := c.Next(); msg.Started == nil {
			t.Fatalf("msg = %+v, want msg.Started != nil", msg)
		}
		c.Hears("33 99\r\n")
		c.Control(api.ClientControl{Resize: &api.Terminal{Rows: 40, Cols: 100}})
		c.Send(api.ChannelStdin, []byte("\n"))
		c.Hears("\r\n40 100\r\non\r\n")
		c.Send(api.ChannelStdin, []byte{3})
		if end := c.Next().Exit; end == nil || end.Status != "exited" || *end.ExitCode != 4 {
			t.Errorf(`end = %+v, want end != nil and end.Status == "exited" and *end.ExitCode == 4`, end)
		}
	}
	c := d.Dial(t, "/v1/sessions/s1/exec/stream")
	c.Send(api.ChannelControl, []byte(`{"start":{"exec":{"command":"echo up; sleep 1000"},"terminal":{"rows":33,"cols":99}}}`))
	c.Next()
	c.Hears("up\r\n")
	_ = c.WS.CloseNow()
	boxtest.Eventually(t, "the program is ended whose terminal nobody can attach to again", func() bool {
		list, err := d.Processes(t.Context(), "s1")
		return err == nil && len(list) == 1 && list[0].ID == "e1"
	})
}

func TestLogsAreWhatWasWritten(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.NewSession(t, api.SessionRequest{ID: "s1"})
	d.NewProcess(t, "s1", "p", boxtest.ShellProcess(`goes() { until [ -e "$1" ]; do sleep 0.02; done; }
		echo one; goes 1; sleep 0.3; echo two >&2; goes 2; sleep 0.3; echo thrée; goes go; echo four`))
	for i, bytes := range [][2]int64{{4, 0}, {4, 4}, {11, 4}} { // a busy host might otherwise read both at once, in no order
		boxtest.Eventually(t, fmt.Sprintf("the process has written %d lines", i+1), func() bool {
			s, err := d.Process(t.Context(), "s1", "p", 0)
			return err == nil && [2]int64{s.Output[0].Bytes, s.Output[1].Bytes} == bytes
		})
		if i < 2 {
			d.Sh(t, "s1", fmt.Sprintf("touch %d", i+1))
		}
	}
	get := func(query string) string {
		t.Helper()
		a := d.Raw(t, "GET", "/v1/sessions/s1/processes/p/logs?"+query, "")
		if a.Code != http.StatusOK {
			t.Errorf("%s: a.Code = %d, a.Body = %s, want a.Code == 200", query, a.Code, a.Body)
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
	since := []string{"0001-01-02T00:00:00Z"}
	for line := range strings.Lines(get("timestamps=true")) {
		at, _, _ := strings.Cut(line, " ")
		since = append(since, at)
	}
	since = append(since, "2999-01-01T00:00:00Z")
	for i, want := range []string{"one\ntwo\nthrée\n", "one\ntwo\nthrée\n", "two\nthrée\n", "thrée\n", ""} {
		if got := get("since=" + since[i]); got != want {
			t.Errorf("since %s: %q, want %q", since[i], got, want)
		}
		if got := get("lines=1&since=" + since[i]); got != want[max(len(want)-len("thrée\n"), 0):] {
			t.Errorf(`the last line since %s: got %q, want want[max(len(want)-len("thrée\n"), 0):]`, since[i], got)
		}
	}
	if got := get("lines=5&stream=stderr&since=" + since[3]); got != "" {
		t.Errorf(`of standard error since the third line: got %q, want ""`, got)
	}
	if got := get("timestamps=true&lines=2"); strings.Count(got, "Z t") != 2 || strings.Count(got, time.Now().UTC().Format("2006-")) != 2 {
		t.Errorf("got %q", got)
	}
	conn, err := net.Dial("unix", d.Socket)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, boxtest.Request("GET", "/v1/sessions/s1/processes/p/logs?follow=true&format=sse", "")); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil || resp.Header.Get("Content-Type") != "text/event-stream" {
		t.Fatalf(`resp = %+v, err = %v, want no error and resp.Header.Get("Content-Type") == "text/event-stream"`,
			resp, err)
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
	d.Sh(t, "s1", "touch go")
	rest, err := io.ReadAll(events)
	if err != nil || !strings.Contains(string(rest), `"data":"four\n"`) || !strings.HasSuffix(string(rest), "event: end\nid: 16.4\ndata: {}\n\n") {
		t.Errorf("rest = %q, err = %v, want no error and rest containing `\"data\":\"four\\n\"` and rest ending with \"event: end\\nid: 16.4\\ndata: {}\\n\\n\"",
			rest, err)
	}
	for last, want := range map[string]string{"4.4": `"offset":4,`, "11.4": `"offset":11,`, "16.4": ""} {
		a, err := boxtest.Ask(t.Context(), d.Socket, boxtest.Request("GET", "/v1/sessions/s1/processes/p/logs?follow=true&format=sse", "", "Last-Event-ID: "+last))
		if _, first, _ := strings.Cut(string(a.Body), "stdout\","); err != nil || !strings.HasPrefix(first, want) || (a.Code == http.StatusNoContent) != (want == "") {
			t.Errorf(`%s: a.Code = %d, a.Body = %s, err = %v, want no error and first starting with %q and (a.Code == http.StatusNoContent) == (want == "")`,
				last, a.Code, a.Body, err, want)
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
		t.Errorf(`all = %q, err = %v, want no error and all.String() == "one\ntwo\nthrée\nfour\n"`, all.String(), err)
	}
}

// A client that follows one stream of an ended process gets all of it at once, whatever the other stream has.
func TestTheLogsOfOneStreamEnd(t *testing.T) {
	t.Parallel()
	d := boxtest.Beside(t)
	d.NewSession(t, api.SessionRequest{ID: "s"})
	d.NewProcess(t, "s", "p", boxtest.ShellProcess("echo out; echo error >&2"))
	for stream, want := range map[string]string{"stdout": "out\n", "stderr": "error\n"} {
		got := ""
		err := d.LogLines(t.Context(), "s", "p", client.LogOptions{Follow: true, Stream: stream}, func(l *api.LogLine) error {
			got += l.Data
			return nil
		})
		if err != nil || got != want {
			t.Errorf("%s: got %q, err = %v, want no error and got == %q", stream, got, err, want)
		}
	}
}

// Logs, too, read output of a program no faster than their reader takes it.
func TestLogsOfMuchTakeNoMemory(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.NewSession(t, api.SessionRequest{ID: "s1"})
	req := boxtest.ShellProcess("head -c 100000000 /dev/zero; until [ -e go ]; do sleep 0.02; done")
	d.NewProcess(t, "s1", "p", req)
	before := boxtest.Memory(t, d.PID(), "RssAnon")
	body, err := d.Logs(t.Context(), "s1", "p", client.LogOptions{Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	defer body.Close()
	boxtest.Eventually(t, "the process has written all its output", func() bool {
		s, err := d.Process(t.Context(), "s1", "p", 0)
		return err == nil && s.Output[0].Bytes == 100_000_000
	})
	if now := boxtest.Memory(t, d.PID(), "RssAnon"); now > before+16<<20 {
		t.Errorf("boxd has grown from %d to %d bytes", before, now)
	}
	d.Sh(t, "s1", "touch go")
	text, err := io.ReadAll(body)
	if err != nil || !bytes.Contains(text, []byte("bytes omitted] ...")) || len(text) < 1<<20 {
		t.Errorf("%d bytes, %v", len(text), err)
	}
}

// The pid that a program had in its box is still known after it has ended, to the next boxd too.
func TestThePIDOfAProgramThatHasEndedIsKnown(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, boxtest.Kept)
	d.NewSession(t, api.SessionRequest{ID: "s"})
	const say = "echo $$; exit 3"
	d.NewProcess(t, "s", "p", boxtest.ShellProcess(say))
	d.NewProcess(t, "s", "none", &api.ProcessRequest{Argv: []string{"/nonesuch"}})
	check := func(when string) {
		t.Helper()
		p := d.Ended(t, "s", "p")
		if p.PID == 0 || p.Result.PID != p.PID || fmt.Sprintln(p.PID) != p.Result.Stdout {
			t.Errorf("%s: %d, %d, and it has said %q, want p.PID != 0 and p.Result.PID == p.PID and fmt.Sprintln(p.PID) == p.Result.Stdout",
				when, p.PID, p.Result.PID, p.Result.Stdout)
		}
		if r := d.Result(t, "s", api.ExecRequest{ID: "x", Command: new(say)}); r.PID == 0 || fmt.Sprintln(r.PID) != r.Stdout {
			t.Errorf("%s: %d, and it has said %q, want r.PID != 0 and fmt.Sprintln(r.PID) == r.Stdout",
				when, r.PID, r.Stdout)
		}
	}
	if p := d.Ended(t, "s", "none"); p.PID != 0 || p.Result.PID != 0 {
		t.Errorf("a process that has not started has the PIDs %d and %d", p.PID, p.Result.PID)
	}
	check("at once")
	d.Kill()
	d.Restart()
	check("after a restart")
	again, _, err := d.StartProcess(t.Context(), "s", "again", &api.ProcessRequest{Command: new("echo $$; sleep 0.01; exit 1"), Restart: &api.Restart{Policy: "on-failure", Delay: boxtest.Duration("10ms"), Limit: new(2)}})
	if err != nil || again.PID == 0 {
		t.Fatalf("again = %+v, err = %v, want no error and again.PID != 0", again, err)
	}
	p := d.Ended(t, "s", "again")
	if said := strings.Fields(p.Result.Stdout); len(said) != 3 || said[2] != fmt.Sprint(p.PID) || p.Result.PID != p.PID {
		t.Errorf("PID %d, and the programs printed %q, want len(said) == 3 and said[2] == fmt.Sprint(p.PID) and p.Result.PID == p.PID",
			p.PID, said)
	}
}

// A reader that attaches late and requests no replay gets the output from then on, and with lossless all of it, however little is
// retained and however fast the program writes.
func TestALateReaderBeginsNowAndLosesNothing(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.NewSession(t, api.SessionRequest{ID: "s"})
	d.NewProcess(t, "s", "quiet", &api.ProcessRequest{Command: new("echo old; read go; seq 200000"), Stdin: true, Output: new(4 * quantity.KiB)})
	boxtest.Eventually(t, "the first line has been written", func() bool {
		p, err := d.Process(t.Context(), "s", "quiet", 0)
		return err == nil && p.Output[0].Bytes == 4
	})
	c, a := d.AttachPeer(t, "s", "quiet", api.StreamAttach{Write: true, Lossless: new(true)})
	if a.Stdout != 4 || a.Stderr != 0 {
		t.Fatalf("the output begins at %d and %d", a.Stdout, a.Stderr)
	}
	c.Send(api.ChannelStdin, []byte("go\n"))
	var want strings.Builder
	for i := range 200000 {
		fmt.Fprintln(&want, i+1)
	}
	c.Hears(want.String())

	// A program that never stops: each reader starts somewhere in the middle, and from there every number follows the previous one.
	d.NewProcess(t, "s", "fast", &api.ProcessRequest{Argv: []string{"seq", "inf"}, Output: new(4 * quantity.KiB)})
	for range 20 {
		c, _ := d.AttachPeer(t, "s", "fast", api.StreamAttach{Lossless: new(true)})
		var got []byte
		for len(got) < 64<<10 {
			m := c.Hear()
			if m.Closed != nil || m.Control != nil || m.Channel != api.ChannelStdout {
				t.Fatalf("after %d bytes: m = %+v, m.Data = %s, want m.Closed == nil and m.Control == nil and m.Channel == api.ChannelStdout",
					len(got), m, m.Data)
			}
			got = append(got, m.Data...)
		}
		_ = c.WS.CloseNow()
		lines := strings.Split(string(got), "\n")
		lines = lines[1 : len(lines)-1] // complete lines
		for i := 1; i < len(lines); i++ {
			x, _ := strconv.Atoi(lines[i-1])
			if y, err := strconv.Atoi(lines[i]); err != nil || y != x+1 {
				t.Fatalf("%q is followed by %q", lines[i-1], lines[i])
			}
		}
	}
}

// With leftovers = "keep" the background processes of a program survive its end, be it an execution, one with an id, a stream or
// a process; the next boxd leaves them alone too. A program that is stopped ends with its process group, and one that exceeds its
// timeout ends with everything that it has started.
func TestWhatRunsInTheBackgroundIsKept(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, boxtest.Kept, "[profiles.keeper]\nleftovers = \"keep\"\n")
	d.NewSession(t, api.SessionRequest{ID: "s", Profile: "keeper"})
	behind := func(n int) string { return fmt.Sprintf("sleep %d & echo $!", 1000+n) }
	if r := d.Result(t, "s", boxtest.Shell(behind(1))); r.Status != "exited" || r.LeftoversKilled != 0 {
		t.Errorf(`an execution: r = %s, want r.Status == "exited" and r.LeftoversKilled == 0`, boxtest.Show(r))
	}
	if r := d.Result(t, "s", api.ExecRequest{ID: "x", Command: new(behind(2))}); r.Status != "exited" || r.LeftoversKilled != 0 {
		t.Errorf(`an execution with an id: r = %s, want r.Status == "exited" and r.LeftoversKilled == 0`,
			boxtest.Show(r))
	}
	d.NewProcess(t, "s", "p", boxtest.ShellProcess(behind(3)))
	if p := d.Ended(t, "s", "p"); p.Result.Status != "exited" || p.Result.LeftoversKilled != 0 {
		t.Errorf(`a process: p.Result = %+v, want p.Result.Status == "exited" and p.Result.LeftoversKilled == 0`,
			p.Result)
	}
	// The end of the shell sends SIGHUP to what is left in its session.
	d.NewProcess(t, "s", "terminal", &api.ProcessRequest{Command: new("setsid sleep 1004 & until pgrep -fx 'sleep 1004'; do :; done"), Terminal: &api.Terminal{Rows: 24, Cols: 80}})
	if p := d.Ended(t, "s", "terminal"); p.Result.Status != "exited" || p.Result.LeftoversKilled != 0 {
		t.Errorf(`a process with a terminal: p.Result = %+v, want p.Result.Status == "exited" and p.Result.LeftoversKilled == 0`,
			p.Result)
	}
	peer := d.Dial(t, "/v1/sessions/s/exec/stream")
	peer.Control(api.ClientControl{Start: &api.StreamStart{Exec: api.ExecRequest{Command: new(behind(5))}}})
	for end := peer.Next(); ; end = peer.Next() {
		if r := end.Exit; r != nil {
			if r.Status != "exited" || r.LeftoversKilled != 0 {
				t.Errorf(`a stream: *r = %s, want r.Status == "exited" and r.LeftoversKilled == 0`, boxtest.Show(*r))
			}
			break
		}
	}
	const alive = "pgrep -fx 'sleep 10..' | wc -l"
	boxtest.Eventually(t, "all five programs run", func() bool { return d.Sh(t, "s", alive) == "5\n" }) // one may still be a shell before its execve
	d.Kill()
	d.Restart()
	if got := d.Sh(t, "s", alive); got != "5\n" {
		t.Errorf(`after a restart there are %s, want "5\n"`, got)
	}
	d.NewProcess(t, "s", "stopped", boxtest.ShellProcess("sleep 2000 & sleep 2001"))
	boxtest.Eventually(t, "both programs run", func() bool { return d.Sh(t, "s", "pgrep -fx 'sleep 200.' | wc -l") == "2\n" })
	if _, err := d.StopProcess(t.Context(), "s", "stopped"); err != nil {
		t.Fatal(err)
	}
	if r := d.Result(t, "s", api.ExecRequest{Command: new("setsid sleep 2002 & sleep 2003"), Timeout: boxtest.Duration("1s")}); r.Status != "timed_out" {
		t.Errorf(`r = %s, want r.Status == "timed_out"`, boxtest.Show(r))
	}
	if got := d.Sh(t, "s", "pgrep -fx 'sleep 200.'; "+alive); got != "5\n" {
		t.Errorf(`programs that run (stopped process, kept process): %s, want "5\n"`, got)
	}
}
