// SPDX-License-Identifier: Apache-2.0

// Package conns limits what each caller holds open, so that none of them locks out the others: connections, streams,
// memory of requests.
package conns

import (
	"bytes"
	"container/list"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/supervisor/access"
)

// Limits for one caller. Root has its own share of connections.
const (
	All     = 1024 // connections of root, and of all other callers together
	Each    = 256  // connections of each caller but root
	Unknown = 64   // connections of unidentified callers, all together
	Bytes   = 64 << 20
	Streams = 256 // WebSockets and logs

	// BodyPatience is how long a body may take to arrive, and to wait for memory.
	BodyPatience = time.Minute
)

// Limits is what one caller holds open at the moment.
type Limits struct {
	conns  int                 // guarded by Limiter.mu, as are the next two
	visits int                 // of these, connections of visitors to the caller's ports
	calls  int                 // answered on connections that do not count for the caller
	bytes  *semaphore.Weighted // of requests that are being read
	lines  *semaphore.Weighted // bytes of long lines of output, which must not block requests

	streams atomic.Int32
}

// NewLimits returns the limits of a caller that holds nothing.
func NewLimits() *Limits {
	return &Limits{bytes: semaphore.NewWeighted(Bytes), lines: semaphore.NewWeighted(Bytes)}
}

// Stream admits a stream; release must follow.
func (l *Limits) Stream() (release func(), err error) {
	release = func() { l.streams.Add(-1) }
	if l.streams.Add(1) > Streams {
		release()
		return nil, fault.Errorf(fault.Exhausted, "you have %d streams open, the limit", Streams).WithHint("close one of them")
	}
	return release, nil
}

// Reserve waits until boxd may read n more bytes for the caller, which must call release.
func (l *Limits) Reserve(ctx context.Context, n int64) (release func(), err error) {
	return reserve(ctx, l.bytes, n, "requests under way")
}

// ReserveLine is Reserve for a line of output.
func (l *Limits) ReserveLine(ctx context.Context, n int64) (release func(), err error) {
	return reserve(ctx, l.lines, n, "unfinished lines of output")
}

func reserve(ctx context.Context, of *semaphore.Weighted, n int64, what string) (release func(), err error) {
	release = func() { of.Release(n) }
	if of.TryAcquire(n) { // the usual case: no wait
		return release, nil
	}
	// A caller that has hung up is not noticed before its body is read.
	timeoutCtx, cancel := context.WithTimeout(ctx, BodyPatience)
	defer cancel()
	if err := of.Acquire(timeoutCtx, n); err != nil {
		if ctx.Err() == nil {
			err = fault.Errorf(fault.Exhausted, "your %s take %s, the limit", what, quantity.Size(Bytes).Short()).
				WithHint("wait for one of them to end")
		}
		return nil, err
	}
	return release, nil
}

// Limiter counts connections by principal, however they have come: over the Unix socket, with a token, or to a preview.
type Limiter struct {
	each, all int // connections of one caller, and of all but root together

	mu        sync.Mutex
	byName    map[string]*Limits // callers with a connection or a call, by name
	others    int                // connections of all but root
	anonymous list.List          // of *Slot, the oldest first

	leaving chan struct{} // one entry for each refused connection that is still being read

	rootFull, userFull, visitsFull, allFull *Refusal
}

// root has its own share of connections.
var root = access.OfUser(0)

// How many refused connections are still read, and for how long.
const (
	maxLeaving   = 64
	leaveTimeout = time.Second
)

// New returns a Limiter without connections. Each caller but root may have each of them, and those together all.
func New(each, all int) *Limiter {
	return &Limiter{
		each: each, all: all, byName: map[string]*Limits{}, leaving: make(chan struct{}, maxLeaving),
		rootFull: full("root has", All), userFull: full("you have", each), visitsFull: full("visitors of your ports have", each/2), allFull: full("all users together have", all),
	}
}

// Enter admits a connection of a principal known from the kernel; Leave must follow.
func (c *Limiter) Enter(name string) (*Limits, *Refusal) {
	c.mu.Lock()
	var evicted *Slot
	if name != root && c.others >= c.all && c.ofLocked(name).conns < c.each {
		evicted = c.evictAnonymousLocked() // anonymous connections go first, but not for a caller that is refused anyway
	}
	l, refused := c.enterLocked(name)
	c.mu.Unlock()
	if evicted != nil {
		evicted.close()
	}
	return l, refused
}

