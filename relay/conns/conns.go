// SPDX-License-Identifier: Apache-2.0

// Package conns bounds what each caller holds open, so that nobody keeps the others out: connections, streams, memory
// of requests.
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

// Bounds for one caller. Root has its own share of connections.
const (
	All     = 1024 // connections of root, and of all others together
	Each    = 256  // connections of each of the others
	Unknown = 64   // of all together of whom nobody knows whose they are
	Bytes   = 64 << 20
	Streams = 256 // WebSockets and logs

	// BodyPatience is how long a body may take to arrive, and to wait for its room.
	BodyPatience = time.Minute
)

// Limits is what one caller makes boxd hold at the moment.
type Limits struct {
	conns  int                 // guarded by Limiter.mu, as are the next two
	visits int                 // of these, those of visitors of ports
	calls  int                 // that are answered on connections that are not counted for the caller
	bytes  *semaphore.Weighted // of requests that are being read
	lines  *semaphore.Weighted // bytes of long lines of output: what a box writes is in the way of no request

	streams atomic.Int32
}

// NewLimits returns the load of a caller who has none.
func NewLimits() *Limits {
	return &Limits{bytes: semaphore.NewWeighted(Bytes), lines: semaphore.NewWeighted(Bytes)}
}

// Stream admits a stream; leave must follow.
func (l *Limits) Stream() (leave func(), err error) {
	leave = func() { l.streams.Add(-1) }
	if l.streams.Add(1) > Streams {
		leave()
		return nil, fault.Errorf(fault.Exhausted, "you have %d streams open, the limit", Streams).WithHint("close one of them")
	}
	return leave, nil
}

// Reserve waits until the user may have boxd read n bytes more. The caller must release them.
func (l *Limits) Reserve(ctx context.Context, n int64) (release func(), err error) {
	return reserve(ctx, l.bytes, n, "requests under way")
}

// ReserveLine does the same for a line of output.
func (l *Limits) ReserveLine(ctx context.Context, n int64) (release func(), err error) {
	return reserve(ctx, l.lines, n, "unfinished lines of output")
}

func reserve(ctx context.Context, of *semaphore.Weighted, n int64, what string) (release func(), err error) {
	release = func() { of.Release(n) }
	if of.TryAcquire(n) { // as almost always: nobody waits
		return release, nil
	}
	// A caller that has hung up is not noticed before its body is read.
	late, cancel := context.WithTimeout(ctx, BodyPatience)
	defer cancel()
	if err := of.Acquire(late, n); err != nil {
		if ctx.Err() == nil {
			err = fault.Errorf(fault.Exhausted, "your %s take %s, the limit", what, quantity.Size(Bytes).Short()).
				WithHint("wait for one of them to end")
		}
		return nil, err
	}
	return release, nil
}

// Limiter counts connections by the principals they are of, whichever way they have come: over the Unix socket, by a token,
// to a preview.
type Limiter struct {
	each, all int // connections of one of them, and of all but root together

	mu        sync.Mutex
	people    map[string]*Limits // of those who have a connection or a call, by their names
	others    int                // connections of all but root
	anonymous list.List          // of *Slot, those first that have been there for longest

	leaving chan struct{} // holds a word for each connection that is turned away and still listened to

	rootFull, userFull, visitsFull, allFull *Refusal
}

// root has connections of its own.
var root = access.OfUser(0)

// How many connections that are turned away are listened to, and for how long.
const (
	maxLeaving    = 64
	leavePatience = time.Second
)

// New returns a count of none. Each caller but root may have that many connections, and so many all together.
func New(each, all int) *Limiter {
	return &Limiter{
		each: each, all: all, people: map[string]*Limits{}, leaving: make(chan struct{}, maxLeaving),
		rootFull: full("root has", All), userFull: full("you have", each), visitsFull: full("visitors of your ports have", each/2), allFull: full("all users together have", all),
	}
}

// Enter admits a connection of a principal whom the kernel knows; Leave must follow.
func (c *Limiter) Enter(name string) (*Limits, *Refusal) {
	c.mu.Lock()
	var evicted *Slot
	if name != root && c.others >= c.all && c.ofLocked(name).conns < c.each {
		evicted = c.evictAnonymousLocked() // who are the first to go, but not for somebody who is refused all the same
	}
	l, refused := c.enterLocked(name)
	c.mu.Unlock()
	if evicted != nil {
		evicted.end()
	}
	return l, refused
}

