// SPDX-License-Identifier: Apache-2.0

package sessions_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

// talk is a program whose input and output the test controls.
type talk struct {
	in      *io.PipeWriter
	out     *io.PipeReader
	signals chan string
	result  chan *api.ExecResult
	err     error // valid after result
}

// converse starts a program in a session; both its outputs arrive on out.
func converse(ctx context.Context, d *boxtest.Daemon, id string, req api.ExecRequest) *talk {
	c := &talk{signals: make(chan string), result: make(chan *api.ExecResult, 1)}
	stdin, in := io.Pipe()
	out, stdout := io.Pipe()
	c.in, c.out = in, out
	go func() {
		r, err := d.ExecStream(ctx, id, &req, client.Stdio{Stdin: stdin, Stdout: stdout, Stderr: stdout}, c.signals)
		c.err = err
		stdout.CloseWithError(io.EOF)
		stdin.CloseWithError(io.ErrClosedPipe)
		c.result <- r
	}()
	return c
}

// hears reads exactly the expected text.
func (c *talk) hears(t *testing.T, want string) {
	t.Helper()
	got := make([]byte, len(want))
	if n, err := io.ReadFull(c.out, got); err != nil || string(got) != want {
		t.Fatalf("got %q and %v, want %q", got[:n], err, want)
	}
}

func (c *talk) says(t *testing.T, text string) {
	t.Helper()
	if _, err := io.WriteString(c.in, text); err != nil {
		t.Fatal(err)
	}
}

func (c *talk) ends(t *testing.T) *api.ExecResult {
	t.Helper()
	rest, err := io.ReadAll(c.out)
	r := <-c.result
	if err != nil || c.err != nil || len(rest) > 0 {
		t.Fatalf("at the end: rest = %q, err = %v, c.err = %v, want no error and no error and len(rest) == 0",
			rest, err, c.err)
	}
	return r
}

func TestAStreamIsAConversation(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.NewSession(t, api.SessionRequest{ID: "s1"})
	c := converse(t.Context(), d, "s1", lasting("echo who are you; read name; echo hello $name; cat; echo; echo bye; exit 7"))
	for range 2 { // the second fails if the program waits for more input than was sent
		c.hears(t, "who are you\n")
		c.says(t, "me\n")
		c.hears(t, "hello me\n")
		c.says(t, "one")
		c.hears(t, "one")
		c.says(t, "two")
		c.hears(t, "two")
		c.in.Close()
		c.hears(t, "\nbye\n")
		if r := c.ends(t); r.Status != "exited" || *r.ExitCode != 7 || r.Stdout != "" || r.Output[1].Bytes != 0 {
			t.Errorf(`*r = %s, want r.Status == "exited" and *r.ExitCode == 7 and r.Stdout == "" and r.Output[1].Bytes == 0`,
				boxtest.Show(*r))
		}
		c = converse(t.Context(), d, "s1", boxtest.Shell("echo who are you; read name; echo hello $name; cat; echo; echo bye; exit 7"))
	}
	c.in.Close()
	c.hears(t, "who are you\nhello\n\nbye\n")
	c.ends(t)
}

func TestAStreamWithoutInputIsAtItsEnd(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.NewSession(t, api.SessionRequest{ID: "s1"})
	var out bytes.Buffer
	r, err := d.ExecStream(t.Context(), "s1", new(boxtest.Shell("cat; echo end")), client.Stdio{Stdout: &out, Stderr: &out}, nil)
	if err != nil || r.Status != "exited" || out.String() != "end\n" {
		t.Errorf(`r = %+v, err = %v, out = %q, want no error and r.Status == "exited" and out.String() == "end\n"`,
			r, err, out.String())
	}
}

