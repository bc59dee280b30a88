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

// Bounds of attachments.
const (
	maxReaders = 64
	bufferSize = 256 << 10
	stall      = 10 * time.Minute // after which a lossless reader that takes nothing does not count
)

// AttachOptions say what an attachment is to be.
type AttachOptions struct {
	From     *[2]int64 // the position in the output where it begins; nil: what comes from now on
	Write    bool      // it wants to be the one writer
	TakeOver bool      // and to take the place of another
	WriterID string    // and of one that has the same, as that is its own lost connection; "": of none
	Lossless bool      // the program waits for it
	Timed    bool      // it wants to know when output was written
}

// Attachment is one client of a process. Next is for one goroutine, Write and CloseWrite for another.
type Attachment struct {
	p        *Process
	lossless bool
	id       string      // AttachOptions.WriterID
	log      *output.Log // nil: the process has never run
	reader   *output.Reader
	buf      []byte
	lost     chan struct{} // closed when another writes instead
	gone     chan struct{} // closed by Close

	// Guarded by p.mu.
	at     [2]int64  // where the reader is
	taken  [2]int64  // where its client has asked for more
	busy   time.Time // since when it has not; zero while it waits for output
	writes bool
	again  bool // the writer instead is its own client
}

// Attach attaches a client, once the program has been started.
func (p *Process) Attach(ctx context.Context, o AttachOptions) (*Attachment, error) {
	if err := p.Attachable(); err != nil {
		return nil, err
	}
	select {
	case <-p.up:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	a := &Attachment{p: p, lossless: o.Lossless, id: o.WriterID, lost: make(chan struct{}), gone: make(chan struct{})}
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

// takeTurn waits until what the writer before has written is counted, since a new one begins behind it: bytes that are
// counted later would be taken for the new writer's own, and passed over.
func (a *Attachment) takeTurn(ctx context.Context) error {
	if !a.Writer() {
		return nil
	}
	select {
	case a.p.typing <- struct{}{}:
		<-a.p.typing
		return nil
	case <-a.lost: // another one is the writer already
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// nowPatience is how long PID 1 may take to let a program wait for a reader that begins now.
const nowPatience = 5 * time.Second

// beginNow moves the beginning of a lossless attachment to where the output is once the program waits for it. Until then
// the program may have written more than is kept, which would be a gap.
func (a *Attachment) beginNow(ctx context.Context, o *AttachOptions) {
	p := a.p
	p.mu.Lock()
	running := p.running()
	p.mu.Unlock()
	if !running {
		return
	}
	within, cancel := context.WithTimeout(ctx, nowPatience)
	defer cancel()
	if p.hooks.Box.Sync(within) != nil {
		return // what gap there is, the client is told
	}
	end, err := a.log.End()
	if err != nil {
		return
	}
	p.mu.Lock()
	a.at, a.taken = end, end
	p.mu.Unlock()
	a.reader = a.log.NewReader(end, o.Timed)
	p.pace(true)
}

// begin sets where the attachment begins.
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
	a.taken = a.at
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

// Close ends the attachment. The process goes on. Nobody may be in Next.
func (a *Attachment) Close() {
	p := a.p
	p.mu.Lock()
	if _, there := p.all[a]; !there {
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
	close(a.gone)
	if a.lossless {
		p.pace(true)
	}
	p.wake()
	if a.log != nil {
		p.leave()
	}
}

// Position is where the next chunk begins.
func (a *Attachment) Position() [2]int64 {
	a.p.mu.Lock()
	defer a.p.mu.Unlock()
	return a.at
}

// Next returns the next chunk, once there is one; its data is good until the call after that. io.EOF means
// that the process has ended and all of its output has been read.
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
		changed, over := a.log.Changed(), false
		select {
		case <-a.p.done:
			over = true // what there is now is all
		default:
		}
		c, err := a.reader.Next(a.buf)
		switch {
		case err != nil:
			return c, err
		case c.Len() > 0:
			a.mark(time.Now())
			return c, nil
		case over:
			return c, io.EOF
		}
		select {
		case <-changed:
		case <-a.p.done:
		case <-a.gone:
			return c, os.ErrClosed
		case <-ctx.Done():
			return c, ctx.Err()
		}
	}
}

// mark notes how far the attachment has come. While its client has something to do, since is when it got
// that.
func (a *Attachment) mark(since time.Time) {
	a.p.mu.Lock()
	if since.IsZero() {
		a.taken = a.at
	}
	a.at, a.busy = a.reader.Position(), since
	a.p.mu.Unlock()
	if a.lossless && since.IsZero() {
		a.p.pace(false)
	}
}
