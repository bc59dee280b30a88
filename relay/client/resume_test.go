// SPDX-License-Identifier: Apache-2.0

package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/boxd-dev/boxd/relay/api"
)

// soon returns short reconnect times, for tests that cut connections all the time.
func soon() reconnectTimes {
	return reconnectTimes{first: time.Millisecond, longest: 4 * time.Millisecond, total: 20 * time.Second, writer: 20 * time.Millisecond}
}

// program is a stand-in for a process: it ends when it has sent all its output and received all its input.
type program struct {
	t     *testing.T
	out   [2]string
	lines bool

	mu    sync.Mutex // guards the fields below
	stdin []byte
	eof   chan struct{}
	sizes []api.Terminal
	asked []api.ClientControl
}

func (p *program) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !strings.HasSuffix(r.URL.Path, "/stream") {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	ws, err := websocket.Accept(w, r, nil)
	if err != nil {
		return
	}
	defer ws.CloseNow()
	ws.SetReadLimit(-1)
	_, data, err := ws.Read(r.Context())
	if err != nil {
		return
	}
	var first api.ClientControl
	if err := json.Unmarshal(data[1:], &first); err != nil {
		p.t.Error(err)
		return
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	p.mu.Lock()
	p.asked = append(p.asked, first)
	taken := int64(len(p.stdin))
	p.mu.Unlock()
	at, sent := [2]int64{}, taken
	greeting := api.ServerControl{Started: &api.StreamStarted{}}
	if a := first.Attach; a != nil {
		if a.Stdout != nil {
			at = [2]int64{*a.Stdout, *a.Stderr}
		}
		if a.Stdin != nil {
			sent = *a.Stdin
		}
		greeting = api.ServerControl{Attached: &api.StreamAttached{Stdout: at[0], Stderr: at[1], Stdin: taken, Writer: a.Write}}
	}
	sendControl(ctx, ws, greeting)
	go func() {
		defer cancel()
		p.take(ctx, ws, sent)
	}()
	p.give(ctx, ws, at)
}

func sendControl(ctx context.Context, ws *websocket.Conn, msg api.ServerControl) {
	data, _ := json.Marshal(msg)
	send(ctx, ws, api.ChannelControl, string(data))
}

// take receives input that starts at an offset.
func (p *program) take(ctx context.Context, ws *websocket.Conn, at int64) {
	begin := at
	for {
		_, data, err := ws.Read(ctx)
		if err != nil {
			return
		}
		p.mu.Lock()
		switch data = data[1:]; {
		case len(data) > 0 && data[0] == '{':
			var msg api.ClientControl
			if err := json.Unmarshal(data, &msg); err == nil && msg.Resize != nil {
				p.sizes = append(p.sizes, *msg.Resize)
			}
		case len(data) == 0:
			select {
			case <-p.eof:
			default:
				close(p.eof)
			}
		default:
			if p.lines {
				data = append(data, '\n')
			}
			if at > int64(len(p.stdin)) {
				p.t.Errorf("the client resumes its input at %d and sends from %d, where %d bytes were confirmed", at, begin, len(p.stdin))
			}
			known := min(max(int64(len(p.stdin))-at, 0), int64(len(data)))
			p.stdin = append(p.stdin, data[known:]...)
			at += int64(len(data))
			if rand.IntN(3) > 0 || at-begin > api.StdinWindow/2 {
				sendControl(ctx, ws, api.ServerControl{StdinTaken: uint64(at)})
			}
		}
		p.mu.Unlock()
	}
}

// give sends output from an offset.
func (p *program) give(ctx context.Context, ws *websocket.Conn, at [2]int64) {
	for at[0] < int64(len(p.out[0])) || at[1] < int64(len(p.out[1])) {
		i := rand.IntN(2)
		rest := p.out[i][at[i]:]
		if rest == "" {
			continue
		}
		n := min(1+rand.IntN(5000), len(rest))
		data := rest[:n]
		if p.lines && i == 0 {
			n = strings.IndexByte(rest, '\n') + 1
			data = rest[:n-1]
		}
		if ws.Write(ctx, websocket.MessageBinary, append([]byte{api.ChannelStdout + byte(i)}, data...)) != nil {
			return
		}
		at[i] += int64(n)
	}
	select {
	case <-p.eof:
		sendControl(ctx, ws, api.ServerControl{Exit: &api.ExecResult{Status: "exited", ExitCode: new(7)}})
		<-ctx.Done() // until the client has it, which take reports: a connection is read by one goroutine at a time
	case <-ctx.Done():
	}
}

// cuttingProxy forwards a number of bytes of each connection, in each direction, and then cuts it.
func cuttingProxy(t *testing.T, to string, limit func() int64) (socket string, cuts *atomic.Int64) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "cut")
	ln, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	cuts = new(atomic.Int64)
	var tasks sync.WaitGroup
	tasks.Go(func() {
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
			pass := func(to, from net.Conn) {
				if n := limit(); n > 0 {
					if m, _ := io.CopyN(to, from, n); m == n {
						cuts.Add(1)
					}
				} else {
					_, _ = io.Copy(to, from)
				}
				conn.Close()
				far.Close()
			}
			tasks.Go(func() { pass(far, conn) })
			tasks.Go(func() { pass(conn, far) })
		}
	})
	t.Cleanup(func() {
		ln.Close()
		tasks.Wait()
	})
	return socket, cuts
}