// An execution without an id takes a single request, and boxd keeps nothing of it once its client has the result.
func TestAnExecutionIsOneRequest(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.NewSession(t, api.SessionRequest{ID: "s1"})
	for range 20 {
		if r, err := d.ExecStream(t.Context(), "s1", new(boxtest.Shell("true")), client.Stdio{}, nil); err != nil || r.Status != "exited" {
			t.Fatalf(`r = %+v, err = %v, want no error and r.Status == "exited"`, r, err)
		}
		if left, err := d.Processes(t.Context(), "s1"); err != nil || len(left) > 0 {
			t.Fatalf("%d left, %v", len(left), err)
		}
	}
	metrics := string(d.Raw(t, "GET", "/metrics", "").Body)
	if n := strings.Count(metrics, `route="GET /v1/sessions/{id}/exec/stream"`); n == 0 || strings.Contains(metrics, `route="DELETE /v1/sessions/{id}/processes/{p}"`) {
		t.Errorf("not by one request each:\n%s", metrics)
	}
	// It is not released before its end, nor for a client that did not announce this.
	for name, message := range map[string]string{"early": "false before the program has exited", "unasked": "false without the subprotocol"} {
		p, isNew, err := d.StartProcess(t.Context(), "s1", name, &api.ProcessRequest{Command: new(map[string]string{"early": "sleep 1000", "unasked": "true"}[name])})
		if err != nil || !isNew {
			t.Fatal(err)
		}
		peer, _ := d.AttachPeer(t, "s1", name, api.StreamAttach{Replay: true})
		if name == "unasked" {
			if _, err := d.Process(t.Context(), "s1", p.ID, time.Minute); err != nil {
				t.Fatal(err)
			}
		}
		peer.Control(api.ClientControl{Forget: true})
		var said websocket.CloseError
		for err = nil; err == nil; {
			_, _, err = peer.WS.Read(t.Context())
		}
		if name == "early" && (!errors.As(err, &said) || said.Code != websocket.StatusPolicyViolation || !strings.Contains(said.Reason, message)) {
			t.Errorf(`%s: err = %v, want name != "early" or errors.As(err, &said) and said.Code == websocket.StatusPolicyViolation and said.Reason containing %q`,
				name, err, message)
		}
		if _, err := d.Process(t.Context(), "s1", name, 0); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A program without an id belongs to its client alone: no list shows it, and it ends as soon as its client disconnects, and with boxd.
func TestAStreamWithoutAnIDEndsWithItsClient(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, boxtest.Kept)
	d.NewSession(t, api.SessionRequest{ID: "s1"})
	begin := func() *boxtest.Peer {
		p := d.Dial(t, "/v1/sessions/s1/exec/stream")
		p.Control(api.ClientControl{Start: &api.StreamStart{Exec: boxtest.Shell("trap '' HUP TERM; while :; do sleep 0.1; done"), Stdin: true}})
		if m := p.Hear(); m.Control == nil || m.Control.Started == nil {
			t.Fatalf("m = %+v, want m.Control != nil and m.Control.Started != nil", m)
		}
		return p
	}
	ended := func() bool { return d.Sh(t, "s1", "pgrep -f 'trap .. HUP' | grep -vx $$; true") == "" }
	p := begin()
	if list, err := d.Processes(t.Context(), "s1"); err != nil || len(list) > 0 {
		t.Errorf("list = %+v, err = %v, want no error and len(list) == 0", list, err)
	}
	boxtest.Eventually(t, "the program runs", func() bool { return !ended() })
	_ = p.WS.CloseNow()
	boxtest.Eventually(t, "the program has ended with its client", ended)
	begin()
	boxtest.Eventually(t, "the second program runs", func() bool { return !ended() })
	d.Kill()
	d.Restart()
	boxtest.Eventually(t, "the second program has ended with boxd", ended)
	if list, err := d.Processes(t.Context(), "s1"); err != nil || len(list) > 0 {
		t.Errorf("list = %+v, err = %v, want no error and len(list) == 0", list, err)
	}
}

func TestSignalsReachTheProgramAndItsChildren(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.NewSession(t, api.SessionRequest{ID: "s1"})
	// Not sh: dash catches SIGINT itself, and loses one that arrives just before its execve of sleep.
	c := converse(t.Context(), d, "s1", api.ExecRequest{Timeout: boxtest.Duration("2m"), Language: "bash", Code: new(`exec 2>/dev/null; trap 'echo usr1' USR1; sh -c 'trap "echo child; exit" USR1; echo up; while :; do sleep 0.02; done' & wait; wait; echo on; exec sleep 1000`)})
	c.hears(t, "up\n")
	c.signals <- "SIGUSR1"
	printed := make([]byte, len("child\nusr1\non\n"))
	if _, err := io.ReadFull(c.out, printed); err != nil || !strings.Contains(string(printed), "child\n") || !strings.Contains(string(printed), "usr1\n") {
		t.Fatalf(`printed = %q, err = %v, want no error and printed containing "child\n" and printed containing "usr1\n"`,
			printed, err)
	}
	c.signals <- "SIGINT"
	if r := c.ends(t); r.Status != "signaled" || r.Signal != "SIGINT" {
		t.Errorf(`*r = %s, want r.Status == "signaled" and r.Signal == "SIGINT"`, boxtest.Show(*r))
	}
}

// A stream loses no byte, whatever its size, in either direction.
func TestAStreamLosesNothing(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.NewSession(t, api.SessionRequest{ID: "s1"})
	const size = 64 << 20
	data := make([]byte, size)
	for i := range data {
		data[i] = byte(i>>16 + i*i>>3)
	}
	var out, sums bytes.Buffer
	req := &api.ExecRequest{Command: new("tee /dev/stderr | cat"), Timeout: boxtest.Duration("2m")}
	r, err := d.ExecStream(t.Context(), "s1", req, client.Stdio{Stdin: bytes.NewReader(data), Stdout: &out, Stderr: &sums}, nil)
	if err != nil || r.Status != "exited" || *r.ExitCode != 0 {
		t.Fatalf(`r = %+v, err = %v, want no error and r.Status == "exited" and *r.ExitCode == 0`, r, err)
	}
	if !bytes.Equal(out.Bytes(), data) || !bytes.Equal(sums.Bytes(), data) {
		t.Errorf("sent %s, got %s and %s", sum(data), sum(out.Bytes()), sum(sums.Bytes()))
	}
	if r.Output[0].Bytes != size || r.Output[1].Bytes != size || r.Output[0].Omitted != 0 {
		t.Errorf("r.Output = %+v, want r.Output[0].Bytes == size and r.Output[1].Bytes == size and r.Output[0].Omitted == 0",
			r.Output)
	}
}

func sum(data []byte) string {
	s := sha256.Sum256(data)
	return fmt.Sprintf("%d bytes %s", len(data), hex.EncodeToString(s[:4]))
}

// A program blocks while its client does not read, and boxd buffers a bounded part of its output.
func TestAProgramWaitsForASlowReader(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.NewSession(t, api.SessionRequest{ID: "s1"})
	before := boxtest.Memory(t, d.PID(), "RssAnon")
	const mib, size = 1 << 20, 64
	line := fmt.Sprintf("i=0; while [ $i -lt %d ]; do i=$((i+1)); echo $i > written; head -c %d /dev/zero; done", size, mib)
	c := converse(t.Context(), d, "s1", api.ExecRequest{Command: &line, Timeout: boxtest.Duration("2m")})
	written := func() int {
		n, _ := strconv.Atoi(strings.TrimSpace(d.Result(t, "s1", boxtest.Shell("cat written")).Stdout))
		return n
	}
	// It blocks when it sleeps in a write and has written no more than before.
	waiting := boxtest.Shell("for p in $(pgrep -x head); do cat /proc/$p/stat; done")
	boxtest.Eventually(t, "the program is blocked in its write", func() bool {
		n, states := written(), d.Result(t, "s1", waiting).Stdout
		return n > 0 && strings.Contains(states, ") S ") && n == written()
	})
	if n := written(); n > 16 {
		t.Errorf("it has written %d MiB to a client that does not read", n)
	}
	if now := boxtest.Memory(t, d.PID(), "RssAnon"); now > before+32*mib {
		t.Errorf("boxd has grown from %d MiB to %d MiB", before/mib, now/mib)
	}
	n, err := io.Copy(io.Discard, c.out)
	if r := <-c.result; err != nil || n != size*mib || r.Status != "exited" {
		t.Errorf("%d bytes, %v, %+v", n, err, r)
	}
}

// The output of a program that has ended waits for its client, longer than the program's own timeout; other clients can still use
// the session.
func TestTheEndOfAStreamWaitsForItsReader(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.NewSession(t, api.SessionRequest{ID: "s1"})
	d.NewSession(t, api.SessionRequest{ID: "s2"})
	c := converse(t.Context(), d, "s1", api.ExecRequest{Command: new("seq 60000"), Timeout: boxtest.Duration("15s")})
	c.hears(t, "1\n")
	d.Sh(t, "s2", "sleep 37") // its fifteen seconds, and the time PID 1 has to report the end
	rest, err := io.ReadAll(c.out)
	if r := <-c.result; err != nil || c.err != nil || r.Status != "exited" || len(rest) != int(r.Output[0].Bytes)-2 {
		t.Errorf("%d bytes, %v, %v, %+v", len(rest), err, c.err, r)
	}
	d.Sh(t, "s1", "true")
}

// A program that does not read its input blocks neither its output nor signals.
func TestInputThatIsNotReadHoldsUpNothing(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.NewSession(t, api.SessionRequest{ID: "s1"})
	c := converse(t.Context(), d, "s1", lasting("exec 2>/dev/null; trap 'echo caught; exit 3' USR1; echo up; while :; do sleep 0.02; done"))
	c.hears(t, "up\n")
	go func() { _, _ = c.in.Write(make([]byte, 8<<20)) }() // ends with the stream
	c.signals <- "SIGUSR1"
	c.hears(t, "caught\n")
	if r := c.ends(t); r.Status != "exited" || *r.ExitCode != 3 {
		t.Errorf(`*r = %s, want r.Status == "exited" and *r.ExitCode == 3`, boxtest.Show(*r))
	}
	// A program that has closed its input is not killed by input that arrives later.
	c = converse(t.Context(), d, "s1", lasting("exec 0<&-; echo closed; until [ -e go ]; do sleep 0.02; done; echo done"))
	c.hears(t, "closed\n")
	c.says(t, strings.Repeat("x", 1<<20))
	d.Sh(t, "s1", "touch go")
	c.hears(t, "done\n")
	if r := c.ends(t); r.Status != "exited" || *r.ExitCode != 0 {
		t.Errorf(`*r = %s, want r.Status == "exited" and *r.ExitCode == 0`, boxtest.Show(*r))
	}
}

func TestAStreamsClientThatGoesEndsItsProgram(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.NewSession(t, api.SessionRequest{ID: "s1"})
	ctx, cancel := context.WithCancel(t.Context())
	c := converse(ctx, d, "s1", api.ExecRequest{
		Command: new("trap '' TERM INT HUP PIPE; (setsid sleep 1000 &); echo up; while :; do sleep 1000; done"), Timeout: boxtest.Duration("2m"),
	})
	c.hears(t, "up\n")
	cancel()
	<-c.result
	boxtest.Eventually(t, "the program of the client is gone", func() bool {
		s, err := d.Session(t.Context(), "s1")
		return err == nil && s.Running == 0
	})
	noSleepIn(t, d, "s1")
}

// last reads a stream to its end: boxd's last control message, and the close.
func last(t *testing.T, ws *websocket.Conn) (api.ServerControl, error) {
	t.Helper()
	var msg api.ServerControl
	for {
		_, data, err := ws.Read(t.Context())
		if err != nil {
			return msg, err
		}
		if data[0] == api.ChannelControl {
			msg = api.ServerControl{}
			if err := json.Unmarshal(data[1:], &msg); err != nil {
				t.Fatalf("%s: %v", data, err)
			}
		}
	}
}

func TestWhoBreaksTheRulesOfAStreamIsCutOff(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.NewSession(t, api.SessionRequest{ID: "s1"})
	control := func(text string) []byte { return append([]byte{api.ChannelControl}, text...) }
	start := control(`{"start": {"exec": {"command": "sleep 1000", "timeout": "2m"}, "stdin": true}}`)
	for _, tc := range []struct {
		name  string
		first []byte
		kind  websocket.MessageType
		field string // of the problem; "": any
	}{
		{"nothing", nil, websocket.MessageBinary, ""},
		{"another channel", []byte{0, 'x'}, websocket.MessageBinary, ""},
		{"text", start, websocket.MessageText, ""},
		{"no JSON", control(`{"start": `), websocket.MessageBinary, ""},
		{"no start", control(`{}`), websocket.MessageBinary, "start"},
		{"an unknown key", control(`{"start": {"exec": {"command": "true", "comand": "x"}}}`), websocket.MessageBinary, "start.exec.comand"},
		{"stdin in the request", control(`{"start": {"exec": {"command": "true", "stdin": "x"}}}`), websocket.MessageBinary, "start.exec.stdin"},
		{"a session of its own", control(`{"start": {"session": {}, "exec": {"command": "true"}}}`), websocket.MessageBinary, "start.session"},
		{"an empty command", control(`{"start": {"exec": {"command": " "}}}`), websocket.MessageBinary, "command"},
	} {
		ws := d.Dial(t, "/v1/sessions/s1/exec/stream").WS
		if err := ws.Write(t.Context(), tc.kind, tc.first); err != nil {
			t.Fatal(err)
		}
		msg, _ := last(t, ws)
		if msg.Error == nil || msg.Error.Status != 400 || tc.field != "" && msg.Error.Field != tc.field {
			t.Errorf(`%s: msg.Error = %+v, want msg.Error != nil and msg.Error.Status == 400 and (tc.field == "" or msg.Error.Field == %v)`,
				tc.name, msg.Error, tc.field)
		}
	}
	long := append([]byte{api.ChannelStdin}, make([]byte, api.MaxFrame)...)
	frame := long[:api.MaxFrame]
	for _, tc := range []struct {
		name  string
		kind  websocket.MessageType
		sends [][]byte
		close websocket.StatusCode
	}{
		{"an unknown channel", websocket.MessageBinary, [][]byte{{9}}, websocket.StatusPolicyViolation},
		{"boxd's own channel", websocket.MessageBinary, [][]byte{{api.ChannelStdout, 'x'}}, websocket.StatusPolicyViolation},
		{"an empty message", websocket.MessageBinary, [][]byte{{}}, websocket.StatusPolicyViolation},
		{"text", websocket.MessageText, [][]byte{{api.ChannelStdin}}, websocket.StatusPolicyViolation},
		{"an unknown signal", websocket.MessageBinary, [][]byte{control(`{"signal": "SIGNOTHING"}`)}, websocket.StatusPolicyViolation},
		{"a second start", websocket.MessageBinary, [][]byte{start}, websocket.StatusPolicyViolation},
		{"too long a frame", websocket.MessageBinary, [][]byte{long}, websocket.StatusMessageTooBig},
		{"more than the window", websocket.MessageBinary, [][]byte{frame, frame, frame, frame, frame, frame}, websocket.StatusPolicyViolation},
	} {
		ws := d.Dial(t, "/v1/sessions/s1/exec/stream").WS
		if err := ws.Write(t.Context(), websocket.MessageBinary, start); err != nil {
			t.Fatal(err)
		}
		for _, data := range tc.sends {
			if ws.Write(t.Context(), tc.kind, data) != nil {
				break // already cut off
			}
		}
		if _, err := last(t, ws); websocket.CloseStatus(err) != tc.close {
			t.Errorf("%s: err = %v, want websocket.CloseStatus(err) == tc.close", tc.name, err)
		}
	}
	boxtest.Eventually(t, "the programs of the disconnected clients are gone", func() bool {
		s, err := d.Session(t.Context(), "s1")
		return err == nil && s.Running == 0
	})
	noSleepIn(t, d, "s1")
}

func TestManyStreamsAtOnce(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.Warm()
	before := d.Look()
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			line := fmt.Sprintf("cat; echo %d", i)
			var out bytes.Buffer
			r, err := d.RunStream(t.Context(), &api.OneShotRequest{Exec: boxtest.Shell(line)}, client.Stdio{Stdin: strings.NewReader("in "), Stdout: &out, Stderr: &out}, nil)
			if err != nil || r.Status != "exited" || out.String() != fmt.Sprintf("in %d\n", i) {
				t.Errorf(`%d: r = %+v, err = %v, out = %q, want no error and r.Status == "exited" and out.String() == fmt.Sprintf("in %%d\n", i)`,
					i, r, err, out.String())
			}
		})
	}
	wg.Wait()
	d.Warm()
	d.NothingLeft(before)
}
