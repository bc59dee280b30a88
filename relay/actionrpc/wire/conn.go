// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"cmp"
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"
)

// Limits of a connection.
const (
	maxUnsent   = 2 * MaxCalls // pending and unreceived answers
	sendTimeout = time.Minute  // for an answer of up to 16 MiB, unless the connection has another timeout
)

// Conn is a connection of a client. Serve runs it.
type Conn struct {
	// WS is the accepted WebSocket; Upgrade makes it.
	WS *websocket.Conn
	// Budget is the memory for the requests of all connections.
	Budget *MessageBudget
	// Answer performs a request and calls reply, once, which sends the answer. Its context ends with the connection.
	Answer func(ctx context.Context, r *Request, reply func([]byte))
	// Patience is how long a client may take to receive an answer before it is cut off. 0 is a minute.
	Patience time.Duration

	calls  sync.WaitGroup
	slots  chan struct{} // one entry for each call in progress
	unsent chan struct{} // and one for each answer that the client has not received
}

// Serve reads requests until the client has gone or ctx ends, and returns when all calls have ended. A message that is not text ends the
// connection. While a client does not receive its answers, its requests are not read.
func (c *Conn) Serve(ctx context.Context) {
	c.slots, c.unsent = make(chan struct{}, MaxCalls), make(chan struct{}, maxUnsent)
	ctx, cancel := context.WithCancel(ctx)
	defer c.calls.Wait()
	defer cancel()        // calls in progress end with their client
	var waits atomic.Bool // unused: this connection sends no pings
	for {
		m, err := c.Budget.Read(ctx, c.WS, &waits)
		if err != nil {
			return
		}
		if m.Kind != websocket.MessageText {
			m.Free()
			_ = c.WS.Close(websocket.StatusNormalClosure, "") // the client may have gone
			return
		}
		if m.Count(ctx) != nil {
			return
		}
		if !fewValues(m.Data) {
			m.Free()
			_ = c.WS.Close(websocket.StatusMessageTooBig, "too many values") // the client may have gone
			return
		}
		c.take(ctx, m)
	}
}

// take begins to answer a message.
func (c *Conn) take(ctx context.Context, m *Message) {
	req, seq, err := ParseRequest(m.Data)
	m.Keep(2, len(m.Data)) // the parsed copy, and what an action makes of it
	m.Data = nil
	if err == nil && req == nil {
		m.Free()
		return
	}
	c.unsent <- struct{}{} // soon frees up: sending is bounded
	if err == nil {
		select {
		case c.slots <- struct{}{}:
			c.calls.Go(func() {
				defer m.Free()
				c.Answer(ctx, req, func(text []byte) {
					<-c.slots
					c.send(ctx, text)
				})
			})
			return
		default:
			err = TooManyCalls()
		}
	}
	m.Free()
	c.calls.Go(func() { c.send(ctx, Failure(seq, err)) })
}

// send sends an answer. If that fails, the client has gone, which Serve notices.
func (c *Conn) send(ctx context.Context, answer []byte) {
	defer func() { <-c.unsent }()
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(c.Patience, sendTimeout))
	defer cancel()
	if c.WS.Write(ctx, websocket.MessageText, answer) != nil {
		_ = c.WS.CloseNow() // a closed one is fine
	}
}