// someBytes returns pseudo-random bytes, the same for the same seed.
func someBytes(seed uint64, n int) string {
	r := rand.NewChaCha8([32]byte{byte(seed)})
	data := make([]byte, n)
	_, _ = r.Read(data)
	for i, b := range data {
		if b == '{' || b == '\n' { // to the stand-in a control message, or the end of a line
			data[i] = 'x'
		}
	}
	return string(data)
}

func someLines(seed uint64, n int) string {
	data := []byte(someBytes(seed, n))
	for i := 1; i < n-2; i += 2 + (i*7919)%3000 {
		data[i] = '\n'
	}
	data[n-1] = '\n'
	return string(data)
}

func TestALostConnectionLosesNoByte(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name  string
		lines bool
		run   func(ctx context.Context, c *Client, stdio Stdio) (*api.ExecResult, error)
	}{
		{"exec", false, func(ctx context.Context, c *Client, stdio Stdio) (*api.ExecResult, error) {
			return c.ExecStream(ctx, "s", &api.ExecRequest{}, stdio, nil)
		}},
		{"attach", false, func(ctx context.Context, c *Client, stdio Stdio) (*api.ExecResult, error) {
			return c.Attach(ctx, "s", "p", AttachOptions{Replay: true, Write: true, Lossless: true}, stdio, nil)
		}},
		{"lines", true, func(ctx context.Context, c *Client, stdio Stdio) (*api.ExecResult, error) {
			return c.Attach(ctx, "s", "p", AttachOptions{Replay: true, Write: true, Lossless: true, Lines: true}, stdio, nil)
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			p := &program{t: t, out: [2]string{someBytes(1, 1_000_000), someBytes(2, 300_000)}, lines: tc.lines, eof: make(chan struct{})}
			in := someBytes(3, 2_000_000)
			if tc.lines {
				p.out[0], in = someLines(1, 1_000_000), someLines(3, 2_000_000)
			}
			direct := serve(t, p.ServeHTTP)
			connections := new(atomic.Int64)
			socket, cuts := cuttingProxy(t, direct.socket, func() int64 {
				if connections.Add(1) <= 2 {
					return 3000 // the program has started by then
				}
				return 1 + rand.Int64N(150_000)
			})
			c := New(socket)
			c.pace = soon()
			defer c.Close()
			var out, errOut bytes.Buffer
			r, err := tc.run(t.Context(), c, Stdio{Stdin: strings.NewReader(in), Stdout: &out, Stderr: &errOut})
			if err != nil || r.ExitCode == nil || *r.ExitCode != 7 {
				t.Fatalf("%+v, %v after %d cuts", r, err, cuts.Load())
			}
			p.mu.Lock()
			defer p.mu.Unlock()
			if out.String() != p.out[0] || errOut.String() != p.out[1] || string(p.stdin) != in {
				t.Errorf("after %d cuts: %d of %d, %d of %d and %d of %d bytes, or others", cuts.Load(),
					out.Len(), len(p.out[0]), errOut.Len(), len(p.out[1]), len(p.stdin), len(in))
			}
			if cuts.Load() < 10 {
				t.Errorf("only %d cuts", cuts.Load())
			}
		})
	}
}

