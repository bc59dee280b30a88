// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"
	"golang.org/x/sys/unix"
)

// served returns a WebSocket of this package and its client.
func served(t *testing.T, options *websocket.DialOptions) (server *frames, ours, client *websocket.Conn) {
	t.Helper()
	type accepted struct {
		ws  *websocket.Conn
		f   *frames
		err error
	}
	got, over := make(chan accepted, 1), make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ws, f, err := accept(w, r)
		got <- accepted{ws, f, err}
		<-over
	}))
	t.Cleanup(srv.Close)
	t.Cleanup(func() { close(over) })
	client, _, err := websocket.Dial(t.Context(), srv.URL, options) //nolint:bodyclose // the library has closed it
	if err != nil {
		t.Fatal(err)
	}
	client.SetReadLimit(-1)
	a := <-got
	if a.err != nil {
		t.Fatal(a.err)
	}
	t.Cleanup(func() { _ = client.CloseNow(); _ = a.ws.CloseNow() })
	return a.f, a.ws, client
}

// A message of each length around those where the header grows arrives as one message, also while the library writes its own.
func TestWebSocketFramesPastTheLibraryArriveWhole(t *testing.T) {
	t.Parallel()
	server, ours, client := served(t, nil)
	sizes := []int{0, 1, 124, 125, 126, 127, 1<<16 - 2, 1<<16 - 1, 1 << 16, 1 << 20, 8 << 20}
	var tasks, sent sync.WaitGroup
	defer tasks.Wait()
	tasks.Go(func() { _, _, _ = ours.Read(t.Context()) }) // receives the pongs
	sent.Go(func() {
		for range 100 {
			if err := ours.Ping(t.Context()); err != nil {
				t.Error(err)
				return
			}
		}
	})
	sent.Go(func() {
		for _, n := range sizes {
			if err := server.send(t.Context(), []byte{7}, bytes.Repeat([]byte{byte(n)}, n)); err != nil {
				t.Error(err)
			}
		}
	})
	tasks.Go(func() {
		sent.Wait()
		_ = ours.CloseNow()
	})
	for _, n := range sizes {
		kind, data, err := client.Read(t.Context())
		if err != nil || kind != websocket.MessageBinary || !bytes.Equal(data, append([]byte{7}, bytes.Repeat([]byte{byte(n)}, n)...)) {
			t.Fatalf("%d bytes: %v, %d of %d bytes, %v", n, kind, len(data), n+1, err)
		}
	}
	_, _, _ = client.Read(t.Context()) // the remaining pings
}

// A client that does not read blocks a message until its context ends; nothing can follow a partial message.
func TestAMessageIsCutShort(t *testing.T) {
	t.Parallel()
	server, _, client := served(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	var begun sync.WaitGroup
	defer begun.Wait()
	begun.Go(func() {
		defer cancel()
		if _, _, err := client.Reader(t.Context()); err != nil { // it has begun
			t.Error(err)
		}
	})
	if err := server.send(ctx, make([]byte, 64<<20)); !errors.Is(err, context.Canceled) { // larger than all buffers
		t.Errorf("err = %v, want err is context.Canceled", err)
	}
	if err := server.send(t.Context(), []byte("x")); err == nil {
		t.Error("no error for a message after an incomplete one")
	}
	if _, err := server.Write([]byte("x")); err == nil {
		t.Error("no error for a frame of the library after an incomplete message")
	}
}

func TestAPartialWriteLeavesTheRemainingBuffers(t *testing.T) {
	t.Parallel()
	for n := range 8 {
		bufs := skip([][]byte{[]byte("ab"), nil, []byte("cde"), []byte("fg")}, n)
		if got := string(bytes.Join(bufs, nil)); got != "abcdefg"[n:] {
			t.Errorf(`after %d bytes: got %q, want "abcdefg"[n:]`, n, got)
		}
	}
	if err := (&frames{raw: closedConn{}}).write([][]byte{nil}); !errors.Is(err, unix.EBADF) {
		t.Errorf("err = %v, want err is unix.EBADF", err)
	}
}

// closedConn is a descriptor that fails writes.
type closedConn struct{}

func (closedConn) Control(f func(uintptr)) error    { f(^uintptr(0)); return nil }
func (closedConn) Read(f func(uintptr) bool) error  { f(^uintptr(0)); return nil }
func (closedConn) Write(f func(uintptr) bool) error { f(^uintptr(0)); return nil }

// A client that answers pings is kept, and so is one with unsent output; one that does neither is dropped.
func TestAClientThatDoesNotAnswerIsDropped(t *testing.T) {
	t.Parallel()
	const patience = 5 * time.Second // more than a busy host needs for an answer
	var mute, unsent atomic.Bool
	answered, unanswered, looks := make(chan struct{}, 1), make(chan struct{}, 1), make(chan struct{}, 1)
	tell := func(what chan<- struct{}) {
		select {
		case what <- struct{}{}:
		default: // already signaled
		}
	}
	server, ours, client := served(t, &websocket.DialOptions{OnPingReceived: func(context.Context, []byte) bool {
		if mute.Load() {
			tell(unanswered)
			return false
		}
		tell(answered)
		return true
	}})
	c := &conn{streamOpening: &streamOpening{Unsent: func() int {
		if unsent.Load() {
			tell(looks)
			return 1
		}
		return 0
	}}, ws: ours, frames: server}
	c.lastSent.Store(time.Now().UnixNano())
	var tasks sync.WaitGroup
	defer tasks.Wait()
	tasks.Go(func() { _, _, _ = ours.Read(t.Context()) }) // receives the pongs
	tasks.Go(func() { _, _, _ = client.Read(t.Context()) })
	gone := make(chan struct{})
	tasks.Go(func() {
		c.watch(t.Context(), func() { close(gone) }, 10*time.Millisecond, patience)
	})
	stays := func(what string, signs <-chan struct{}) {
		t.Helper()
		for range 20 {
			select {
			case <-gone:
				t.Fatalf("%s is dropped", what)
			case <-signs:
			}
		}
	}
	stays("a client that answers", answered)
	mute.Store(true)
	<-unanswered
	unsent.Store(true)
	stays("a client that is behind", looks) // and its answer is late by then
	unsent.Store(false)
	<-gone
	_ = ours.CloseNow()
}
