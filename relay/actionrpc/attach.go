// SPDX-License-Identifier: Apache-2.0

// The relay between a managed process and a client of LangBot: one message is one line, either way.

package actionrpc

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"
	"golang.org/x/sync/semaphore"

	"github.com/boxd-dev/boxd/relay/actionrpc/wire"
	"github.com/boxd-dev/boxd/supervisor/process"
)

// Timeouts of a relay.
const (
	pingEvery   = 30 * time.Second
	pongTimeout = 15 * time.Second
	idle        = 200 * time.Millisecond // after this, text without a line end is sent too
	lastWords   = 5 * time.Second
)

// Limits of what waits for the previous relay to end, or for a process that does not read.
const (
	waiting = 64        // messages
	weight  = 256 << 10 // bytes of short messages; a long message waits alone
)

// attached is one client of one process.
type attached struct {
	*Relay
	ws        *websocket.Conn
	log       *slog.Logger
	mu        sync.Mutex // serializes Touch
	budget    *wire.MessageBudget
	incoming  chan incoming
	unwritten *semaphore.Weighted // bytes of unwritten messages
	full      atomic.Bool         // nothing is read, for want of room
}

// incoming is one message of a client.
type incoming struct {
	*wire.Message
	size int64 // its share of the relay's semaphore
}

// attachConfig configures a relay.
type attachConfig struct {
	Started time.Time           // of this boxd
	Room    *wire.MessageBudget // for messages of the clients of the Workspace
	Log     *slog.Logger
}

// serveAttach relays until the process has ended, the client has gone, or ctx ends. The process outlives the client.
func serveAttach(ctx context.Context, ws *websocket.Conn, to *Relay, cfg attachConfig) {
	ctx, hangUp := context.WithCancel(ctx)
	r := &attached{Relay: to, ws: ws, log: cfg.Log, budget: cfg.Room, incoming: make(chan incoming, waiting), unwritten: semaphore.NewWeighted(weight)}
	var tasks sync.WaitGroup
	defer r.forget()
	defer tasks.Wait()
	defer ws.CloseNow() //nolint:errcheck // a closed one is fine
	defer hangUp()
	tasks.Go(func() { // ends with the connection
		defer hangUp()
		r.listen(ctx)
		r.drain(ctx)
	})
	tasks.Go(func() { // ends with ctx
		defer hangUp()
		r.watch(ctx, pingEvery, pongTimeout)
	})
	from, err := to.enter(ctx, cfg.Started)
	if err != nil {
		return
	}
	at := from // nil: unknown, also if it cannot be attached to
	var writing sync.WaitGroup
	defer func() { // this client's input is counted before the next client's
		hangUp()
		writing.Wait()
		to.leave(at)
	}()
	a, err := to.Process.Attach(ctx, process.AttachOptions{From: from, Write: true, TakeOver: true, Lossless: true})
	if err != nil {
		_ = ws.Close(websocket.StatusInternalError, "managed process stdio unavailable") // it may have gone
		return
	}
	at = new(a.Position())
	writing.Go(func() { r.write(ctx, a) }) // ends with ctx
	err = r.read(ctx, a, at)
	a.Close()
	if errors.Is(err, io.EOF) {
		_ = ws.Close(websocket.StatusNormalClosure, "") // it may have gone
	}
}

// touch records traffic in either direction as a use of the session.
func (r *attached) touch() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Touch()
}

// listen reads the client's messages and ignores those that are not text.
func (r *attached) listen(ctx context.Context) {
	for {
		m, err := r.budget.Read(ctx, r.ws, &r.full)
		if err != nil {
			return
		}
		if m.Kind != websocket.MessageText {
			m.Free()
			continue
		}
		m.Data = append(m.Data, '\n')
		size := int64(len(m.Data))
		if m.Long() {
			size = weight
			m.Keep(1, len(m.Data))
		}
		r.full.Store(true)
		err = r.unwritten.Acquire(ctx, size)
		r.full.Store(false)
		if err != nil {
			m.Free()
			return
		}
		select {
		case r.incoming <- incoming{m, size}:
		case <-ctx.Done():
			m.Free()
			return
		}
	}
}

// forget frees the messages that will not be written any more.
func (r *attached) forget() {
	for {
		select {
		case m := <-r.incoming:
			m.Free()
		default:
			return
		}
	}
}

// drain waits until the messages that a client sent before it left are written, for a short time only: the process may
// not read.
func (r *attached) drain(ctx context.Context) {
	timeoutCtx, cancel := context.WithTimeout(ctx, lastWords)
	defer cancel()
	_ = r.unwritten.Acquire(timeoutCtx, weight) // all of it is free when nothing waits
}

// watch drops a client that is gone. While the relay is full it reads no pongs, so a timeout proves nothing: then the
// kernel reports when the peer has gone, as pings are not acknowledged any more.
func (r *attached) watch(ctx context.Context, every, timeout time.Duration) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		before := r.full.Load()
		timeoutCtx, cancel := context.WithTimeout(ctx, timeout)
		err := r.ws.Ping(timeoutCtx)
		cancel()
		discards := before || r.full.Load()
		if err != nil && (!discards || !errors.Is(err, context.DeadlineExceeded)) {
			return
		}
	}
}

// write writes the client's messages to the process.
func (r *attached) write(ctx context.Context, a *process.Attachment) {
	for {
		select {
		case m := <-r.incoming:
			r.touch()
			if err := a.Write(ctx, a.Taken(), m.Data); err != nil && ctx.Err() == nil {
				r.log.Debug("cannot write standard input", "error", err)
			}
			m.Free()
			r.unwritten.Release(m.size)
		case <-ctx.Done():
			return
		}
	}
}

// read sends the standard output of the process until that has ended; at is the position reached.
func (r *attached) read(ctx context.Context, a *process.Attachment, at *[2]int64) error {
	var out lines
	emit := func(text string) error {
		r.touch()
		return r.ws.Write(ctx, websocket.MessageText, []byte(text))
	}
	for {
		next, cancel := ctx, func() {}
		if out.waits() {
			next, cancel = context.WithTimeout(ctx, idle)
		}
		c, err := a.Next(next)
		cancel()
		switch {
		case err == nil:
		case errors.Is(err, io.EOF):
			if err := out.flush(true, emit); err != nil {
				return err
			}
			*at = a.Position()
			return io.EOF
		case ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded):
			if err := out.flush(false, emit); err != nil {
				return err
			}
			*at = a.Position()
			continue
		default:
			return err
		}
		if c.Gap > 0 {
			r.log.Warn("output of a LangBot process was lost before it was read", "bytes", c.Gap, "stream", c.Stream)
		}
		if c.Stream != 0 {
			continue
		}
		if err := out.add(c.Data, emit); err != nil {
			return err
		}
		if !out.waits() {
			*at = a.Position()
		}
	}
}