// answerEach answers connections one by one, the first with talks[0]; there are no more than talks.
func answerEach(t *testing.T, talks ...func(ctx context.Context, ws *websocket.Conn, first *api.ClientControl)) *Client {
	t.Helper()
	n := 0
	var mu sync.Mutex
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if n >= len(talks) {
			w.WriteHeader(http.StatusNotFound)
			_, _ = io.WriteString(w, `{"type":"urn:boxd:problem:not_found","status":404,"detail":"no process"}`)
			return
		}
		ws, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		defer ws.CloseNow()
		_, data, err := ws.Read(r.Context())
		if err != nil {
			return
		}
		var first api.ClientControl
		_ = json.Unmarshal(data[1:], &first)
		n++
		talks[n-1](r.Context(), ws, &first)
	})
	c.pace = soon()
	return c
}

func greet(a api.StreamAttached) func(context.Context, *websocket.Conn, *api.ClientControl) {
	return func(ctx context.Context, ws *websocket.Conn, _ *api.ClientControl) {
		sendControl(ctx, ws, api.ServerControl{Attached: &a})
	}
}

func exit(ctx context.Context, ws *websocket.Conn) {
	sendControl(ctx, ws, api.ServerControl{Exit: &api.ExecResult{Status: "exited", ExitCode: new(0)}})
	_, _, _ = ws.Read(ctx)
}

func TestAStartWithALostAnswerIsResumed(t *testing.T) {
	t.Parallel()
	var id string
	lose := func(_ context.Context, _ *websocket.Conn, first *api.ClientControl) { id = first.Start.Exec.ID }
	c := answerEach(t, lose, func(ctx context.Context, ws *websocket.Conn, first *api.ClientControl) {
		a := first.Attach
		if a == nil || !a.Write || *a.Stdout != 0 || *a.Stderr != 0 || *a.Stdin != 0 {
			t.Errorf("first = %+v, want a != nil and a.Write == true and *a.Stdout == 0 and *a.Stderr == 0 and *a.Stdin == 0",
				first)
		}
		sendControl(ctx, ws, api.ServerControl{Attached: &api.StreamAttached{Stdout: 3, Writer: true}})
		send(ctx, ws, api.ChannelStdout, "rest")
		if _, data, err := ws.Read(ctx); err != nil || string(data) != "\x00input" {
			t.Errorf(`data = %q, err = %v, want no error and data == "\x00input"`, data, err)
		}
		exit(ctx, ws)
	})
	var out bytes.Buffer
	r, err := c.ExecStream(t.Context(), "s", &api.ExecRequest{}, Stdio{Stdin: strings.NewReader("input"), Stdout: &out}, nil)
	if err != nil || r.Status != "exited" || out.String() != "rest" || id == "" {
		t.Errorf("%+v, %v: %q of %q", r, err, out.String(), id)
	}
	// A program without an id has not started, or its state is unknown.
	c = answerEach(t, lose)
	if _, err := c.ExecStream(t.Context(), "s", &api.ExecRequest{}, Stdio{}, nil); !errors.Is(err, ErrStreamEnded) {
		t.Errorf("err = %v, want err is ErrStreamEnded", err)
	}
	// A refusal is an answer, not a lost connection.
	c = answerEach(t, func(ctx context.Context, ws *websocket.Conn, _ *api.ClientControl) {
		send(ctx, ws, api.ChannelControl, `{"error":{"type":"urn:boxd:problem:exhausted","status":429,"detail":"full"}}`)
	})
	if _, err := c.ExecStream(t.Context(), "s", &api.ExecRequest{}, Stdio{}, nil); errors.Is(err, ErrStreamEnded) || err == nil {
		t.Errorf("err = %v, want err is not ErrStreamEnded and an error", err)
	}
	// Reconnecting to a process uses the original attach parameters.
	from := [2]int64{5, 6}
	c = answerEach(t, func(context.Context, *websocket.Conn, *api.ClientControl) {}, func(ctx context.Context, ws *websocket.Conn, first *api.ClientControl) {
		if a := first.Attach; a == nil || !a.TakeOver || *a.Stdout != 5 || *a.Stderr != 6 {
			t.Errorf("first = %+v, want a != nil and a.TakeOver == true and *a.Stdout == 5 and *a.Stderr == 6", first)
		}
		sendControl(ctx, ws, api.ServerControl{Attached: &api.StreamAttached{Stdout: 5, Stderr: 6}})
		exit(ctx, ws)
	})
	if _, err := c.Attach(t.Context(), "s", "p", AttachOptions{From: &from, Write: true, TakeOver: true}, Stdio{}, nil); err != nil {
		t.Error(err)
	}
}

