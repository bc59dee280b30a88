// SPDX-License-Identifier: Apache-2.0

package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/coder/websocket"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/relay/api"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve answers on a Unix socket until the end of the test.
func serve(t *testing.T, handler http.HandlerFunc) *Client {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	ln, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: handler}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = srv.Serve(streamListener{ln})
	}()
	c := New(socket)
	t.Cleanup(func() {
		c.Close()
		srv.Close()
		<-done
	})
	return c
}

// streamListener is for WebSockets that are cut in mid-message: see streamConn.
type streamListener struct{ net.Listener }

func (l streamListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return streamConn{conn}, nil
}

// ids returns difficult ids.
func ids() []string {
	return []string{"s1", "/", ".", "..", "...", "a/../b", "%2f", "%", "a b", "a+b", "a?b", "a#b", "日本", "😀", "\u202e", "a;b,c", `a"b\c`, "~", "*", "exec"}
}

func TestEveryIDIsOneSegmentOfThePath(t *testing.T) {
	t.Parallel()
	var got []string
	c := serve(t, func(_ http.ResponseWriter, r *http.Request) { got = strings.Split(r.URL.EscapedPath(), "/") })
	for _, id := range ids() {
		for _, rest := range []string{"", "/exec"} {
			to := c.session(id, rest, nil)
			if _, err := c.do(t.Context(), http.MethodGet, to, nil, nil); err != nil {
				t.Fatal(err)
			}
			want := strings.Split("/v1/sessions/"+rest, "/")
			segment := ""
			if len(got) == len(want) {
				segment, got[3] = got[3], ""
			}
			if arrived, err := url.PathUnescape(segment); err != nil || arrived != id || !slices.Equal(got, want) || strings.Trim(segment, ".") == "" {
				t.Errorf("%q travels as %s and arrives as %q in %q", id, to.path, arrived, got)
			}
		}
	}
	if to := c.session("", "", nil); !errors.Is(to.err, ErrNoID) {
		t.Errorf("the empty id has a path: to = %v, want to.err is ErrNoID", to)
	}
	for _, err := range []error{c.DeleteSession(t.Context(), ""), second(c.Session(t.Context(), "")), second(c.Exec(t.Context(), "", &api.ExecRequest{}))} {
		if !errors.Is(err, ErrNoID) {
			t.Errorf("a call about the empty id: err = %v, want err is ErrNoID", err)
		}
	}
}

func second[T any](_ T, err error) error { return err }

func TestAnOwnerTravelsUnchanged(t *testing.T) {
	t.Parallel()
	var got url.Values
	c := serve(t, func(_ http.ResponseWriter, r *http.Request) { got = r.URL.Query() })
	c.Owner = "uid:10&all=true#x"
	if err := c.DeleteSession(t.Context(), "a?b"); err != nil || len(got) != 1 || got.Get("owner") != c.Owner {
		t.Errorf(`got %v, err = %v, want no error and len(got) == 1 and got.Get("owner") == %v`, got, err, c.Owner)
	}
}

func TestTextThatIsNoTextIsNotSent(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		in string
		ok bool
	}{
		{"plain", true},
		{"é\u2028<&>", true},
		{"\ufffd", true},
		{`\ufffd`, true},
		{`\\ufffd`, true},
		{"\\", true},
		{"\x00\n\"", true},
		{"\xff", false},
		{"a\xc3", false},
		{"\\\xff", false},
		{"\xed\xa0\x80", false},
		{"\ufffd\xff", false},
	} {
		data, err := encode(api.ExecRequest{Argv: []string{tc.in}})
		if (err == nil) != tc.ok || err != nil && !errors.Is(err, ErrNotText) {
			t.Errorf("%q: data = %s, err = %v, want (err == nil) == %v and (no error or err is ErrNotText)",
				tc.in, data, err, tc.ok)
		}
		var back api.ExecRequest
		if tc.ok && (json.Unmarshal(data, &back) != nil || back.Argv[0] != tc.in) {
			t.Errorf("%q arrives as %q", tc.in, back.Argv)
		}
	}
}