func (c *Limiter) enterLocked(name string) (*Limits, *Refusal) {
	l := c.ofLocked(name)
	switch {
	case l.conns >= c.capacity(name):
		return nil, c.full(name)
	case name != root && c.others >= c.all:
		return nil, c.allFull
	case name != root:
		c.others++
	}
	l.conns++
	c.byName[name] = l
	return l, nil
}

// capacity is how many connections a principal may have.
func (c *Limiter) capacity(name string) int {
	if name == root {
		return All
	}
	return c.each
}

// full is the refusal of one connection too many of a principal.
func (c *Limiter) full(name string) *Refusal {
	if name == root {
		return c.rootFull
	}
	return c.userFull
}

// ofLocked returns the limits of a principal; new ones are not stored yet.
func (c *Limiter) ofLocked(name string) *Limits {
	if l := c.byName[name]; l != nil {
		return l
	}
	return NewLimits()
}

// forgetLocked drops limits that are unused: principal names are cheap to make.
func (c *Limiter) forgetLocked(name string) {
	if l := c.byName[name]; l != nil && l.conns == 0 && l.calls == 0 {
		delete(c.byName, name)
	}
}

// Refusal is why a connection is refused, with the complete response, made in advance so that a flood of connections
// costs little.
type Refusal struct {
	Err    error
	answer []byte
}

func full(caller string, limit int) *Refusal {
	err := fault.Errorf(fault.Exhausted, "%s %d connections to boxd, the limit", caller, limit).
		WithHint("wait for one of them to end")
	p := &api.Problem{Type: api.ProblemType + err.Kind.String(), Title: "limit reached", Status: http.StatusTooManyRequests, Detail: err.Error(), Hint: err.Hint}
	data, _ := json.Marshal(p) // plain data: cannot fail
	resp := http.Response{
		StatusCode: p.Status, ProtoMajor: 1, ProtoMinor: 1, Close: true, ContentLength: int64(len(data)), Body: io.NopCloser(bytes.NewReader(data)),
		Header: http.Header{"Content-Type": {"application/problem+json"}, "Retry-After": {"1"}},
	}
	var text bytes.Buffer
	_ = resp.Write(&text) // to memory
	return &Refusal{err, text.Bytes()}
}

// None reports whether there are no connections.
func (c *Limiter) None() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.byName) == 0 && c.anonymous.Len() == 0 && len(c.leaving) == 0
}

// Leave undoes Enter.
func (c *Limiter) Leave(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.byName[name].conns--
	if name != root {
		c.others--
	}
	c.forgetLocked(name)
}

// TurnAway answers a refused connection and closes it. It does not block Accept: a goroutine lets the caller begin its
// request, as a client reads no response before, and finish sending it, or the caller would get a broken pipe instead.
// If too many connections are being read already, it does get that.
func (c *Limiter) TurnAway(conn net.Conn, r *Refusal) {
	_ = conn.SetDeadline(time.Now().Add(leaveTimeout))
	select {
	case c.leaving <- struct{}{}:
	default:
		_, _ = conn.Write(r.answer) // a new socket has buffer space for it
		conn.Close()
		return
	}
	go func() { // ends with the patience
		defer func() { <-c.leaving }()
		defer conn.Close()
		_, _ = conn.Read(make([]byte, 1))
		_ = conn.SetDeadline(time.Now().Add(leaveTimeout))
		_, _ = conn.Write(r.answer) // the caller may have gone
		if half, ok := conn.(*net.UnixConn); ok && half.CloseWrite() == nil {
			_, _ = io.Copy(io.Discard, conn)
		}
	}()
}

// Share returns the limits of a principal whose connections the kernel does not identify; release must follow.
func (c *Limiter) Share(name string) (l *Limits, release func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	l = c.ofLocked(name)
	l.calls++
	c.byName[name] = l
	return l, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		l.calls--
		c.forgetLocked(name)
	}
}

// Connections returns how many connections a principal has.
func (c *Limiter) Connections(name string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ofLocked(name).conns
}