func TestAnExecutionIsForgottenOnce(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name      string
		protocols []string // that boxd supports
		breaks    bool     // the connection does, after the exit
		asked     []string
	}{
		{"by the end of its stream", []string{api.StreamForget}, false, []string{"GET", "forget"}},
		{"by a boxd that does not know how", nil, false, []string{"GET", "DELETE"}},
		{"by a request where the stream broke at its end", []string{api.StreamForget}, true, []string{"GET", "DELETE"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			var mu sync.Mutex
			var asked []string
			note := func(what string) {
				mu.Lock()
				defer mu.Unlock()
				asked = append(asked, what)
			}
			c := serve(t, func(w http.ResponseWriter, r *http.Request) {
				note(r.Method)
				if r.Method != http.MethodGet {
					w.WriteHeader(http.StatusNoContent)
					return
				}
				ws, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: tc.protocols})
				if err != nil {
					return
				}
				defer ws.CloseNow()
				_, _, _ = ws.Read(r.Context())
				sendControl(r.Context(), ws, api.ServerControl{Started: &api.StreamStarted{}})
				sendControl(r.Context(), ws, api.ServerControl{Exit: &api.ExecResult{Status: "exited", ExitCode: new(0)}})
				if tc.breaks {
					return
				}
				if _, data, err := ws.Read(r.Context()); err == nil && string(data) == "\x03"+`{"forget":true}` {
					note("forget")
				}
				_ = ws.Close(websocket.StatusNormalClosure, "")
			})
			if r, err := c.ExecStream(t.Context(), "s", &api.ExecRequest{}, Stdio{}, nil); err != nil || r.Status != "exited" {
				t.Errorf(`r = %+v, err = %v, want no error and r.Status == "exited"`, r, err)
			}
			mu.Lock()
			defer mu.Unlock()
			if !slices.Equal(asked, tc.asked) {
				t.Errorf("%q, not %q", asked, tc.asked)
			}
		})
	}
}

func TestAnAttachmentToAGoneProcessEndsWithAnError(t *testing.T) {
	t.Parallel()
	c := answerEach(t, greet(api.StreamAttached{}))
	_, err := c.Attach(t.Context(), "s", "p", AttachOptions{}, Stdio{}, nil)
	if !errors.Is(err, ErrProcessGone) || !errors.Is(err, ErrStreamEnded) {
		t.Errorf("err = %v, want err is ErrProcessGone and err is ErrStreamEnded", err)
	}
	if _, err := c.Attach(t.Context(), "s", "p", AttachOptions{}, Stdio{}, nil); !errors.Is(err, NotFound) || errors.Is(err, ErrStreamEnded) {
		t.Errorf("a process that never existed: err = %v, want err is NotFound and err is not ErrStreamEnded", err)
	}
}

func TestAStreamClosedForAPolicyViolationIsNotResumed(t *testing.T) {
	t.Parallel()
	c := answerEach(t, func(ctx context.Context, ws *websocket.Conn, f *api.ClientControl) {
		greet(api.StreamAttached{})(ctx, ws, f)
		ws.Close(websocket.StatusPolicyViolation, "too much")
	})
	if _, err := c.Attach(t.Context(), "s", "p", AttachOptions{}, Stdio{}, nil); !errors.Is(err, ErrStreamEnded) || !strings.Contains(err.Error(), "too much") {
		t.Errorf(`err = %v, want err is ErrStreamEnded and err containing "too much"`, err)
	}
}

func TestABoxdThatStaysAwayIsGivenUp(t *testing.T) {
	t.Parallel()
	direct := answerEach(t, greet(api.StreamAttached{}))
	connections := new(atomic.Int64)
	socket, _ := cuttingProxy(t, direct.socket, func() int64 {
		if connections.Add(1) > 2 {
			return 1
		}
		return 0
	})
	c := New(socket)
	defer c.Close()
	c.pace = soon()
	c.pace.total = 50 * time.Millisecond
	if _, err := c.Attach(t.Context(), "s", "p", AttachOptions{}, Stdio{}, nil); !errors.Is(err, ErrStreamEnded) || errors.Is(err, ErrProcessGone) {
		t.Errorf("err = %v, want err is ErrStreamEnded and err is not ErrProcessGone", err)
	}
}

