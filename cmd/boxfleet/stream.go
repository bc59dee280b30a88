// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// stream is a connection. CloseWrite ends what is sent and leaves the other direction open.
type stream struct {
	e     *endpoint
	id    string
	to    string // the subject of the other end
	reply string // that of this end

	mu   sync.Mutex
	wake sync.Cond // on any change, or at a deadline
	done chan struct{}

	// What is sent. out are the bytes that the other end has not acknowledged, from the offset base on.
	out     []byte
	base    uint64
	window  uint64    // the offset up to which the other end has room
	moved   time.Time // when base has changed, or all of it was sent again
	ended   bool      // nothing will be added; the end counts as a byte
	endSeen bool      // and is acknowledged
	opening bool      // the other end has said nothing yet

	// What is received. in are the bytes that nobody has read, up to the offset next.
	in        []byte
	next      uint64
	sentLimit uint64 // the limit that the other end knows
	owed      time.Time
	atEnd     bool // the other end has ended
	refused   bool // the other end does not read any more

	sent, received  time.Time
	closed          bool
	err             error
	readBy, writeBy deadline
}

type deadline struct {
	at    time.Time
	timer *time.Timer
}

func newStream(e *endpoint, id, to string) *stream {
	now := time.Now()
	c := &stream{e: e, id: id, to: to, reply: e.cfg.Subject + ".s." + id, done: make(chan struct{}), window: streamWindow, sentLimit: streamWindow, sent: now, received: now, moved: now}
	c.wake.L = &c.mu
	return c
}

// Gone is closed when the other end has closed the connection, or it is over.
func (c *stream) Gone() <-chan struct{} { return c.done }

func (c *stream) goneLocked() {
	select {
	case <-c.done:
	default:
		close(c.done)
	}
}

// Read reads what the other end has written.
func (c *stream) Read(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		switch {
		case c.closed:
			return 0, net.ErrClosed
		case len(c.in) > 0 && len(p) > 0:
			n := copy(p, c.in)
			if c.in = c.in[n:]; len(c.in) == 0 {
				c.in = nil
			}
			if c.limitLocked()-c.sentLimit >= streamWindow/2 {
				c.sendLocked(&frame{})
			}
			return n, nil
		case c.atEnd:
			return 0, io.EOF
		case c.err != nil:
			return 0, c.err
		case len(p) == 0:
			return 0, nil
		case c.readBy.passed():
			return 0, os.ErrDeadlineExceeded
		}
		c.wake.Wait()
	}
}

// Write returns when what it has is sent, as far as the other end has room.
func (c *stream) Write(p []byte) (n int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		switch {
		case c.closed || c.ended:
			return n, net.ErrClosed
		case c.err != nil:
			return n, c.err
		case c.refused:
			return n, &resetError{"it is closed there"}
		case len(p) == 0:
			return n, nil
		}
		at := c.base + uint64(len(c.out))
		if size := min(len(p), maxFrame, int(c.window-min(at, c.window)), streamWindow-len(c.out)); size > 0 {
			c.out = append(c.out, p[:size]...)
			c.sendLocked(&frame{offset: at, bytes: p[:size]})
			p, n = p[size:], n+size
			continue
		}
		if c.writeBy.passed() {
			return n, os.ErrDeadlineExceeded
		}
		c.wake.Wait()
	}
}

// CloseWrite tells the other end that nothing follows.
func (c *stream) CloseWrite() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.endLocked(0)
	return c.err
}

func (c *stream) endLocked(flags byte) {
	if c.ended || c.err != nil {
		return
	}
	c.ended, c.moved = true, time.Now()
	c.sendLocked(&frame{flags: flagEnd | flags, offset: c.base + uint64(len(c.out))})
}

// Close gives the connection up. What was written still arrives, if the other end reads it.
func (c *stream) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return net.ErrClosed
	}
	c.closed, c.in = true, nil
	c.readBy.stop()
	c.writeBy.stop()
	if c.ended {
		c.sendLocked(&frame{flags: flagClosed, offset: c.base})
	}
	c.endLocked(flagClosed)
	done := c.err != nil || c.endSeen
	c.wake.Broadcast()
	c.mu.Unlock()
	if done {
		c.e.forget(c)
	}
	return nil
}

// Reset gives the connection up for a reason, which the other end hears.
func (c *stream) Reset(why string) { c.fail(&resetError{why}, true) }

// limitLocked is the offset up to which there is room for what the other end sends.
func (c *stream) limitLocked() uint64 { return c.next - uint64(len(c.in)) + streamWindow }

// sendLocked sends a frame, with what this end has to say of the other direction.
func (c *stream) sendLocked(f *frame) {
	if c.err != nil {
		return
	}
	if c.opening {
		f.flags |= flagOpen
	}
	if c.closed {
		f.flags |= flagClosed
	}
	f.acked, f.limit = c.next, c.limitLocked()
	c.sentLimit, c.owed, c.sent = f.limit, time.Time{}, time.Now()
	// What is lost is sent again, and what cannot be sent for long is the end of the connection.
	_ = c.e.cfg.Conn.PublishMsg(&nats.Msg{Subject: c.to, Reply: c.reply, Data: f.encode()})
}

// againLocked sends again what is not acknowledged.
func (c *stream) againLocked(now time.Time) {
	c.moved = now
	for at := 0; at < len(c.out); at += maxFrame {
		c.sendLocked(&frame{offset: c.base + uint64(at), bytes: c.out[at:min(at+maxFrame, len(c.out))]})
	}
	if c.ended && !c.endSeen {
		c.sendLocked(&frame{flags: flagEnd, offset: c.base + uint64(len(c.out))})
	}
	if c.opening && len(c.out) == 0 {
		c.sendLocked(&frame{})
	}
}