func TestProblemsAreErrorsOfTheirKind(t *testing.T) {
	t.Parallel()
	var code int
	var body string
	c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(code)
		_, _ = io.WriteString(w, body)
	})
	for _, tc := range []struct {
		code     int
		body     string
		notFound bool
		message  string
	}{
		{404, `{"type":"urn:boxd:problem:not_found","status":404,"detail":"no session \"x\""}`, true, `no session "x"`},
		{409, `{"type":"urn:boxd:problem:conflict","status":409,"detail":"differs"}`, false, "differs"},
		{500, `<html>`, false, "boxd answered 500"},
		{502, ``, false, "boxd answered 502"},
		{301, `moved`, false, "boxd answered 301"},
		{200, `{"id":`, false, "answer to GET"},
	} {
		code, body = tc.code, tc.body
		_, err := c.Session(t.Context(), "x")
		if err == nil || !strings.Contains(err.Error(), tc.message) || errors.Is(err, NotFound) != tc.notFound {
			t.Errorf("%d %s: err = %v, want an error containing %q and errors.Is(err, NotFound) == %v",
				tc.code, tc.body, err, tc.message, tc.notFound)
		}
	}
}

func TestNoBoxdIsAConnectError(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "none")
	c := New(socket)
	_, streamErr := c.RunStream(t.Context(), &api.OneShotRequest{}, Stdio{}, nil)
	for _, err := range []error{c.Ready(t.Context()), streamErr} {
		e, ok := errors.AsType[*ConnectError](err)
		if !ok || e.Socket != socket || !errors.Is(err, fs.ErrNotExist) || err.Error() != "connect to "+socket+": no such file or directory" {
			t.Errorf(`err = %v, want ok == true and e.Socket == socket and err is fs.ErrNotExist and err == "connect to " + socket + ": no such file or directory"`,
				err)
		}
	}
}

// standin plays boxd's part in a stream.
func standin(t *testing.T, speak func(ctx context.Context, ws *websocket.Conn)) *Client {
	t.Helper()
	return serve(t, func(w http.ResponseWriter, r *http.Request) {
		ws, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		defer ws.CloseNow()
		if _, _, err := ws.Read(r.Context()); err == nil { // the start
			speak(r.Context(), ws)
		}
	})
}

func send(ctx context.Context, ws *websocket.Conn, channel byte, data string) {
	_ = ws.Write(ctx, websocket.MessageBinary, append([]byte{channel}, data...))
}

func TestAStreamThatEndsWithoutAResultHasFailed(t *testing.T) {
	t.Parallel()
	for name, speak := range map[string]func(context.Context, *websocket.Conn){
		"cut":          func(_ context.Context, ws *websocket.Conn) { ws.CloseNow() },
		"closed":       func(_ context.Context, ws *websocket.Conn) { ws.Close(websocket.StatusNormalClosure, "") },
		"empty":        func(ctx context.Context, ws *websocket.Conn) { _ = ws.Write(ctx, websocket.MessageBinary, nil) },
		"after output": func(ctx context.Context, ws *websocket.Conn) { send(ctx, ws, api.ChannelStdout, "x"); ws.CloseNow() },
	} {
		c := standin(t, speak)
		c.pace = soon()
		c.pace.total = 50 * time.Millisecond
		r, err := c.ExecStream(t.Context(), "s", &api.ExecRequest{}, Stdio{Stdout: io.Discard, Stderr: io.Discard}, nil)
		if r != nil || !errors.Is(err, ErrStreamEnded) {
			t.Errorf("%s: r = %+v, err = %v, want r == nil and err is ErrStreamEnded", name, r, err)
		}
	}
}

func TestAStreamEndsWithItsResultOrProblem(t *testing.T) {
	t.Parallel()
	var out, errOut bytes.Buffer
	c := standin(t, func(ctx context.Context, ws *websocket.Conn) {
		send(ctx, ws, api.ChannelControl, `{"started":{"session":"s"}}`)
		send(ctx, ws, api.ChannelStdout, "a")
		send(ctx, ws, api.ChannelStderr, "b")
		send(ctx, ws, 77, "of a later version")
		send(ctx, ws, api.ChannelStdout, "c")
		send(ctx, ws, api.ChannelControl, `{"exit":{"status":"exited","exit_code":3}}`)
	})
	r, err := c.ExecStream(t.Context(), "s", &api.ExecRequest{}, Stdio{Stdout: &out, Stderr: &errOut}, nil)
	if err != nil || r.Status != "exited" || *r.ExitCode != 3 || out.String() != "ac" || errOut.String() != "b" {
		t.Errorf(`r = %+v, err = %v, out = %q, errOut = %q, want no error and r.Status == "exited" and *r.ExitCode == 3 and out.String() == "ac" and errOut.String() == "b"`,
			r, err, out.String(), errOut.String())
	}
	c = standin(t, func(ctx context.Context, ws *websocket.Conn) {
		send(ctx, ws, api.ChannelControl, `{"error":{"type":"urn:boxd:problem:not_found","detail":"gone"}}`)
	})
	if _, err := c.ExecStream(t.Context(), "s", &api.ExecRequest{}, Stdio{}, nil); !errors.Is(err, NotFound) {
		t.Errorf("err = %v, want err is NotFound", err)
	}
	c = serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusNotFound)
		_, _ = io.WriteString(w, `{"type":"urn:boxd:problem:not_found","detail":"gone"}`)
	})
	if _, err := c.ExecStream(t.Context(), "s", &api.ExecRequest{}, Stdio{}, nil); !errors.Is(err, NotFound) {
		t.Errorf("before the upgrade: err = %v, want err is NotFound", err)
	}
}