func TestMissingStreamOutputIsReportedAsGaps(t *testing.T) {
	t.Parallel()
	c := answerEach(
		t, func(ctx context.Context, ws *websocket.Conn, _ *api.ClientControl) {
			sendControl(ctx, ws, api.ServerControl{Attached: &api.StreamAttached{Stdout: 100}})
			send(ctx, ws, api.ChannelStdout, "abc")
			sendControl(ctx, ws, api.ServerControl{Gap: &api.StreamGap{Stream: "stdout", Bytes: 7}})
			send(ctx, ws, api.ChannelStdout, "def")
		}, func(ctx context.Context, ws *websocket.Conn, first *api.ClientControl) {
			if a := first.Attach; a == nil || *a.Stdout != 113 || *a.Stderr != 0 || a.Replay {
				t.Errorf("attaches with %+v", first.Attach)
			}
			sendControl(ctx, ws, api.ServerControl{Attached: &api.StreamAttached{Stdout: 112, Stderr: 4}}) // one byte again, and some missing
			send(ctx, ws, api.ChannelStdout, "fghi")
			exit(ctx, ws)
		},
	)
	var out bytes.Buffer
	attached := 0
	o := AttachOptions{Replay: true, Gap: func(g api.StreamGap) { fmt.Fprintf(&out, "[%s %d]", g.Stream, g.Bytes) }, Attached: func(*api.StreamAttached) { attached++ }}
	if _, err := c.Attach(t.Context(), "s", "p", o, Stdio{Stdout: &out}, nil); err != nil || out.String() != "abc[stdout 7]def[stderr 4]ghi" || attached != 1 {
		t.Errorf("%v, %q, attached %d times", err, out.String(), attached)
	}
}

func TestAReconnectDoesNotTakeOverFromAnotherWriter(t *testing.T) {
	t.Parallel()
	refuse := func(ctx context.Context, ws *websocket.Conn, first *api.ClientControl) {
		if first.Attach.Write {
			sendControl(ctx, ws, api.ServerControl{Error: &api.Problem{Type: api.ProblemType + "conflict", Status: http.StatusConflict, Detail: "another writes"}})
			return
		}
		sendControl(ctx, ws, api.ServerControl{Attached: &api.StreamAttached{}})
		exit(ctx, ws)
	}
	c := answerEach(t, slices.Concat([]func(context.Context, *websocket.Conn, *api.ClientControl){greet(api.StreamAttached{Writer: true})},
		slices.Repeat([]func(context.Context, *websocket.Conn, *api.ClientControl){refuse}, 100))...)
	lost := 0
	in, typing := io.Pipe()
	defer typing.Close()
	r, err := c.Attach(t.Context(), "s", "p", AttachOptions{Write: true, WriterLost: func() { lost++ }}, Stdio{Stdin: in}, nil)
	if err != nil || r == nil || lost != 1 {
		t.Errorf("%v, %v, lost %d times", r, err, lost)
	}
}

func TestDetachingLeavesTheInputComplete(t *testing.T) {
	t.Parallel()
	p := &program{t: t, out: [2]string{"hello", ""}, eof: make(chan struct{})}
	c := serve(t, p.ServeHTTP)
	in := io.MultiReader(strings.NewReader("typed"), detaching{})
	var out bytes.Buffer
	_, err := c.Attach(t.Context(), "s", "p", AttachOptions{Replay: true, Write: true}, Stdio{Stdin: in, Stdout: &out, Stderr: &out}, nil)
	p.mu.Lock()
	defer p.mu.Unlock()
	if !errors.Is(err, ErrDetached) || string(p.stdin) != "typed" {
		t.Errorf(`err = %v, p.stdin = %q, want err is ErrDetached and p.stdin == "typed"`, err, p.stdin)
	}
	select {
	case <-p.eof:
		t.Error("the end of the input was sent by a client that detached")
	default:
	}
}

