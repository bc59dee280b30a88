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

	"github.com/boxd-dev/boxd/supervisor/process"
)

// Times of a relay.
const (
	pingEvery    = 30 * time.Second
	pongPatience = 15 * time.Second
	idle         = 200 * time.Millisecond // after which what has no end of line goes out too
	lastWords    = time.Second
)

// What waits for the relay before this one to end, or for a process that does not read.
const (
	waiting = 64        // messages
	weight  = 256 << 10 // bytes of short ones; a long one is alone
)

// attached is one client of one process.
type attached struct {
	*Relay
	ws       *websocket.Conn
	log      *slog.Logger
	mu       sync.Mutex // of the use of the session
	room     *MessageBudget
	incoming chan incoming
	held     *semaphore.Weighted // by what was said
	full     atomic.Bool         // nothing is read, as there is no room for it
}

// incoming is what a client has said.
type incoming struct {
	*Message
	size int64 // of what it holds of the relay
}

// AttachConfig is what a relay needs.
type AttachConfig struct {
	Started time.Time      // when this boxd has
	Room    *MessageBudget // for what the clients of the Workspace say
	Log     *slog.Logger
}

// serveAttach relays until the process has ended, the client has gone, or ctx ends. The process goes on when the client goes.
func serveAttach(ctx context.Context, ws *websocket.Conn, to *Relay, cfg AttachConfig) {
	ctx, hangUp := context.WithCancel(ctx)
	r := &attached{Relay: to, ws: ws, log: cfg.Log, room: cfg.Room, incoming: make(chan incoming, waiting), held: semaphore.NewWeighted(weight)}
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
		r.watch(ctx, pingEvery, pongPatience)
	})
	from, err := to.Sit(ctx, cfg.Started)
	if err != nil {
		return
	}
	var at [2]int64
	if from != nil {
		at = *from
	}
	var writing sync.WaitGroup
	defer func() { // what this client has said is counted before the next one's is
		hangUp()
		writing.Wait()
		to.Leave(at)
	}()
	a, err := to.Process.Attach(ctx, process.AttachOptions{From: from, Write: true, TakeOver: true, Lossless: true})
	if err != nil {
		_ = ws.Close(websocket.StatusInternalError, "managed process stdio unavailable") // it may have gone
		return
	}
	at = a.Position()
	writing.Go(func() { r.write(ctx, a) }) // ends with ctx
	err = r.read(ctx, a, &at)
	a.Close()
	if errors.Is(err, io.EOF) {
		_ = ws.Close(websocket.StatusNormalClosure, "") // it may have gone
	}
}

// touch notes traffic, either way.
func (r *attached) touch() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Touch()
}

// listen takes what the client says. What is not text is passed over.
func (r *attached) listen(ctx context.Context) {
	for {
		m, err := r.room.Read(ctx, r.ws, &r.full)
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
		err = r.held.Acquire(ctx, size)
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

// forget gives back the room of what nobody writes any more.
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

// drain waits until what a client has said before it went is written. Nobody waits long for a process that does not
// read.
func (r *attached) drain(ctx context.Context) {
	late, cancel := context.WithTimeout(ctx, lastWords)
	defer cancel()
	_ = r.held.Acquire(late, weight) // it has all of it when nothing waits
}

// watch drops a client that is not there any more. One whose pongs are not read cannot show that it is: of it the
// kernel says when it has gone, as pings are not received any more.
func (r *attached) watch(ctx context.Context, every, patience time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		before := r.full.Load()
		late, cancel := context.WithTimeout(ctx, patience)
		err := r.ws.Ping(late)
		cancel()
		deaf := before || r.full.Load()
		if err != nil && (!deaf || !errors.Is(err, context.DeadlineExceeded)) {
			return
		}
	}
}

// write gives the process what the client has said.
func (r *attached) write(ctx context.Context, a *process.Attachment) {
	for {
		select {
		case m := <-r.incoming:
			r.touch()
			if err := a.Write(ctx, a.Taken(), m.Data); err != nil && ctx.Err() == nil {
				r.log.Debug("cannot write standard input", "error", err)
			}
			m.Free()
			r.held.Release(m.size)
		case <-ctx.Done():
			return
		}
	}
}

// read sends what the process writes to standard output, until it has ended; at is how far that has come.
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
