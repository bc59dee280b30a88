// SPDX-License-Identifier: Apache-2.0

// How many connections one caller may have and how much memory its requests may take, so that nobody keeps the
// others out.

package relay

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
	"github.com/boxd-dev/boxd/internal/quantity"
	"github.com/boxd-dev/boxd/supervisor/access"
)

// Bounds for one caller. Root has its own share of connections.
const (
	maxConnections     = 1024 // of root, and of all others together
	maxUserConnections = 256  // of each of the others
	maxVisits          = 128  // of these, connections of those who have the token of a preview
	maxAnonymous       = 64   // of all together of whom nobody knows whose they are
	maxUserBytes       = 64 << 20
	maxUserStreams     = 256 // WebSockets and logs

	// BodyPatience is how long a body may take to arrive, and to wait for its room.
	BodyPatience = time.Minute
)

// Limits is what one caller makes boxd hold at the moment.
type Limits struct {
	conns  int                 // guarded by Callers.mu, as are the next two
	visits int                 // of these, those of previews
	calls  int                 // that are answered on connections that are not counted for the caller
	bytes  *semaphore.Weighted // of requests that are being read
	lines  *semaphore.Weighted // bytes of long lines of output: what a box writes is in the way of no request

	streams atomic.Int32
}

// newLimits returns the load of a caller who has none.
func newLimits() *Limits {
	return &Limits{bytes: semaphore.NewWeighted(maxUserBytes), lines: semaphore.NewWeighted(maxUserBytes)}
}

// Stream admits a stream; leave must follow.
func (l *Limits) Stream() (leave func(), err error) {
	leave = func() { l.streams.Add(-1) }
	if l.streams.Add(1) > maxUserStreams {
		leave()
		return nil, fault.Errorf(fault.Exhausted, "you have %d streams open, the limit", maxUserStreams).WithHint("close one of them")
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
	// A caller that has hung up is not noticed before its body is read.
	late, cancel := context.WithTimeout(ctx, BodyPatience)
	defer cancel()
	if err := of.Acquire(late, n); err != nil {
		if ctx.Err() == nil {
			err = fault.Errorf(fault.Exhausted, "your %s take %s, the limit", what, quantity.Size(maxUserBytes).Short()).
				WithHint("wait for one of them to end")
		}
		return nil, err
	}
	return func() { of.Release(n) }, nil
}

// ConnLimiter counts connections by the principals they are of, whichever way they have come: over the Unix socket, by a token,
// to a preview.
type ConnLimiter struct {
	each int // connections of one of them

	mu        sync.Mutex
	people    map[string]*Limits // of those who have a connection or a call, by their names
	others    int                // connections of all but root
	anonymous list.List          // of *Seat, those first that have been there for longest

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

// NewConnLimiter returns a count of none. Each caller but root may have that many connections.
func NewConnLimiter(each int) *ConnLimiter {
	return &ConnLimiter{
		each: each, people: map[string]*Limits{}, leaving: make(chan struct{}, maxLeaving),
		rootFull: full("root has", maxConnections), userFull: full("you have", each), visitsFull: full("your previews have", maxVisits), allFull: full("all users together have", maxConnections),
	}
}

// Enter admits a connection of a principal whom the kernel knows; Leave must follow.
func (c *ConnLimiter) Enter(name string) (*Limits, *Refusal) {
	c.mu.Lock()
	var gone *Slot
	if name != root && c.others >= maxConnections && c.ofLocked(name).conns < c.each {
		gone = c.evictAnonymousLocked() // who are the first to go, but not for somebody who is refused all the same
	}
	l, refused := c.enterLocked(name)
	c.mu.Unlock()
	if gone != nil {
		gone.end()
	}
	return l, refused
}

func (c *ConnLimiter) enterLocked(name string) (*Limits, *Refusal) {
	l := c.ofLocked(name)
	switch {
	case l.conns >= c.most(name):
		return nil, c.full(name)
	case name != root && c.others >= maxConnections:
		return nil, c.allFull
	case name != root:
		c.others++
	}
	l.conns++
	c.people[name] = l
	return l, nil
}

// most is how many connections a principal may have.
func (c *ConnLimiter) most(name string) int {
	if name == root {
		return maxConnections
	}
	return c.each
}

// full refuses a principal one connection more than that.
func (c *ConnLimiter) full(name string) *Refusal {
	if name == root {
		return c.rootFull
	}
	return c.userFull
}

// ofLocked is the load of a principal, which is not kept yet if it is new.
func (c *ConnLimiter) ofLocked(name string) *Limits {
	if l := c.people[name]; l != nil {
		return l
	}
	return newLimits()
}

// forgetLocked lets go of a load that is none any more: ids are cheap to come by.
func (c *ConnLimiter) forgetLocked(name string) {
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
	p := RefusalProblem(err)
	data, _ := json.Marshal(p) // plain data: cannot fail
	resp := http.Response{
		StatusCode: p.Status, ProtoMajor: 1, ProtoMinor: 1, Close: true, ContentLength: int64(len(data)), Body: io.NopCloser(bytes.NewReader(data)),
		Header: http.Header{"Content-Type": {problemMedia}, "Retry-After": {RetryAfter}},
	}
	var text bytes.Buffer
	_ = resp.Write(&text) // into memory
	return &Refusal{err, text.Bytes()}
}

// None reports whether there is no connection.
func (c *ConnLimiter) None() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.people) == 0 && c.anonymous.Len() == 0 && len(c.leaving) == 0
}

// Leave ends what Enter began.
func (c *ConnLimiter) Leave(name string) {
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
func (c *ConnLimiter) TurnAway(conn net.Conn, r *Refusal) {
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

// anonymous is the uid of callers whom the kernel does not know; their connections have seats.
const anonymous = ^uint32(0)

// Share returns the load of a principal whose connections the kernel does not know; leave must follow.
func (c *ConnLimiter) Share(name string) (l *Limits, leave func()) {
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
func (c *ConnLimiter) Connections(name string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ofLocked(name).conns
}