// take looks at a frame of the other end.
func (c *stream) take(f *frame) {
	if f.flags&flagReset != 0 {
		c.fail(&resetError{string(f.bytes)}, false)
		return
	}
	c.mu.Lock()
	c.received, c.opening = time.Now(), false
	ok := c.acknowledgedLocked(f) && c.arrivedLocked(f)
	if f.flags&flagClosed != 0 {
		c.refused = true
		c.goneLocked()
	}
	done := c.closed && c.endSeen
	c.wake.Broadcast()
	c.mu.Unlock()
	switch {
	case !ok:
		c.fail(errWindow, true)
	case done:
		c.e.forget(c)
	}
}

// acknowledgedLocked notes how far the other end has come with what this one has sent.
func (c *stream) acknowledgedLocked(f *frame) bool {
	end := c.base + uint64(len(c.out))
	if c.ended {
		end++
	}
	if f.acked > end {
		return false
	}
	c.window = max(c.window, f.limit)
	if f.acked > c.base {
		done := min(f.acked-c.base, uint64(len(c.out)))
		c.out = c.out[done:]
		c.base += done
		c.moved = c.received
		if len(c.out) == 0 {
			c.out = nil
		}
	}
	if c.ended && f.acked == end {
		c.endSeen = true
	}
	if f.flags&flagAgain != 0 && f.acked <= c.base && c.received.Sub(c.moved) > ackDelay {
		c.againLocked(c.received)
	}
	return true
}

// arrivedLocked takes the bytes of a frame.
func (c *stream) arrivedLocked(f *frame) bool {
	last := f.flags&flagEnd != 0
	if len(f.bytes) == 0 && !last {
		return true
	}
	if c.owed.IsZero() {
		c.owed = c.received
	}
	switch {
	case c.atEnd, f.offset+uint64(len(f.bytes)) < c.next: // all of it has been here before
		return true
	case f.offset > c.next:
		c.sendLocked(&frame{flags: flagAgain, offset: c.base + uint64(len(c.out))})
		return true
	}
	fresh := f.bytes[c.next-f.offset:]
	if c.next+uint64(len(fresh)) > c.limitLocked() {
		return false
	}
	c.next += uint64(len(fresh))
	if !c.closed {
		c.in = append(c.in, fresh...)
	}
	if last {
		c.atEnd = true
		c.next++
	}
	return true
}

// noResponder is what the server says of a frame that went to nobody. The other end of a connection that was open may come back.
func (c *stream) noResponder() {
	c.mu.Lock()
	opening := c.opening
	c.mu.Unlock()
	if opening {
		c.fail(errNoResponder, false)
	}
}

// fail ends the connection.
func (c *stream) fail(err error, notify bool) {
	c.mu.Lock()
	if c.err == nil {
		if notify {
			why := err.Error()
			if r, ok := errors.AsType[*resetError](err); ok {
				why = r.Reason
			}
			c.sendLocked(&frame{flags: flagReset, bytes: []byte(why[:min(len(why), maxFrame)])})
		}
		c.err = err
	}
	c.goneLocked()
	c.wake.Broadcast()
	c.mu.Unlock()
	c.e.forget(c)
}

// tick does what is due.
func (c *stream) tick(now time.Time) {
	c.mu.Lock()
	silent := now.Sub(c.received) > streamTimeout
	switch waits := len(c.out) > 0 || c.ended && !c.endSeen || c.opening; {
	case silent || c.err != nil:
	case waits && now.Sub(c.moved) > streamResend:
		c.againLocked(now)
	case !c.owed.IsZero(), now.Sub(c.sent) > streamPing:
		c.sendLocked(&frame{offset: c.base + uint64(len(c.out))})
	}
	c.mu.Unlock()
	if silent {
		c.fail(errSilent, true)
	}
}

// LocalAddr is the subject of this end.
func (c *stream) LocalAddr() net.Addr { return natsAddr(c.reply) }

// RemoteAddr is the subject of the other end.
func (c *stream) RemoteAddr() net.Addr { return natsAddr(c.to) }

// SetDeadline bounds reads and writes.
func (c *stream) SetDeadline(at time.Time) error {
	return errors.Join(c.SetReadDeadline(at), c.SetWriteDeadline(at))
}

// SetReadDeadline bounds reads.
func (c *stream) SetReadDeadline(at time.Time) error { return c.set(&c.readBy, at) }

// SetWriteDeadline bounds writes.
func (c *stream) SetWriteDeadline(at time.Time) error { return c.set(&c.writeBy, at) }

func (c *stream) set(d *deadline, at time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return net.ErrClosed
	}
	d.stop()
	d.at = at
	if !at.IsZero() {
		d.timer = time.AfterFunc(time.Until(at), func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.wake.Broadcast()
		})
	}
	c.wake.Broadcast()
	return nil
}

func (d *deadline) passed() bool { return !d.at.IsZero() && !time.Now().Before(d.at) }

func (d *deadline) stop() {
	if d.timer != nil {
		d.timer.Stop()
	}
}

// natsAddr is where an end is.
type natsAddr string

// Network is NATS.
func (natsAddr) Network() string { return "nats" }

func (s natsAddr) String() string { return string(s) }
