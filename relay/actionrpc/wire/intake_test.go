// SPDX-License-Identifier: Apache-2.0

package wire_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/boxd-dev/boxd/relay/actionrpc/wire"
)

// outcome is the result of reading a message.
type outcome struct {
	m   *wire.Message
	err error
}

// connect returns the client's end of a connection whose messages are read within the budget room, one for every value in read.
func connect(t *testing.T, room *wire.MessageBudget) (ws *websocket.Conn, read chan<- struct{}, got <-chan outcome) {
	t.Helper()
	more, all := make(chan struct{}, 8), make(chan outcome, 8)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		at, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		defer at.CloseNow()
		at.SetReadLimit(wire.MaxMessage)
		for range more {
			m, err := room.Read(context.WithoutCancel(r.Context()), at, new(atomic.Bool))
			if all <- (outcome{m, err}); err != nil {
				return
			}
		}
	}))
	t.Cleanup(server.Close)
	ws, _, err := websocket.Dial(t.Context(), "ws"+strings.TrimPrefix(server.URL, "http"), nil) //nolint:bodyclose // the library has it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		close(more)
		_ = ws.CloseNow() // it may be closed already
	})
	return ws, more, all
}

func send(t *testing.T, ws *websocket.Conn, length int) {
	t.Helper()
	if err := ws.Write(t.Context(), websocket.MessageText, []byte(strings.Repeat("x", length))); err != nil {
		t.Error(err)
	}
}

