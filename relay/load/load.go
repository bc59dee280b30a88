// SPDX-License-Identifier: Apache-2.0

// Package load bounds what one user of the host can make boxd hold, so that nobody keeps the others out.
package load

import (
	"bytes"
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
	"github.com/boxd-dev/boxd/relay/wire"
)

// Bounds for one user. Root has its own share of connections.
const (
	MaxConnections     = 1024 // of root, and of all others together
	MaxUserConnections = 256  // of each of the others
	MaxUserBytes       = 64 << 20
	MaxUserStreams     = 256 // WebSockets and logs

	// BodyPatience is how long a body may take to arrive, and to wait for its room.
	BodyPatience = time.Minute
)

// Load is what one user makes boxd hold at the moment.
type Load struct {
	conns int                 // guarded by Callers.mu
	bytes *semaphore.Weighted // of requests that are being read
	lines *semaphore.Weighted // bytes of long lines of output: what a box writes is in the way of no request

	streams atomic.Int32
}

// New returns the load of a user who has none.
func New() *Load {
	return &Load{bytes: semaphore.NewWeighted(MaxUserBytes), lines: semaphore.NewWeighted(MaxUserBytes)}
}

// Stream admits a stream; leave must follow.
func (l *Load) Stream() (leave func(), err error) {
	leave = func() { l.streams.Add(-1) }
	if l.streams.Add(1) > MaxUserStreams {
		leave()
		return nil, fault.Errorf(fault.Exhausted, "you have %d streams, the limit", MaxUserStreams).WithHint("close one of them")
	}
	return leave, nil
}

// Reserve waits until the user may have boxd read n bytes more. The caller must release them.
func (l *Load) Reserve(ctx context.Context, n int64) (release func(), err error) {
	return reserve(ctx, l.bytes, n, "requests under way")
}

// ReserveLine does the same for a line of output.
func (l *Load) ReserveLine(ctx context.Context, n int64) (release func(), err error) {
	return reserve(ctx, l.lines, n, "long lines of output that have no end yet")
}

func reserve(ctx context.Context, of *semaphore.Weighted, n int64, what string) (release func(), err error) {
	// A caller that has hung up is not noticed before its body is read.
	late, cancel := context.WithTimeout(ctx, BodyPatience)
	defer cancel()
	if err := of.Acquire(late, n); err != nil {
		if ctx.Err() == nil {
			err = fault.Errorf(fault.Exhausted, "you have %v of %s, the limit", quantity.Size(MaxUserBytes), what).
				WithHint("wait for one of them to end")
		}
		return nil, err
	}
	return func() { of.Release(n) }, nil
}

// Callers counts connections by the users they are of.
type Callers struct {
	mu     sync.Mutex
	users  map[uint32]*Load // of those who have a connection
	others int              // connections of all but root
	seats  seats
	shared map[string]*share

	leaving chan struct{} // holds a word for each connection that is turned away and still listened to

	rootFull, userFull, allFull *Refusal
}

// How many connections that are turned away are listened to, and for how long.
const (
	maxLeaving    = 64
	leavePatience = time.Second
)

// NewCallers returns a count of none.
func NewCallers() *Callers {
	return &Callers{
		users: map[uint32]*Load{}, seats: seats{known: map[string]int{}}, shared: map[string]*share{}, leaving: make(chan struct{}, maxLeaving),
		rootFull: full("root has", MaxConnections), userFull: full("you have", MaxUserConnections), allFull: full("all users together have", MaxConnections),
	}
}

// Enter admits a connection of a user; Leave must follow.
func (c *Callers) Enter(uid uint32) (*Load, *Refusal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.users[uid]
	if l == nil {
		l = New()
	}
	switch {
	case uid == 0 && l.conns >= MaxConnections:
		return nil, c.rootFull
	case uid != 0 && l.conns >= MaxUserConnections:
		return nil, c.userFull
	case uid != 0 && c.others >= MaxConnections:
		return nil, c.allFull
	case uid != 0:
		c.others++
	}
	l.conns++
	c.users[uid] = l
	return l, nil
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
	p := wire.Refusal(err)
	data, _ := json.Marshal(p) // plain data: cannot fail
	resp := http.Response{
		StatusCode: p.Status, ProtoMajor: 1, ProtoMinor: 1, Close: true, ContentLength: int64(len(data)), Body: io.NopCloser(bytes.NewReader(data)),
		Header: http.Header{"Content-Type": {wire.ProblemMedia}, "Retry-After": {wire.RetryAfter}},
	}
	var text bytes.Buffer
	_ = resp.Write(&text) // into memory
	return &Refusal{err, text.Bytes()}
}

// None reports whether there is no connection.
func (c *Callers) None() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.users) == 0 && c.seats.strangers.Len() == 0 && len(c.seats.known) == 0 && len(c.leaving) == 0
}

// Leave ends what Enter began. A user without a connection is forgotten: ids are cheap to come by.
func (c *Callers) Leave(uid uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.users[uid]
	if l.conns--; l.conns == 0 {
		delete(c.users, uid)
	}
	if uid != 0 {
		c.others--
	}
}

// TurnAway answers a connection that its caller may not have, and ends it. It keeps Accept waiting for
// nobody: in the background it lets the caller begin with a request, as a client takes no answer before,
// and have its say, or it would hear of a broken pipe instead. If too many are being heard, it does.
func (c *Callers) TurnAway(conn net.Conn, r *Refusal) {
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

// Strangers is the uid of callers whom the kernel does not know; their connections have seats.
const Strangers = ^uint32(0)

// share is the load of a principal that is known by its token.
type share struct {
	load  *Load
	calls int
}

// Share returns the load of a principal whose connections the kernel does not know; leave must follow.
func (c *Callers) Share(name string) (l *Load, leave func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.shared[name]
	if s == nil {
		s = &share{load: New()}
		c.shared[name] = s
	}
	s.calls++
	return s.load, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if s.calls--; s.calls == 0 {
			delete(c.shared, name)
		}
	}
}

// Connections is how many connections a user has.
func (c *Callers) Connections(uid uint32) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if l := c.users[uid]; l != nil {
		return l.conns
	}
	return 0
}