func (c *Limiter) enterLocked(name string) (*Limits, *Refusal) {
	l := c.ofLocked(name)
	switch {
	case l.conns >= c.most(name):
		return nil, c.full(name)
	case name != root && c.others >= c.all:
		return nil, c.allFull
	case name != root:
		c.others++
	}
	l.conns++
	c.people[name] = l
	return l, nil
}

// most is how many connections a principal may have.
func (c *Limiter) most(name string) int {
	if name == root {
		return All
	}
	return c.each
}

// full refuses a principal one connection more than that.
func (c *Limiter) full(name string) *Refusal {
	if name == root {
		return c.rootFull
	}
	return c.userFull
}

// ofLocked is the load of a principal, which is not kept yet if it is new.
func (c *Limiter) ofLocked(name string) *Limits {
	if l := c.people[name]; l != nil {
		return l
	}
	return NewLimits()
}

// forgetLocked lets go of a load that is none any more: ids are cheap to come by.
func (c *Limiter) forgetLocked(name string) {
	if l := c.people[name]; l != nil && l.conns == 0 && l.calls == 0 {
		delete(c.people, name)
	}
}

// Refusal is why somebody may not have a connection, and the whole answer that says so: whoever makes a flood of
// them makes little work.
type Refusal struct {
	Err    error
	answer []byte
}

func full(who string, limit int) *Refusal {
	err := fault.Errorf(fault.Exhausted, "%s %d connections to boxd, the limit", who, limit).
		WithHint("wait for one of them to end")
	p := &api.Problem{Type: api.ProblemType + err.Kind.String(), Title: "limit reached", Status: http.StatusTooManyRequests, Detail: err.Error(), Hint: err.Hint}
	data, _ := json.Marshal(p) // plain data: cannot fail
	resp := http.Response{
		StatusCode: p.Status, ProtoMajor: 1, ProtoMinor: 1, Close: true, ContentLength: int64(len(data)), Body: io.NopCloser(bytes.NewReader(data)),
		Header: http.Header{"Content-Type": {"application/problem+json"}, "Retry-After": {"1"}},
	}
	var text bytes.Buffer
	_ = resp.Write(&text) // into memory
	return &Refusal{err, text.Bytes()}
}

// None reports whether there is no connection.
func (c *Limiter) None() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.people) == 0 && c.anonymous.Len() == 0 && len(c.leaving) == 0
}

// Leave ends what Enter began.
func (c *Limiter) Leave(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.people[name].conns--
	if name != root {
		c.others--
	}
	c.forgetLocked(name)
}

// TurnAway answers a connection that its caller may not have, and ends it. It keeps Accept waiting for
// nobody: in the background it lets the caller begin with a request, as a client takes no answer before,
// and have its say, or it would hear of a broken pipe instead. If too many are being heard, it does.
func (c *Limiter) TurnAway(conn net.Conn, r *Refusal) {
	_ = conn.SetDeadline(time.Now().Add(leavePatience))
	select {
	case c.leaving <- struct{}{}:
	default:
		_, _ = conn.Write(r.answer) // a new socket has room for it
		conn.Close()
		return
	}
	go func() { // ends with the patience
		defer func() { <-c.leaving }()
		defer conn.Close()
		_, _ = conn.Read(make([]byte, 1))
		_ = conn.SetDeadline(time.Now().Add(leavePatience))
		_, _ = conn.Write(r.answer) // a caller that has hung up needs no answer
		if half, ok := conn.(*net.UnixConn); ok && half.CloseWrite() == nil {
			_, _ = io.Copy(io.Discard, conn)
		}
	}()
}

// Share returns the load of a principal whose connections the kernel does not know; leave must follow.
func (c *Limiter) Share(name string) (l *Limits, leave func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	l = c.ofLocked(name)
	l.calls++
	c.people[name] = l
	return l, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		l.calls--
		c.forgetLocked(name)
	}
}

// Connections is how many connections a principal has.
func (c *Limiter) Connections(name string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ofLocked(name).conns
}
