// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/boxd-dev/boxd/supervisor/access"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/conns"
)

// enter takes as many connections as a caller gets, up to most.
func enter(c *conns.Limiter, name string, most int) (taken int, err error) {
	for range most {
		if _, refused := c.Enter(name); refused != nil {
			return taken, refused.Err
		}
		taken++
	}
	return taken, nil
}

// byUser names every peer by its uid.
func byUser(peer *access.Peer) string { return access.OfUser(peer.UID) }

func listen(t *testing.T) net.Listener {
	t.Helper()
	ln, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	return ln
}

func dial(t *testing.T, ln net.Listener) net.Conn {
	t.Helper()
	conn, err := net.Dial("unix", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func TestOneConnectionTooManyHasItsAnswer(t *testing.T) {
	t.Parallel()
	ln := peerListener{Listener: listen(t), callers: conns.New(conns.Each, conns.All), name: byUser}
	uid := access.OfUser(uint32(os.Geteuid()))
	taken, _ := enter(ln.callers, uid, 2000)
	refused := dial(t, ln)
	accepted := make(chan net.Conn)
	go func() {
		conn, err := ln.Accept() // past the one that is refused
		if err != nil {
			t.Error(err)
		}
		accepted <- conn
	}()
	resp, err := http.ReadResponse(bufio.NewReader(refused), nil) // without a request
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var p api.Problem
	if err := json.NewDecoder(resp.Body).Decode(&p); err != nil || resp.StatusCode != http.StatusTooManyRequests || p.Status != resp.StatusCode ||
		resp.Header.Get("Retry-After") == "" || resp.Header.Get("Content-Type") != problemMedia || !resp.Close || p.Type != api.ProblemType+"exhausted" || p.Hint == "" {
		t.Errorf("resp = %v, p = %+v, err = %v", resp, p, err)
	}
	if n, err := refused.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("read %d, %v", n, err)
	}
	ln.callers.Leave(uid)
	dial(t, ln)
	conn := <-accepted
	conn.Close()
	conn.Close() // counts once
	if n := ln.callers.Connections(uid); n != taken-1 {
		t.Errorf("%d connections are counted, want %d", n, taken-1)
	}
}

// A client that is still sending its request gets the reason of the refusal, and no broken pipe.
func TestOneConnectionTooManyMaySendItsRequest(t *testing.T) {
	t.Parallel()
	ln := peerListener{Listener: listen(t), callers: conns.New(conns.Each, conns.All), name: byUser}
	enter(ln.callers, access.OfUser(uint32(os.Geteuid())), 2000)
	go func() { _, _ = ln.Accept() }() // refuses until the listener is closed
	client := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", ln.Addr().String())
	}}}
	for range 50 {
		resp, err := client.Post("http://boxd/v1/exec", "application/json", bytes.NewReader(make([]byte, 300<<10)))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusTooManyRequests {
			t.Errorf("resp = %v, want resp.StatusCode == 429", resp)
		}
	}
}

func TestBodiesOfOneUserWaitForEachOther(t *testing.T) {
	t.Parallel()
	s, _ := quiet()
	user, other := conns.NewLimits(), conns.NewLimits()
	release, err := user.Reserve(t.Context(), conns.Bytes-10)
	if err != nil {
		t.Fatal(err)
	}
	post := func(ctx context.Context, l *conns.Limits, body string, length int64) error {
		r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/", strings.NewReader(body))
		r.ContentLength = length
		c := &Call{Deps: s.common, W: httptest.NewRecorder(), R: r, Limits: l}
		return c.decodeBody(new(api.ExecRequest), MaxBody)
	}
	gone, hangUp := context.WithCancel(t.Context())
	hangUp()
	for _, length := range []int64{11, -1, MaxBody} { // -1 may become anything
		if err := post(gone, user, "{}         ", length); !errors.Is(err, context.Canceled) {
			t.Errorf("a body of %d bytes without memory for it: err = %v, want err is context.Canceled", length, err)
		}
	}
	if err := post(t.Context(), user, "{}", 2); err != nil {
		t.Errorf("a small body: %v", err)
	}
	if err := post(t.Context(), other, "{}         ", -1); err != nil {
		t.Errorf("a body of another user: %v", err)
	}
	release()
	for range 10 { // reservations are released
		if err := post(t.Context(), user, "{}", -1); err != nil {
			t.Fatal(err)
		}
	}
	for _, length := range []int64{MaxBody + 1, 1 << 40} { // refused before anything is read or stored
		f, ok := errors.AsType[*fault.Error](post(t.Context(), user, "", length))
		if !ok || f.Field != "body" || f.Allowed != "at most 16MiB" {
			t.Errorf(`%d bytes: f = %+v, want ok == true and f.Field == "body" and f.Allowed == "at most 16MiB"`,
				length, f)
		}
	}
	f, ok := errors.AsType[*fault.Error](post(t.Context(), user, strings.Repeat(" ", MaxBody+1), -1))
	if !ok || f.Field != "body" || f.Allowed != "at most 16MiB" {
		t.Errorf("more than may be: %+v", f)
	}
}

