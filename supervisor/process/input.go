// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation/client"
)

// Writer reports whether the attachment is the one that writes to the program.
func (a *Attachment) Writer() bool {
	a.p.mu.Lock()
	defer a.p.mu.Unlock()
	return a.writes
}

// Lost is closed when another client has become the writer.
func (a *Attachment) Lost() <-chan struct{} { return a.lost }

// Again reports whether the new writer is the same client, which has lost this connection.
func (a *Attachment) Again() bool {
	a.p.mu.Lock()
	defer a.p.mu.Unlock()
	return a.again
}

// Taken is how many bytes of standard input the process has taken in all.
func (a *Attachment) Taken() int64 {
	a.p.mu.Lock()
	defer a.p.mu.Unlock()
	return a.p.given
}

// Resume says how many bytes the client has sent so far, to any boxd. If the program no longer reads, an earlier boxd may have
// dropped some, which only the client knows.
func (a *Attachment) Resume(sent int64) {
	p := a.p
	p.mu.Lock()
	now := p.now
	p.mu.Unlock()
	if in := now.Input(); !hasEnded(now) && in != nil && !in.Deaf() {
		return
	}
	p.mu.Lock()
	p.at.Input += max(sent-p.given, 0)
	p.given = max(sent, p.given)
	p.mu.Unlock()
}

// Write writes to the program's standard input, and blocks while that does not read. offset is how many bytes the client has
// written to the process before: bytes it already has are skipped. What a program no longer reads is dropped and counts as
// taken; between two programs, Write waits for the next.
func (a *Attachment) Write(ctx context.Context, offset int64, b []byte) error {
	p := a.p
	if !a.Writer() {
		return a.p.notWriter()
	}
	select {
	case p.typing <- struct{}{}:
		defer func() { <-p.typing }()
	case <-a.lost:
		return p.notWriter()
	case <-a.closed:
		return p.notWriter()
	case <-ctx.Done():
		return ctx.Err()
	}
	given := a.Taken()
	if offset < 0 || offset > given {
		return fault.Field("offset", offset, fmt.Sprintf("0 to %d, the input received so far", given))
	}
	for b = b[min(given-offset, int64(len(b))):]; len(b) > 0; {
		n, err := p.give(ctx, a, b)
		if err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// give writes to the program that runs, or waits for the next.
func (p *Process) give(ctx context.Context, a *Attachment, b []byte) (n int, err error) {
	now, changed, err := p.reading(a)
	if err != nil {
		return 0, err
	}
	if changed != nil {
		select {
		case <-changed:
			return 0, nil
		case <-a.lost:
			return 0, p.notWriter()
		case <-a.closed:
			return 0, p.notWriter()
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
	writeCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	p.mu.Lock()
	p.cancelWrite = cancel
	writes := a.writes
	p.mu.Unlock()
	if !writes {
		return 0, p.notWriter()
	}
	err = unix.EPIPE
	if in := now.Input(); in != nil && !hasEnded(now) {
		n, err = in.Write(writeCtx, b)
	}
	dropped := 0
	if err != nil && (hasEnded(now) || errors.Is(err, unix.EPIPE) || errors.Is(err, client.ErrInputClosed)) {
		dropped, err = len(b)-n, nil
	}
	p.mu.Lock()
	p.given += int64(n + dropped)
	p.at.Input += int64(dropped) // an adopting boxd adds to it only what the program has taken
	p.mu.Unlock()
	switch {
	case err == nil:
		return n + dropped, nil
	case !a.Writer():
		return n, p.notWriter()
	case ctx.Err() != nil:
		return n, ctx.Err()
	}
	return n, fmt.Errorf("process %q: %w", p.spec.ID, err)
}

// reading returns the program that reads what a writer writes, or what to wait for while there is none.
func (p *Process) reading(a *Attachment) (now *client.Program, changed <-chan struct{}, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !a.writes {
		return nil, nil, p.notWriter()
	}
	if p.state == StateStarting || p.state == StateWaiting {
		return nil, p.changed, nil
	}
	return p.now, nil, nil
}

// hasEnded reports whether a program has ended.
func hasEnded(p *client.Program) bool {
	select {
	case <-p.Exited():
		return true
	default:
		return false
	}
}

// cutLocked cancels the Write that is under way.
func (p *Process) cutLocked() {
	if p.cancelWrite != nil {
		p.cancelWrite()
	}
}

func (p *Process) notWriter() error {
	return fault.Errorf(fault.Conflict, "cannot write to process %s: another client does, or it has no stdin", fault.Show(p.spec.ID)).
		WithHint("attach with take_over to write in its place")
}

// CloseWrite closes the program's standard input. With a terminal it does nothing.
func (a *Attachment) CloseWrite() error {
	p := a.p
	p.mu.Lock()
	now, state, writes := p.now, p.state, a.writes
	p.mu.Unlock()
	switch {
	case !writes:
		return p.notWriter()
	case state != StateRunning && state != StateStopping, now.Input() == nil:
		return nil
	}
	return p.orNotRunning(now.Input().CloseWrite())
}