func TestWhoMayNotWriteCanDetach(t *testing.T) {
	t.Parallel()
	c := answerEach(t, func(ctx context.Context, ws *websocket.Conn, first *api.ClientControl) {
		greet(api.StreamAttached{Stdin: 3})(ctx, ws, first)
		if _, data, err := ws.Read(ctx); err == nil {
			t.Errorf("sends %q", data)
		}
	})
	in := io.MultiReader(strings.NewReader(strings.Repeat("typed", api.StdinWindow)), detaching{})
	if _, err := c.Attach(t.Context(), "s", "p", AttachOptions{Write: true}, Stdio{Stdin: in}, nil); !errors.Is(err, ErrDetached) {
		t.Errorf("err = %v, want err is ErrDetached", err)
	}
}

type detaching struct{}

func (detaching) Read([]byte) (int, error) { return 0, ErrDetached }

func TestTheTerminalSizeIsSentOnEveryReconnect(t *testing.T) {
	t.Parallel()
	var got []string
	listen := func(ctx context.Context, ws *websocket.Conn, _ *api.ClientControl) {
		sendControl(ctx, ws, api.ServerControl{Attached: &api.StreamAttached{}})
		_, data, err := ws.Read(ctx)
		if err == nil {
			got = append(got, string(data[1:]))
		}
	}
	c := answerEach(t, listen, func(ctx context.Context, ws *websocket.Conn, f *api.ClientControl) {
		listen(ctx, ws, f)
		exit(ctx, ws)
	})
	sizes := make(chan api.Terminal, 1)
	sizes <- api.Terminal{Rows: 24, Cols: 80}
	if _, err := c.Attach(t.Context(), "s", "p", AttachOptions{}, Stdio{Resize: sizes}, nil); err != nil {
		t.Fatal(err)
	}
	if want := `{"resize":{"rows":24,"cols":80}}`; !slices.Equal(got, []string{want, want}) {
		t.Errorf("got %q, want []string{want, want}", got)
	}
}

func TestLogsGoOnWhereTheyWereCutOff(t *testing.T) {
	t.Parallel()
	var requested []string
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/logs") {
			_, _ = io.WriteString(w, `{"state":"ended","output":[{"bytes":9},{"bytes":3}]}`)
			return
		}
		requested = append(requested, r.URL.RawQuery)
		switch len(requested) {
		case 1:
			_, _ = io.WriteString(w, `{"stream":"stdout","offset":0,"data":"ab"}`+"\n"+`{"stream":"stderr","offset":0,"data":"/+8=","base64":true}`+"\n")
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		case 2:
			_, _ = io.WriteString(w, `{"stream":"stdout","offset":2,"gap":5}`+"\n") // and boxd ends
		default:
			_, _ = io.WriteString(w, `{"stream":"stdout","offset":7,"data":"xy"}`+"\n"+`{"stream":"stderr","offset":2,"data":"z"}`+"\n")
		}
	})
	c.pace = soon()
	var got bytes.Buffer
	err := c.LogLines(t.Context(), "s", "p", LogOptions{Follow: true}, func(l *api.LogLine) error {
		fmt.Fprintf(&got, "%s %q %d;", l.Stream, l.Data, l.Gap)
		return nil
	})
	want := `stdout "ab" 0;stderr "\xff\xef" 0;stdout "" 5;stdout "xy" 0;stderr "z" 0;`
	queries := []string{"follow=true&format=ndjson", "follow=true&format=ndjson&stderr=2&stdout=2", "follow=true&format=ndjson&stderr=2&stdout=7"}
	if err != nil || got.String() != want || !slices.Equal(requested, queries) {
		t.Errorf("err = %v, got %s, requested = %q, want no error and got.String() == %v and requested == %q",
			err, got.String(), requested, want, queries)
	}
}

