// SPDX-License-Identifier: Apache-2.0

// Package intake reads messages of LangBot's clients into memory that all connections share. A short one has room of
// its own; a longer one is read only when there is room for the longest that it can be.
package intake

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"time"

	"github.com/coder/websocket"
	"golang.org/x/sync/semaphore"

	"github.com/boxd-dev/boxd/relay/actionrpc/envelope"
)

// Bounds of messages.
const (
	Short = 64 << 10 // bytes that a connection can send without waiting for room
	// weight is what a byte of a message stands for: its text, what is read of it, and what grows meanwhile.
	weight = 3
	// most is what the longest message stands for.
	most = weight * envelope.MaxMessage
)

// Room is what messages of many connections take together. It is safe for concurrent use.
type Room struct {
	pool *semaphore.Weighted
	// Patience is how long a message may take that has begun and is not short.
	Patience time.Duration
}

// NewRoom returns room for so many of the longest messages at once.
func NewRoom(longest int64) *Room {
	return &Room{pool: semaphore.NewWeighted(longest * most), Patience: time.Minute}
}

// Message is one that was read. Free must follow.
type Message struct {
	Kind websocket.MessageType
	Data []byte

	room *Room
	held int64
}

// Long reports whether a message has room of all.
func (m *Message) Long() bool { return m.held > 0 }

// Free gives back what a message takes.
func (m *Message) Free() {
	if m.held > 0 {
		m.room.pool.Release(m.held)
	}
	m.held = 0
}

// Count waits for room for a short message too, for who keeps many of them.
func (m *Message) Count(ctx context.Context) error {
	if n := weight * int64(len(m.Data)); m.held == 0 && n > 0 {
		if err := m.room.pool.Acquire(ctx, n); err != nil {
			return fmt.Errorf("room for a message: %w", err)
		}
		m.held = n
	}
	return nil
}

// Read reads the next message of a connection, whose read limit must be that of the protocol. An error is the end of
// the connection.
func (r *Room) Read(ctx context.Context, ws *websocket.Conn) (_ *Message, err error) {
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
	if err = r.pool.Acquire(ctx, most); err != nil {
		return m, err //nolint:wrapcheck // as above
	}
	m.held = most
	late.Reset(r.Patience)
	rest, err := io.ReadAll(io.MultiReader(bytes.NewReader(m.Data), from))
	if err != nil {
		return m, err //nolint:wrapcheck // as above
	}
	m.Data = rest
	if left := most - weight*int64(len(rest)); left > 0 {
		r.pool.Release(left)
		m.held -= left
	}
	return m, nil
}