// serveRoute makes a server answer requests on a socket as http.Server does, and signals when each is done.
func serveRoute(t *testing.T, s *Server) (ln net.Listener, done chan struct{}) {
	t.Helper()
	done = make(chan struct{}, 1)
	ln = listen(t)
	srv := &http.Server{ConnContext: withPeer, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.ServeHTTP(w, r)
		done <- struct{}{}
	})}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = srv.Serve(peerListener{Listener: ln, callers: conns.New(conns.Each, conns.All), name: byUser}) // ends with the test
	}()
	t.Cleanup(func() {
		srv.Close()
		<-ended
	})
	return ln, done
}

func await(t *testing.T, what string, done <-chan struct{}) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(2 * time.Minute): // far more than the patience in the test
		t.Fatal(what)
	}
}

func TestAResponseNobodyReadsTimesOut(t *testing.T) {
	t.Parallel()
	s, _ := quiet()
	s.common.Answers = 50 * time.Millisecond
	s.routes = []Route{line("GET /", access.User, "", func(*Call) (any, error) { return strings.Repeat("x", 16<<20), nil })}
	ln, done := serveRoute(t, s)
	conn := dial(t, ln)
	if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	await(t, "the answer is held for ever", done)
	if n, err := io.Copy(io.Discard, conn); n >= 16<<20 {
		t.Errorf("%d bytes of the answer arrived: err = %v, want n < 16 << 20", n, err)
	}
}

// A body that is announced, not needed and never sent does not block the connection forever.
func TestABodyThatDoesNotComeIsGivenUp(t *testing.T) {
	t.Parallel()
	for _, request := range []string{
		"GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n",
		"POST /v1/nothing HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{",
		"GET /healthz HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n",
	} {
		s, _ := quiet()
		s.common.Answers = 50 * time.Millisecond
		ln, done := serveRoute(t, s)
		conn := dial(t, ln)
		if _, err := io.WriteString(conn, request); err != nil {
			t.Fatal(err)
		}
		await(t, "the connection is held for ever by "+request, done)
		if _, err := io.Copy(io.Discard, conn); err != nil {
			t.Errorf("%q: %v", request, err)
		}
	}
}

// deadlines is a listener for one connection that records its write deadlines.
type deadlines struct {
	net.Listener
	set chan time.Time
}

func (l deadlines) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	return notingConn{conn, l.set}, err
}

type notingConn struct {
	net.Conn
	set chan time.Time
}

func (c notingConn) SetWriteDeadline(t time.Time) error {
	c.set <- t
	return c.Conn.SetWriteDeadline(t)
}

// The deadline of an answer does not apply to the connection, whose next request may take longer.
func TestTheResponseDeadlineIsPerResponse(t *testing.T) {
	t.Parallel()
	s, _ := quiet()
	peer := peerAddr{limits: conns.NewLimits(), self: &access.Principal{Name: "uid:1", Role: access.User}}
	ln := deadlines{listen(t), make(chan time.Time, 100)}
	srv := &http.Server{Handler: s, ConnContext: func(ctx context.Context, _ net.Conn) context.Context {
		return context.WithValue(ctx, peerKey{}, peer)
	}}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = srv.Serve(ln) // ends with the test
	}()
	start := time.Now()
	conn := dial(t, ln)
	r := bufio.NewReader(conn)
	for range 2 { // the first is certainly over once the second is answered
		if _, err := io.WriteString(conn, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			t.Error(err)
		}
		resp.Body.Close()
	}
	srv.Close()
	<-ended
	if first, second := <-ln.set, <-ln.set; first.Before(start.Add(answerTimeout)) || !second.IsZero() {
		t.Errorf("the deadline is %v, and then %v", first, second)
	}
}

func TestASessionIsUndoneWhenItsCreatorGetsNoResponse(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		gone    bool // before the answer
		hangsUp bool // while it is written
		want    bool
	}{
		"delivered": {}, "gone": {gone: true, want: true}, "hangs up": {hangsUp: true, want: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if tc.gone {
				cancel()
			}
			s, _ := quiet()
			undone := false
			s.routes = []Route{line("POST /", access.User, "", func(*Call) (any, error) {
				return Created{Body: api.Session{ID: "s"}, Undo: func() { undone = true }}, nil
			})}
			answer := httptest.NewRecorder()
			w := http.ResponseWriter(answer)
			if tc.hangsUp {
				w = disconnected{w}
			}
			s.ServeHTTP(w, as(ctx, access.Principal{Name: "uid:1", Role: access.User}, http.MethodPost, "/"))
			if undone != tc.want {
				t.Errorf("undone: undone = %v, want %v", undone, tc.want)
			}
			if tc.gone && answer.Code != http.StatusServiceUnavailable { // to the server this looks like its own shutdown
				t.Errorf("the answer is %d %q, want tc.gone == false or answer.Code == 503", answer.Code, answer.Body)
			}
		})
	}
}

// disconnected is the connection of a client that has disconnected.
type disconnected struct{ http.ResponseWriter }

func (disconnected) FlushError() error { return net.ErrClosed }