func TestEveryProcessHasItsPath(t *testing.T) {
	t.Parallel()
	var got []string
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		got = append(got, r.Method+" "+r.URL.EscapedPath()+"?"+r.URL.RawQuery)
		_, _ = io.WriteString(w, "{}")
	})
	c.Owner = "uid:1"
	ctx := t.Context()
	_, _, err := c.StartProcess(ctx, "a/b", "..", &api.ProcessRequest{})
	_, perr := c.Process(ctx, "a/b", "c d", time.Minute)
	_, serr := c.StopProcess(ctx, "a/b", "p")
	_, rerr := c.RenewProcess(ctx, "a/b", "p")
	err = errors.Join(err, perr, serr, rerr, c.DeleteProcess(ctx, "a/b", "p"), c.SignalProcess(ctx, "a/b", "p", "SIGHUP"), c.ResizeProcess(ctx, "a/b", "p", api.Terminal{}))
	want := []string{
		"PUT /v1/sessions/a%2Fb/processes/%2E%2E?owner=uid%3A1", "GET /v1/sessions/a%2Fb/processes/c%20d?owner=uid%3A1&wait=1m0s",
		"POST /v1/sessions/a%2Fb/processes/p/stop?owner=uid%3A1", "POST /v1/sessions/a%2Fb/processes/p/renew?owner=uid%3A1", "DELETE /v1/sessions/a%2Fb/processes/p?owner=uid%3A1",
		"POST /v1/sessions/a%2Fb/processes/p/signal?owner=uid%3A1", "POST /v1/sessions/a%2Fb/processes/p/resize?owner=uid%3A1",
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("err = %v, got %q, want no error and got == %q", err, got, want)
	}
	if _, err := c.Process(ctx, "s", "", 0); !errors.Is(err, ErrNoName) {
		t.Errorf("err = %v, want err is ErrNoName", err)
	}
}

// Waiting for the end of a process continues while boxd restarts, but not without a boxd or for a missing process.
func TestTheEndOfAProcessIsWaitedFor(t *testing.T) {
	t.Parallel()
	asked := new(atomic.Int64)
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch n := asked.Add(1); {
		case !strings.HasSuffix(r.URL.Path, "/processes/p"):
			w.WriteHeader(http.StatusNotFound)
			_, _ = io.WriteString(w, `{"type":"urn:boxd:problem:not_found","status":404,"detail":"no process"}`)
		case n == 1 && r.URL.Query().Has("wait"):
			t.Error("the first request already has a wait parameter")
		case n == 1:
			_, _ = io.WriteString(w, `{"id":"p","state":"running"}`)
		case n == 2 || n == 3: // boxd stops, and starts
			panic(http.ErrAbortHandler)
		case n == 4:
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = io.WriteString(w, `{"type":"urn:boxd:problem:unavailable","status":503,"detail":"boxd starts"}`)
		case n < 7:
			_, _ = io.WriteString(w, `{"id":"p","state":"running"}`)
		default:
			_, _ = io.WriteString(w, `{"id":"p","state":"ended"}`)
		}
	})
	c.pace = soon()
	defer c.Close()
	if p, err := c.ProcessEnd(t.Context(), "s", "p"); err != nil || p.State != "ended" || asked.Load() != 7 {
		t.Errorf("%+v, %v after %d questions", p, err, asked.Load())
	}
	asked.Store(0)
	if p, err := c.ProcessEnd(t.Context(), "s", "none"); !errors.Is(err, NotFound) || asked.Load() != 1 {
		t.Errorf("%+v, %v after %d questions", p, err, asked.Load())
	}
	nobody := New(filepath.Join(t.TempDir(), "nobody"))
	nobody.pace = soon()
	if _, err := nobody.ProcessEnd(t.Context(), "s", "p"); !errors.As(err, new(*ConnectError)) {
		t.Errorf("without boxd: err = %v, want errors.As(err, new(*ConnectError))", err)
	}
}

// Events resume after the last one, or where boxd said before there was any, also after a cut in the middle of one.
func TestEventsGoOnWhereTheyWereCutOff(t *testing.T) {
	t.Parallel()
	var asked []string
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.URL.Query().Get("after"))
		_, _ = io.WriteString(w, []string{
			"id: p1\n\n",
			"id: p2\n\n:\n\nid: half\n",
			"id: p2\n\nid: e3\nevent: oom\ndata: {\"id\":\"e3\",\"type\":\"oom\"}\n\nid: e4\ndata: {\"id\":\"e4\"}\n",
			"id: e4\ndata: {\"id\":\"e4\",\"type\":\"last\"}\n\n",
		}[len(asked)-1])
	})
	enough := errors.New("enough")
	var got []string
	err := c.Events(t.Context(), EventOptions{After: "latest", Follow: true}, func(e *api.Event) error {
		if got = append(got, e.ID); e.Type == "last" {
			return enough
		}
		return nil
	})
	if !errors.Is(err, enough) || !slices.Equal(got, []string{"e3", "e4"}) || !slices.Equal(asked, []string{"latest", "p1", "p2", "e3"}) {
		t.Errorf("%v, %q, requests %q", err, got, asked)
	}
}
