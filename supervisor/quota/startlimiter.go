// SPDX-License-Identifier: Apache-2.0

// The start limiter keeps one principal's new programs from delaying everybody else's: each principal may start
// only so many at a time, the rest wait in order. A program that has just started wants a core and is often over in
// a millisecond; one that lasts is limited by its cgroup and does not count here.

package quota

import (
	"context"
	"slices"
	"sync"
	"time"
)

// What boxd gives: more at a time and others wait for a core, fewer and cores wait (docs/design/pool.md).
const (
	PerCore = 2                     // of a principal, at a time
	Hold    = 10 * time.Millisecond // after which what has begun is in nobody's way any more
)

// StartLimiter is who begins something. Its zero value is not of use: see New.
type StartLimiter struct {
	each int
	hold time.Duration

	mu    sync.Mutex // guards the fields below
	names map[string]*name
}

// name is a principal, of whom something begins or waits.
type name struct {
	begun []*turn // the oldest first; some may be over, if nobody waits
	line  []*turn
	late  *time.Timer // gives the turns that are over to who waits; nil before anybody has
}

// turn is one of a principal's, or a place in its line.
type turn struct {
	changed chan struct{} // closed when it has come, of one that has waited
	since   time.Time
}

// NewStartLimiter returns Turns of which each principal has so many at a time, at least 1. One that is not given back is over by
// itself after hold.
func NewStartLimiter(each int, hold time.Duration) *StartLimiter {
	return &StartLimiter{each: max(each, 1), hold: hold, names: map[string]*name{}}
}

// Begin waits for a turn of a principal. The caller must call end when what it has begun is over; once is as good
// as often. The error is that of ctx. While nobody waits no timer runs: a turn that is over by itself is found to be
// by the next that asks for one, and almost all are given back first.
func (t *StartLimiter) Begin(ctx context.Context, who string) (end func(), err error) {
	t.mu.Lock()
	n := t.names[who]
	if n == nil {
		n = &name{}
		t.names[who] = n
	}
	own := &turn{}
	if t.passLocked(n); len(n.begun) < t.each {
		n.begin(own)
		t.mu.Unlock()
		return func() { t.leave(who, n, own) }, nil
	}
	own.changed = make(chan struct{})
	if n.line = append(n.line, own); len(n.line) == 1 {
		t.watchLocked(n)
	}
	t.mu.Unlock()
	select {
	case <-own.changed:
		return func() { t.leave(who, n, own) }, nil
	case <-ctx.Done():
		t.leave(who, n, own)
		return nil, ctx.Err()
	}
}

// leave gives back a turn, if it is not over yet, or a place in the line.
func (t *StartLimiter) leave(who string, n *name, own *turn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	same := func(other *turn) bool { return other == own }
	n.begun = slices.DeleteFunc(n.begun, same)
	n.line = slices.DeleteFunc(n.line, same)
	t.passLocked(n)
	if len(n.begun) == 0 && t.names[who] == n {
		delete(t.names, who)
	}
}

// passLocked gives the turns that are over, or have been given back, to who waits.
func (t *StartLimiter) passLocked(n *name) {
	now := time.Now()
	for len(n.begun) > 0 && now.Sub(n.begun[0].since) >= t.hold {
		n.begun = n.begun[1:]
	}
	for len(n.line) > 0 && len(n.begun) < t.each {
		next := n.line[0]
		n.line = n.line[1:]
		n.begin(next)
		close(next.changed)
	}
	switch {
	case len(n.line) > 0:
		t.watchLocked(n)
	case n.late != nil:
		n.late.Stop()
	}
}

// watchLocked sees to it that who waits has the turn that is over first.
func (t *StartLimiter) watchLocked(n *name) {
	left := t.hold - time.Since(n.begun[0].since)
	if n.late != nil {
		n.late.Reset(left)
		return
	}
	n.late = time.AfterFunc(left, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.passLocked(n)
	})
}

func (n *name) begin(own *turn) {
	own.since = time.Now()
	n.begun = append(n.begun, own)
}