func TestALongMessageIsReadWhenThereIsRoomForTheLongest(t *testing.T) {
	t.Parallel()
	room := wire.NewMessageBudget(1)
	first, read, got := connect(t, room)
	w, err := first.Writer(t.Context(), websocket.MessageText)
	if err != nil {
		t.Fatal(err)
	}
	read <- struct{}{}
	// Longer than short, and it continues: now the maximum is reserved.
	if _, err := io.WriteString(w, strings.Repeat("x", 4*wire.Short)); err != nil {
		t.Fatal(err)
	}
	short, readShort, gotShort := connect(t, room)
	readShort <- struct{}{}
	send(t, short, 100)
	if o := <-gotShort; o.err != nil || o.m.Long() || len(o.m.Data) != 100 {
		t.Fatalf("a short message must not wait: o = %+v, want no error and not o.m.Long() and len(o.m.Data) == 100", o)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	one := <-got
	if one.err != nil || !one.m.Long() || len(one.m.Data) != 4*wire.Short {
		t.Fatalf("one = %+v, want no error and one.m.Long() and len(one.m.Data) == 4 * wire.Short", one)
	}
	// What the first did not need is free again, but not enough for a message of maximum length: that is read once the first is done.
	second, readSecond, gotSecond := connect(t, room)
	readSecond <- struct{}{}
	go send(t, second, 2*wire.Short)
	read <- struct{}{}
	send(t, first, 50)
	if o := <-got; o.err != nil || len(o.m.Data) != 50 || len(gotSecond) > 0 {
		t.Fatalf("the long message was read without memory for it: o = %+v, want no error and len(o.m.Data) == 50 and len(gotSecond) == 0",
			o)
	}
	one.m.Free()
	if o := <-gotSecond; o.err != nil || len(o.m.Data) != 2*wire.Short {
		t.Fatalf("o = %+v, want no error and len(o.m.Data) == 2 * wire.Short", o)
	}
}

func TestALengthIsReadToTheByte(t *testing.T) {
	t.Parallel()
	ws, read, got := connect(t, wire.NewMessageBudget(1))
	for _, n := range []int{0, 1, wire.Short - 1, wire.Short, wire.Short + 1, wire.MaxMessage} {
		read <- struct{}{}
		go send(t, ws, n)
		o := <-got
		if o.err != nil || len(o.m.Data) != n || strings.Trim(string(o.m.Data), "x") != "" {
			t.Fatalf(`%d: o.err = %v, want no error and len(o.m.Data) == n and strings.Trim(string(o.m.Data), "x") == ""`,
				n, o.err)
		}
		if o.m.Long() != (n >= wire.Short) {
			t.Errorf("%d: counted: o.m.Long() = %v, want n >= wire.Short", n, o.m.Long())
		}
		o.m.Free()
		o.m.Free() // has no effect
	}
	read <- struct{}{}
	go func() {
		_ = ws.Write(context.WithoutCancel(t.Context()), websocket.MessageText, make([]byte, wire.MaxMessage+1))
	}() // it is cut off
	if o := <-got; o.err == nil {
		t.Fatal("no error for a message longer than the protocol allows")
	}
}

func TestAnUnfinishedMessageIsCutOffAfterATimeout(t *testing.T) {
	t.Parallel()
	for _, length := range []int{wire.Short / 2, 2 * wire.Short} {
		room := wire.NewMessageBudget(1)
		room.Patience = 50 * time.Millisecond
		ws, read, got := connect(t, room)
		w, err := ws.Writer(t.Context(), websocket.MessageText)
		if err == nil {
			_, err = io.WriteString(w, strings.Repeat("x", length))
		}
		if err != nil {
			t.Fatal(err)
		}
		read <- struct{}{}
		if o := <-got; o.err == nil {
			t.Fatal("no error for a message that does not end")
		}
		// Its share is free again.
		other, readOther, gotOther := connect(t, room)
		room.Patience = time.Hour
		readOther <- struct{}{}
		go send(t, other, 2*wire.Short)
		if o := <-gotOther; o.err != nil {
			t.Fatal(o.err)
		}
	}
}

func TestACallerGetsOnlyItsPartOfTheMessageBudget(t *testing.T) {
	t.Parallel()
	parts := wire.NewPartBudget(2)
	mine, release := parts.Enter("mine")
	other, leaveOther := parts.Enter("other")
	defer leaveOther()
	first, read, got := connect(t, mine)
	read <- struct{}{}
	go send(t, first, wire.MaxMessage)
	one := <-got
	if one.err != nil {
		t.Fatal(one.err)
	}
	again, leaveAgain := parts.Enter("mine")
	release()
	second, readSecond, gotSecond := connect(t, again)
	readSecond <- struct{}{}
	go send(t, second, 2*wire.Short)
	third, readThird, gotThird := connect(t, other)
	readThird <- struct{}{}
	go send(t, third, 2*wire.Short)
	if o := <-gotThird; o.err != nil || len(gotSecond) > 0 {
		t.Fatalf("a message of another caller is read, and none of the one that has its share: o = %+v, len(gotSecond) = %d, want no error and len(gotSecond) == 0",
			o, len(gotSecond))
	}
	one.m.Free()
	if o := <-gotSecond; o.err != nil {
		t.Fatal(o.err)
	}
	leaveAgain()
}

func TestAReceivedMessageReturnsPartOfTheBudget(t *testing.T) {
	t.Parallel()
	room := wire.NewMessageBudget(1)
	ws, read, got := connect(t, room)
	read <- struct{}{}
	go send(t, ws, wire.MaxMessage)
	long := <-got
	if long.err != nil {
		t.Fatal(long.err)
	}
	tiny, short := wire.Message{Data: make([]byte, wire.Tiny)}, make(chan error)
	if err := tiny.Count(t.Context()); err != nil {
		t.Fatal(err)
	}
	read <- struct{}{}
	send(t, ws, 2*wire.Tiny)
	next := <-got
	go func() { short <- next.m.Count(context.WithoutCancel(t.Context())) }()
	select {
	case err := <-short:
		t.Fatalf("there was memory for another message beside the longest: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	long.m.Keep(1, len(long.m.Data))
	if err := <-short; err != nil {
		t.Fatal(err)
	}
	long.m.Free()
	next.m.Free()
	read <- struct{}{}
	go send(t, ws, wire.MaxMessage) // everything is free again
	if o := <-got; o.err != nil {
		t.Fatal(o.err)
	}
}
