// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/internal/quantity"
	"github.com/boxd-dev/boxd/relay/wire"
)

// Bounds of what one user of the host can make boxd hold, so that nobody keeps the others out. Root has
// its own share of connections.
const (
	maxConnections     = 1024 // of root, and of all others together
	maxUserConnections = 256  // of each of the others
	maxUserBytes       = 64 << 20
	maxUserStreams     = 256 // WebSockets and logs
)

// load is what one user makes boxd hold at the moment.
type load struct {
	conns int                 // guarded by callers.mu
	bytes *semaphore.Weighted // of requests that are being read
	lines *semaphore.Weighted // bytes of long lines of output: what a box writes is in the way of no request

	streams atomic.Int32
}

func newLoad() *load {
	return &load{bytes: semaphore.NewWeighted(maxUserBytes), lines: semaphore.NewWeighted(maxUserBytes)}
}

// stream admits a stream; leave must follow.
func (l *load) stream() (leave func(), err error) {
	leave = func() { l.streams.Add(-1) }
	if l.streams.Add(1) > maxUserStreams {
		leave()
		return nil, fault.Errorf(fault.Exhausted, "you have %d streams, the limit", maxUserStreams).WithHint("close one of them")
	}
	return leave, nil
}

// reserve waits until the user may have boxd read n bytes more. The caller must release them.
func (l *load) reserve(ctx context.Context, n int64) (release func(), err error) {
	return reserve(ctx, l.bytes, n, "requests under way")
}

// reserveLine does the same for a line of output.
func (l *load) reserveLine(ctx context.Context, n int64) (release func(), err error) {
	return reserve(ctx, l.lines, n, "long lines of output that have no end yet")
}

func reserve(ctx context.Context, of *semaphore.Weighted, n int64, what string) (release func(), err error) {
	// A caller that has hung up is not noticed before its body is read.
	late, cancel := context.WithTimeout(ctx, bodyPatience)
	defer cancel()
	if err := of.Acquire(late, n); err != nil {
		if ctx.Err() == nil {
			err = fault.Errorf(fault.Exhausted, "you have %v of %s, the limit", quantity.Size(maxUserBytes), what).
				WithHint("wait for one of them to end")
		}
		return nil, err
	}
	return func() { of.Release(n) }, nil
}

// callers counts connections by the users they are of.
type callers struct {
	mu     sync.Mutex
	users  map[uint32]*load // of those who have a connection
	others int              // connections of all but root

	leaving chan struct{} // holds a word for each connection that is turned away and still listened to

	rootFull, userFull, allFull *refusal
}

// How many connections that are turned away are listened to, and for how long.
const (
	maxLeaving    = 64
	leavePatience = time.Second
)

func newCallers() *callers {
	return &callers{
		users: map[uint32]*load{}, leaving: make(chan struct{}, maxLeaving),
		rootFull: full("root has", maxConnections), userFull: full("you have", maxUserConnections), allFull: full("all users together have", maxConnections),
	}
}

// enter admits a connection of a user; leave must follow.
func (c *callers) enter(uid uint32) (*load, *refusal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.users[uid]
	if l == nil {
		l = newLoad()
	}
	switch {
	case uid == 0 && l.conns >= maxConnections:
		return nil, c.rootFull
	case uid != 0 && l.conns >= maxUserConnections:
		return nil, c.userFull
	case uid != 0 && c.others >= maxConnections:
		return nil, c.allFull
	case uid != 0:
		c.others++
	}
	l.conns++
	c.users[uid] = l
	return l, nil
}

// refusal is why somebody may not have a connection, and the whole answer that says so: whoever makes a flood of
// them makes little work.
type refusal struct {
	err    error
	answer []byte
}

func full(who string, limit int) *refusal {
	err := fault.Errorf(fault.Exhausted, "%s %d connections to boxd, the limit", who, limit).
		WithHint("wait for one of them to end")
	p := wire.Refusal(err)
	data, _ := json.Marshal(p) // plain data: cannot fail
	resp := http.Response{
		StatusCode: p.Status, ProtoMajor: 1, ProtoMinor: 1, Close: true, ContentLength: int64(len(data)), Body: io.NopCloser(bytes.NewReader(data)),
		Header: http.Header{"Content-Type": {problemType}, "Retry-After": {retryAfter}},
	}
	var text bytes.Buffer
	_ = resp.Write(&text) // into memory
	return &refusal{err, text.Bytes()}
}

// none reports whether there is no connection.
func (c *callers) none() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.users) == 0 && len(c.leaving) == 0
}

// leave ends what enter began. A user without a connection is forgotten: ids are cheap to come by.
func (c *callers) leave(uid uint32) {
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