func TestInputWaitsForTheWindow(t *testing.T) {
	t.Parallel()
	const size = 5 * api.StdinWindow
	var most, total uint64
	c := standin(t, func(ctx context.Context, ws *websocket.Conn) {
		ws.SetReadLimit(api.MaxFrame)
		send(ctx, ws, api.ChannelControl, `{"started":{"session":"s"}}`)
		var taken uint64
		for {
			_, data, err := ws.Read(ctx)
			if err != nil || data[0] != api.ChannelStdin {
				return
			}
			if len(data) == 1 {
				break
			}
			total += uint64(len(data) - 1)
			most = max(most, total-taken)
			if total-taken > api.StdinWindow/2 { // deliberately late
				taken = total
				msg, _ := json.Marshal(api.ServerControl{StdinTaken: taken})
				send(ctx, ws, api.ChannelControl, string(msg))
			}
		}
		send(ctx, ws, api.ChannelControl, `{"exit":{"status":"exited","exit_code":0}}`)
	})
	in := io.LimitReader(neverEnding('x'), size)
	if _, err := c.ExecStream(t.Context(), "s", &api.ExecRequest{}, Stdio{Stdin: in}, nil); err != nil || total != size || most > api.StdinWindow {
		t.Errorf("%v: %d bytes, at most %d under way", err, total, most)
	}
}

type neverEnding byte

func (b neverEnding) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(b)
	}
	return len(p), nil
}

func TestInputThatCannotBeReadFailsTheStream(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	ended := make(chan struct{})
	c := standin(t, func(ctx context.Context, ws *websocket.Conn) {
		defer close(ended)
		send(ctx, ws, api.ChannelControl, `{"started":{"session":"s"}}`)
		for {
			_, data, err := ws.Read(ctx)
			if err != nil {
				return
			}
			if len(data) == 1 {
				t.Error("the program is told that its input is complete")
			}
		}
	})
	in := io.MultiReader(strings.NewReader("half"), iotest.ErrReader(broken))
	if _, err := c.ExecStream(t.Context(), "s", &api.ExecRequest{}, Stdio{Stdin: in}, nil); !errors.Is(err, broken) {
		t.Errorf("err = %v, want err is %v", err, broken)
	}
	<-ended
}

func TestCancelingEndsTheStream(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	c := standin(t, func(ctx context.Context, ws *websocket.Conn) {
		defer close(ended)
		cancel()
		_, _, _ = ws.Read(ctx)
	})
	if _, err := c.ExecStream(ctx, "s", &api.ExecRequest{}, Stdio{}, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("err = %v, want err is context.Canceled", err)
	}
	<-ended
}

// If others have filled a listener's queue, a call waits for its turn.
func TestACallWaitsWhileTheListenQueueIsFull(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "s")
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "listener")
	defer f.Close()
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: socket}), unix.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	var others []net.Conn
	for err == nil {
		var conn net.Conn
		if conn, err = net.Dial("unix", socket); err == nil {
			others = append(others, conn)
		}
	}
	if !errors.Is(err, unix.EAGAIN) || len(others) == 0 {
		t.Fatalf("len(others) = %d, err = %v, want err is unix.EAGAIN and len(others) != 0", len(others), err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := New(socket).dial(ctx); err == nil {
		t.Error("no error though the listen queue is full")
	}
	ln, err := net.FileListener(f)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	go func() {
		<-time.After(50 * time.Millisecond)
		for range len(others) + 1 {
			if conn, err := ln.Accept(); err == nil {
				conn.Close()
			}
		}
	}()
	conn, err := New(socket).dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
	for _, c := range others {
		c.Close()
	}
}
