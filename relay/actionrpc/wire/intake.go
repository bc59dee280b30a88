// SPDX-License-Identifier: Apache-2.0

// Messages of LangBot's clients are read into a memory budget that all connections share. A short message needs none of
// it; a longer one is read only when there is room for one of maximum length.

package wire

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"
	"golang.org/x/sync/semaphore"
)

// Limits of messages.
const (
	Short = 64 << 10 // bytes that a connection can send without waiting for room
	Tiny  = 1 << 10  // bytes of a message that is never counted: a ping waits for nothing
	// messageWeight is the memory per byte of a message: its text, what is decoded from it, and buffer growth meanwhile.
	messageWeight = 3
	// fullMessage is the memory that a message of maximum length stands for.
	fullMessage = messageWeight * MaxMessage
)

// MessageBudget is the memory for messages of many connections. It is safe for concurrent use.
type MessageBudget struct {
	pools []*semaphore.Weighted // that of a part before the shared one
	// Patience is how long a message that is not short may take to arrive once it has begun.
	Patience time.Duration
}

// NewMessageBudget returns a budget for so many messages of maximum length at once.
func NewMessageBudget(longest int64) *MessageBudget {
	return &MessageBudget{pools: []*semaphore.Weighted{semaphore.NewWeighted(longest * fullMessage)}, Patience: time.Minute}
}

// take waits for room for n bytes.
func (r *MessageBudget) take(ctx context.Context, n int64) error {
	for i, pool := range r.pools {
		if err := pool.Acquire(ctx, n); err != nil {
			for _, had := range r.pools[:i] {
				had.Release(n)
			}
			return fmt.Errorf("room for a message: %w", err)
		}
	}
	return nil
}

func (r *MessageBudget) give(n int64) {
	for _, pool := range r.pools {
		pool.Release(n)
	}
}

// Message is a message that was read. Free must follow.
type Message struct {
	Kind websocket.MessageType
	Data []byte

	budget *MessageBudget
	held   int64
}

// Long reports whether a message takes room of the shared budget.
func (m *Message) Long() bool { return m.held > 0 }

// Free returns the room of a message.
func (m *Message) Free() {
	if m.held > 0 {
		m.budget.give(m.held)
	}
	m.held = 0
}

// Keep returns the room that only reading a message needs: it keeps so many times its length, at most what it had.
func (m *Message) Keep(times, length int) {
	if left := m.held - int64(times)*int64(length); left > 0 && m.held > 0 {
		m.budget.give(left)
		m.held -= left
	}
}

// Count waits for room for a short message too, for a caller that keeps many of them. A tiny message is not counted.
func (m *Message) Count(ctx context.Context) error {
	if n := messageWeight * int64(len(m.Data)); m.held == 0 && len(m.Data) > Tiny {
		if err := m.budget.take(ctx, n); err != nil {
			return err
		}
		m.held = n
	}
	return nil
}

// Read reads the next message of a connection, whose read limit must be that of the protocol. An error ends the
// connection. waits is true while nothing is read for want of room, so that no pong of the client is read either.
func (r *MessageBudget) Read(ctx context.Context, ws *websocket.Conn, waits *atomic.Bool) (_ *Message, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	kind, from, err := ws.Reader(ctx)
	if err != nil {
		return nil, err //nolint:wrapcheck // it is about the connection
	}
	m := &Message{Kind: kind, budget: r}
	defer func() {
		if err != nil {
			m.Free()
		}
	}()
	timer := time.AfterFunc(r.Patience, cancel) // cuts off a client that begins a message and does not end it
	defer timer.Stop()
	if m.Data, err = io.ReadAll(io.LimitReader(from, Short)); err != nil || len(m.Data) < Short {
		return m, err //nolint:wrapcheck // as above
	}
	timer.Stop() // the client does not cause the lack of room
	waits.Store(true)
	err = r.take(ctx, fullMessage)
	waits.Store(false)
	if err != nil {
		return m, err
	}
	m.held = fullMessage
	timer.Reset(r.Patience)
	rest, err := io.ReadAll(io.MultiReader(bytes.NewReader(m.Data), from))
	if err != nil {
		return m, err //nolint:wrapcheck // as above
	}
	m.Data = rest
	m.Keep(messageWeight, len(rest))
	return m, nil
}
