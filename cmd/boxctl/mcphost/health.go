// SPDX-License-Identifier: Apache-2.0

package mcphost

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// maxMissedPings are how many pings in a row may have no answer before a server is ended.
const maxMissedPings = 3

// exitGrace is how long a server may take to end after the end of its input.
const exitGrace = 5 * time.Second

// pingID begins the ids of our requests to a server. No client makes such ones.
const pingID = "boxd-health-"

// serverInput is the standard input of a server: what its client sends, and between two messages of that a ping.
type serverInput struct {
	mu        sync.Mutex // guards what follows
	out       *io.PipeWriter
	inMessage bool // a message of the client has begun and not ended

	ended chan struct{} // closed at the end of what the client sends
}

// newServerInput passes on what a client sends until that ends, or until the reader of what it returns is closed.
func newServerInput(client io.Reader) (*serverInput, *io.PipeReader) {
	in, out := io.Pipe()
	m := &serverInput{out: out, ended: make(chan struct{})}
	go m.pass(client) // ends with the client, or with the next thing it sends: nothing interrupts its Read
	return m, in
}

func (m *serverInput) pass(client io.Reader) {
	buf := make([]byte, 64<<10)
	for {
		n, err := client.Read(buf)
		if n > 0 && !m.write(buf[:n]) {
			return
		}
		if err != nil {
			m.out.CloseWithError(err) // io.EOF is the end of the input
			close(m.ended)
			return
		}
	}
}

func (m *serverInput) write(b []byte) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.inMessage = b[len(b)-1] != '\n'
	_, err := m.out.Write(b)
	return err == nil
}

// ping asks for a sign of life, unless the client is in the middle of a message.
func (m *serverInput) ping(n int) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.inMessage {
		return false
	}
	_, err := fmt.Fprintf(m.out, `{"jsonrpc":"2.0","id":"%s%d","method":"ping"}`+"\n", pingID, n)
	return err == nil
}

// awaitAnswers returns when a client that has ended its input has all answers, and a server that should end by that has had time to.
// Some never do. false is that ctx has ended.
func (m *serverInput) awaitAnswers(ctx context.Context, w *watch) bool {
	select {
	case <-ctx.Done():
		return false
	case <-m.ended:
	}
	for {
		select {
		case <-ctx.Done():
			return false
		case <-time.After(exitGrace):
		}
		if w.answered() {
			return true
		}
	}
}

// pollHealth pings a server that has answered the handshake and owes its client nothing, at each tick, until ctx ends. Any
// output of a server is a sign of life. It returns when the server has given none three times; report has each change.
func pollHealth(ctx context.Context, ticks <-chan time.Time, w *watch, ping func(n int) bool, report func(how string)) (silent bool) {
	missed, pinged := 0, false
	for n := 1; ; {
		select {
		case <-ctx.Done():
			return false
		case <-ticks:
		}
		active, idle := w.activity()
		switch {
		case active || !pinged || !idle:
			missed = 0
		default:
			missed++
		}
		switch {
		case missed == 0 && active:
			report("ok")
		case missed > 0:
			report(fmt.Sprintf("no answer to %d of %d pings", missed, maxMissedPings))
		}
		if missed == maxMissedPings {
			return true
		}
		pinged = false
		if idle {
			pinged = ping(n)
			n++
		}
	}
}

// isPing reports whether an id is that of a ping of ours.
func isPing(id []byte) bool {
	return strings.HasPrefix(string(bytes.TrimPrefix(id, []byte{'"'})), pingID)
}
