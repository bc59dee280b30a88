// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/coder/websocket"
	"golang.org/x/sync/semaphore"
	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/relay/api"
)

func TestALongStartOfAStreamWaitsForRoom(t *testing.T) {
	t.Parallel()
	room := semaphore.NewWeighted(api.MaxStart)
	reserve := func(ctx context.Context, n int64) (func(), error) {
		return func() { room.Release(n) }, room.Acquire(ctx, n)
	}
	type taken struct {
		data []byte
		err  error
	}
	got := make(chan taken)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ws, err := websocket.Accept(w, r, nil)
		if err != nil {
			t.Error(err)
			return
		}
		defer ws.CloseNow()
		ws.SetReadLimit(api.MaxStart)
		c := &conn{streamOpening: &streamOpening{Reserve: reserve}, ws: ws}
		for {
			_, data, release, err := c.read(t.Context())
			if err == nil {
				release()
			}
			got <- taken{data, err}
			if err != nil {
				return
			}
		}
	}))
	t.Cleanup(srv.Close)
	ws, _, err := websocket.Dial(t.Context(), srv.URL, nil) //nolint:bodyclose // the library has closed it
	if err != nil {
		t.Fatal(err)
	}
	defer ws.CloseNow()
	send := func(n int) {
		if err := ws.Write(t.Context(), websocket.MessageBinary, bytes.Repeat([]byte("x"), n)); err != nil {
			t.Error(err)
		}
	}
	for _, n := range []int{0, 1, api.MaxFrame - 1, api.MaxFrame, api.MaxFrame + 1, 1 << 20, api.MaxStart} {
		go send(n)
		if m := <-got; m.err != nil || len(m.data) != n {
			t.Fatalf("%d bytes were sent, %d arrived: m.err = %v, want no error and len(m.data) == n", n, len(m.data), m.err)
		}
	}
	release, err := reserve(t.Context(), api.MaxStart)
	if err != nil {
		t.Fatal(err)
	}
	go send(api.MaxFrame) // short data needs no room
	if m := <-got; m.err != nil {
		t.Fatal(m.err)
	}
	go send(api.MaxFrame + 1)
	select {
	case m := <-got:
		t.Errorf("a long message was read without memory for it: %d bytes, %v", len(m.data), m.err)
	case <-time.After(20 * time.Millisecond): // if this is too short the test passes too easily, and never fails
		release()
		if m := <-got; m.err != nil || len(m.data) != api.MaxFrame+1 {
			t.Errorf("then: %d bytes, %v", len(m.data), m.err)
		}
	}
	ws.CloseNow()
	if m := <-got; m.err == nil {
		t.Error("a message was read after the end")
	}
}

func TestReasonsFitIntoACloseFrame(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "short", strings.Repeat("é", 200), "a" + strings.Repeat("€", 100)} {
		got := closeReason(errors.New(text))
		if len(got) > maxCloseReason || !utf8.ValidString(got) || !strings.HasPrefix(text, got) || len(text)-len(got) > 3 && len(got) < maxCloseReason-3 {
			t.Errorf("%q became %q", text, got)
		}
	}
}

func TestInputIsBoundedByItsWindow(t *testing.T) {
	t.Parallel()
	kept := func() {}
	if err := newInput(errNoInput, false, writer{}).add([]byte("x"), kept); err == nil {
		t.Error("no error for input of a stream without input")
	}
	if err := newInput(nil, false, writer{}).add([]byte("x"), kept); err != nil {
		t.Errorf("input for a program that could not start: %v", err)
	}
	pipe := discards()
	in := newInput(nil, false, pipe)
	if err := in.add(make([]byte, api.StdinWindow), kept); err != nil {
		t.Errorf("a full window: %v", err)
	}
	if err := in.add([]byte("x"), kept); err == nil {
		t.Error("no error for a byte beyond the window")
	}
	in = newInput(nil, false, pipe)
	for range inputQueue {
		if err := in.add([]byte("x"), kept); err != nil {
			t.Fatal(err)
		}
	}
	if err := in.add([]byte("x"), kept); err == nil {
		t.Error("no error for a message beyond the queue")
	}
}

// discards returns a program that reads all its input.
func discards() writer {
	return writer{write: func([]byte) error { return nil }, close: func() {}}
}

func TestInputEndsOnce(t *testing.T) {
	t.Parallel()
	in := newInput(nil, false, discards())
	if err := in.add(nil, func() {}); err != nil {
		t.Fatal(err)
	}
	for _, data := range []string{"", "x"} {
		released := false
		if err := in.add([]byte(data), func() { released = true }); err == nil || !released {
			t.Errorf("%q after the end: %v, released %v", data, err, released)
		}
	}
}

// A long line may be in transit alone, and goes to the program in one piece with its newline.
func TestALineOfInputIsWritten(t *testing.T) {
	t.Parallel()
	var got []string
	in := newInput(nil, true, writer{write: func(data []byte) error { got = append(got, string(data)); return nil }, close: func() { got = append(got, "end") }})
	released := 0
	add := func(text string) error { return in.add([]byte(text), func() { released++ }) }
	if err := add("two\nlines"); err == nil || released != 1 {
		t.Errorf("two lines in one message: err = %v, want an error and released == 1", err)
	}
	long := strings.Repeat("x", 2*api.StdinWindow)
	if err := add(long); err != nil {
		t.Errorf("a long line: %v", err)
	}
	if err := add("y"); err == nil || released != 2 {
		t.Errorf("another one behind it: err = %v, want an error and released == 2", err)
	}
	if err := add(""); err != nil {
		t.Errorf("the end: %v", err)
	}
	taken := uint64(0)
	in.pump(func(n uint64) { taken = n })
	if len(got) != 2 || got[0] != long+"\n" || got[1] != "end" || taken != uint64(len(long)+1) || released != 3 {
		t.Errorf("%d messages are written, %d bytes confirmed, %d given back", len(got), taken, released)
	}
}

func TestInputThatIsNotTakenIsDroppedOrStops(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		err   error
		taken uint64
		deaf  bool
	}{{unix.EPIPE, 6, false}, {errNotOurs, 0, true}} {
		in := newInput(nil, false, writer{write: func([]byte) error { return tc.err }, close: func() {}})
		for _, text := range []string{"one", "two", ""} {
			if err := in.add([]byte(text), func() {}); err != nil {
				t.Fatal(err)
			}
		}
		taken := uint64(0)
		in.pump(func(n uint64) { taken = n })
		if taken != tc.taken || in.discards.Load() != tc.deaf {
			t.Errorf("%v: %d bytes are confirmed, deaf %v", tc.err, taken, in.discards.Load())
		}
		released := 0
		if tc.deaf {
			in.ended = false
			if err := in.add([]byte("late"), func() { released++ }); err != nil || released != 1 {
				t.Errorf("input after the end: err = %v, want no error and released == 1", err)
			}
		}
		in.drain()
		if len(in.queue) != 0 {
			t.Errorf("%d messages are left", len(in.queue))
		}
	}
}
