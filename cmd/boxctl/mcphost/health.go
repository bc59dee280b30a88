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

// silences are how many pings in a row may have no answer before a server is ended.
const silences = 3

// farewell is how long a server may take to end after the end of its input.
const farewell = 5 * time.Second

// pingID begins the ids of our requests to a server. No client makes such ones.
const pingID = "boxd-health-"

// serverInput is what a server is told: what its client says, and between two messages of that a ping.
type serverInput struct {
	mu     sync.Mutex // guards what follows
	out    *io.PipeWriter
	within bool // a message of the client has begun and not ended

	ended chan struct{} // closed when the client has said its last word
}

// newServerInput passes on what a client says until that ends, or until the reader of what it returns is closed.
func newServerInput(client io.Reader) (*serverInput, *io.PipeReader) {
	in, out := io.Pipe()
	m := &serverInput{out: out, ended: make(chan struct{})}
	go m.pass(client) // ends with the client, or with the next thing it says: nothing interrupts its Read
	return m, in
}

func (m *serverInput) pass(client io.Reader) {
	buf := make([]byte, 64<<10)
	for {
		n, err := client.Read(buf)
		if n > 0 && !m.say(buf[:n]) {
			return
		}
		if err != nil {
			m.out.CloseWithError(err) // io.EOF is the end of the input
			close(m.ended)
			return
		}
	}
}

func (m *serverInput) say(b []byte) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.within = b[len(b)-1] != '\n'
	_, err := m.out.Write(b)
	return err == nil
}

// ping asks for a sign of life, unless the client is saying something.
func (m *serverInput) ping(n int) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.within {
		return false
	}
	_, err := fmt.Fprintf(m.out, `{"jsonrpc":"2.0","id":"%s%d","method":"ping"}`+"\n", pingID, n)
	return err == nil
}

// leave returns when a client that has said its last word has all answers, and a server that should end by that has had time to.
// Some never do. false is that ctx has ended.
func (m *serverInput) leave(ctx context.Context, w *watch) bool {
	select {
	case <-ctx.Done():
		return false
	case <-m.ended:
	}
	for {
		select {
		case <-ctx.Done():
			return false
		case <-time.After(farewell):
		}
		if w.owesNothing() {
			return true
		}
	}
}

// observe pings a server that has answered the handshake and owes its client nothing, at each tick, until ctx ends. Any
// word of a server is a sign of life. It returns when the server has given none three times; told hears of each change.
func observe(ctx context.Context, ticks <-chan time.Time, w *watch, ping func(n int) bool, told func(how string)) (silent bool) {
	missed, asked := 0, false
	for n := 1; ; {
		select {
		case <-ctx.Done():
			return false
		case <-ticks:
		}
		said, idle := w.sign()
		switch {
		case said || !asked || !idle:
			missed = 0
		default:
			missed++
		}
		switch {
		case missed == 0 && said:
			told("ok")
		case missed > 0:
			told(fmt.Sprintf("silent for %d of %d pings", missed, silences))
		}
		if missed == silences {
			return true
		}
		asked = false
		if idle {
			asked = ping(n)
			n++
		}
	}
}

// ours reports whether an id is that of a ping of ours.
func ours(id []byte) bool {
	return strings.HasPrefix(string(bytes.TrimPrefix(id, []byte{'"'})), pingID)
}
