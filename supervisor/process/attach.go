// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/output"
)

// Limits of attachments.
const (
	maxReaders = 64
	bufferSize = 256 << 10
	stall      = 10 * time.Minute // after which a lossless reader that reads nothing is ignored
)

// AttachOptions are the options of an attachment.
type AttachOptions struct {
	From     *[2]int64 // the output position to start from; nil: the present end
	Write    bool      // wants to be the writer, of which there is one
	TakeOver bool      // and to replace another writer
	WriterID string    // and to replace one with the same id: its own lost connection; "": none
	Lossless bool      // the program blocks until its output is read
	Timed    bool      // chunks have the time when they were written
}

// Attachment is one client of a process. Next may be called by one goroutine, and Write and CloseWrite by another.
type Attachment struct {
	p        *Process
	lossless bool
	id       string      // AttachOptions.WriterID
	log      *output.Log // nil: the process has never run
	reader   *output.Reader
	buf      []byte
	lost     chan struct{} // closed when another client has become the writer
	closed   chan struct{} // closed by Close

	// Guarded by p.mu.
	at     [2]int64  // position of the reader
	acked  [2]int64  // position at which its client has asked for more
	busy   time.Time // since when the client has had a chunk; zero while it waits for output
	writes bool
	again  bool // the new writer is the same client
}

// Attach attaches a client, once the program has started.
func (p *Process) Attach(ctx context.Context, o AttachOptions) (*Attachment, error) {
	if err := p.Attachable(); err != nil {
		return nil, err
	}
	select {
	case <-p.up:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	a := &Attachment{p: p, lossless: o.Lossless, id: o.WriterID, lost: make(chan struct{}), closed: make(chan struct{})}
	if a.log = p.use(); a.log != nil {
		end, err := a.log.End()
		if err == nil {
			err = a.begin(&o, end)
		}
		if err != nil {
			p.leave()
			return nil, err
		}
	}
	if err := p.enter(a, &o); err != nil {
		if a.log != nil {
			p.leave()
		}
		return nil, err
	}
	if err := a.takeTurn(ctx); err != nil {
		a.Close()
		return nil, err
	}
	p.wake()
	if a.lossless {
		p.pace(true)
		if o.From == nil && a.log != nil {
			a.beginNow(ctx, &o)
		}
	}
	return a, nil
}

// takeTurn waits until the previous writer's bytes are counted, since the new writer starts after them: bytes counted later
// would be taken for the new writer's own, and skipped.
func (a *Attachment) takeTurn(ctx context.Context) error {
	if !a.Writer() {
		return nil
	}
	select {
	case a.p.typing <- struct{}{}:
		<-a.p.typing
		return nil
	case <-a.lost: // there is a new writer already
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// nowTimeout is how long PID 1 may take to make a program block for a reader that starts now.
const nowTimeout = 5 * time.Second

// beginNow moves the start of a lossless attachment to the end of the output as of when the program blocks for it. Until then
// the program may have written more than is kept, which would be a gap.
func (a *Attachment) beginNow(ctx context.Context, o *AttachOptions) {
	p := a.p
	p.mu.Lock()
	running := p.running()
	p.mu.Unlock()
	if !running {
		return
	}
	timeoutCtx, cancel := context.WithTimeout(ctx, nowTimeout)
	defer cancel()
	if p.hooks.Box.Sync(timeoutCtx) != nil {
		return // the client is told of any gap
	}
	end, err := a.log.End()
	if err != nil {
		return
	}
	p.mu.Lock()
	a.at, a.acked = end, end
	p.mu.Unlock()
	a.reader = a.log.NewReader(end, o.Timed)
	p.pace(true)
}

// begin sets the position where the attachment starts.
func (a *Attachment) begin(o *AttachOptions, end [2]int64) error {
	a.at = end
	if o.From != nil {
		for i, name := range []string{"stdout", "stderr"} {
			if n := o.From[i]; n < 0 || n > end[i] {
				return fault.Field(name, n, fmt.Sprintf("0 to %d, the bytes written so far", end[i]))
			}
		}
		a.at = *o.From
	}
	a.acked = a.at
	a.reader, a.buf = a.log.NewReader(a.at, o.Timed), make([]byte, bufferSize)
	return nil
}

func (p *Process) enter(a *Attachment, o *AttachOptions) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.all) >= maxReaders {
		return fault.Errorf(fault.Exhausted, "process %s has %d clients, its limit", fault.Show(p.spec.ID), maxReaders).
			WithHint("detach one of them")
	}
	if o.Write && p.spec.Command.Stdin == isolation.StdinPipe && (p.writer == nil || o.TakeOver || o.WriterID != "" && o.WriterID == p.writer.id) {
		if p.writer != nil {
			p.writer.writes, p.writer.again = false, o.WriterID != "" && o.WriterID == p.writer.id
			close(p.writer.lost)
			p.cutLocked()
		}
		p.writer, a.writes = a, true
	}
	p.all[a] = struct{}{}
	p.seen = true
	return nil
}

// Close ends the attachment. The process continues. No call of Next may be under way.
func (a *Attachment) Close() {
	p := a.p
	p.mu.Lock()
	if _, exists := p.all[a]; !exists {
		p.mu.Unlock()
		return
	}
	delete(p.all, a)
	if p.writer == a {
		p.writer, a.writes = nil, false
		p.cutLocked()
	}
	p.used = time.Now()
	p.mu.Unlock()
	close(a.closed)
	if a.lossless {
		p.pace(true)
	}
	p.wake()
	if a.log != nil {
		p.leave()
	}
}

// Position is the position of the next chunk.
func (a *Attachment) Position() [2]int64 {
	a.p.mu.Lock()
	defer a.p.mu.Unlock()
	return a.at
}

// Next waits for the next chunk and returns it; its data is valid until the next call. io.EOF means that the process has ended
// and all of its output has been read.
func (a *Attachment) Next(ctx context.Context) (output.Chunk, error) {
	if a.log == nil {
		select {
		case <-a.p.done:
			return output.Chunk{}, io.EOF
		case <-ctx.Done():
			return output.Chunk{}, ctx.Err()
		}
	}
	a.mark(time.Time{})
	for {
		changed, ended := a.log.Changed(), false
		select {
		case <-a.p.done:
			ended = true // there will be no more output
		default:
		}
		c, err := a.reader.Next(a.buf)
		switch {
		case err != nil:
			return c, err
		case c.Len() > 0:
			a.mark(time.Now())
			return c, nil
		case ended:
			return c, io.EOF
		}
		select {
		case <-changed:
		case <-a.p.done:
		case <-a.closed:
			return c, os.ErrClosed
		case <-ctx.Done():
			return c, ctx.Err()
		}
	}
}

// mark records the position of the attachment. While its client handles a chunk, since is when it got that.
func (a *Attachment) mark(since time.Time) {
	a.p.mu.Lock()
	if since.IsZero() {
		a.acked = a.at
	}
	a.at, a.busy = a.reader.Position(), since
	a.p.mu.Unlock()
	if a.lossless && since.IsZero() {
		a.p.pace(false)
	}
}
