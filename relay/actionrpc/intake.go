// SPDX-License-Identifier: Apache-2.0

// Messages of LangBot's clients are read into a memory budget that all connections share. A short one has room of
// its own; a longer one is read only when there is room for the longest that it can be.

package actionrpc

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

// Bounds of messages.
const (
	Short = 64 << 10 // bytes that a connection can send without waiting for room
	Tiny  = 1 << 10  // bytes of a message that is never counted: one that asks for a sign of life waits for nobody
	// weight is what a byte of a message stands for: its text, what is read of it, and what grows meanwhile.
	messageWeight = 3
	// most is what the longest message stands for.
	most = messageWeight * MaxMessage
)

// MessageBudget is what messages of many connections take together. It is safe for concurrent use.
type MessageBudget struct {
	pools []*semaphore.Weighted // that of a part before that of all
	// Patience is how long a message may take that has begun and is not short.
	Patience time.Duration
}

// NewMessageBudget returns room for so many of the longest messages at once.
func NewMessageBudget(longest int64) *MessageBudget {
	return &MessageBudget{pools: []*semaphore.Weighted{semaphore.NewWeighted(longest * most)}, Patience: time.Minute}
}

// take waits for room for so many bytes.
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

// Message is one that was read. Free must follow.
type Message struct {
	Kind websocket.MessageType
	Data []byte

	room *MessageBudget
	held int64
}

// Long reports whether a message has room of all.
func (m *Message) Long() bool { return m.held > 0 }

// Free gives back what a message takes.
func (m *Message) Free() {
	if m.held > 0 {
		m.room.give(m.held)
	}
	m.held = 0
}

// Keep gives back what only the reading of a message takes: it has room for so many times its own length, at most
// what it had.
func (m *Message) Keep(times, length int) {
	if left := m.held - int64(times)*int64(length); left > 0 && m.held > 0 {
		m.room.give(left)
		m.held -= left
	}
}

// Count waits for room for a short message too, for who keeps many of them. A tiny one is not counted.
func (m *Message) Count(ctx context.Context) error {
	if n := messageWeight * int64(len(m.Data)); m.held == 0 && len(m.Data) > Tiny {
		if err := m.room.take(ctx, n); err != nil {
			return err
		}
		m.held = n
	}
	return nil
}

// Read reads the next message of a connection, whose read limit must be that of the protocol. An error is the end of
// the connection. waits is true while nothing is read for want of room, and no word of the client's life is heard.
func (r *MessageBudget) Read(ctx context.Context, ws *websocket.Conn, waits *atomic.Bool) (_ *Message, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	kind, from, err := ws.Reader(ctx)
	if err != nil {
		return nil, err //nolint:wrapcheck // it is about the connection
	}
	m := &Message{Kind: kind, room: r}
	defer func() {
		if err != nil {
			m.Free()
		}
	}()
	late := time.AfterFunc(r.Patience, cancel) // cuts off who begins and does not end
	defer late.Stop()
	if m.Data, err = io.ReadAll(io.LimitReader(from, Short)); err != nil || len(m.Data) < Short {
		return m, err //nolint:wrapcheck // as above
	}
	late.Stop() // that there is no room is not the client's doing
	waits.Store(true)
	err = r.take(ctx, most)
	waits.Store(false)
	if err != nil {
		return m, err
	}
	m.held = most
	late.Reset(r.Patience)
	rest, err := io.ReadAll(io.MultiReader(bytes.NewReader(m.Data), from))
	if err != nil {
		return m, err //nolint:wrapcheck // as above
	}
	m.Data = rest
	m.Keep(messageWeight, len(rest))
	return m, nil
}
