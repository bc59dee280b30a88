// SPDX-License-Identifier: Apache-2.0

// The start limiter keeps one principal's new programs from delaying those of others: each principal may start only so many at a
// time, the rest wait in order. A program that has just started wants a core and is often over in a millisecond; one that lasts
// is limited by its cgroup and does not count here. One principal alone may use the cores fully; while several start programs,
// each has half as much, so that a core that one has just taken is soon free for another.

package quota

import (
	"context"
	"slices"
	"sync"
	"time"
)

// boxd's values: with more, others wait for a core; with fewer, cores idle (docs/design/pool.md).
const (
	PerCore = 2                     // concurrent starts of a principal; half of that while others start programs too
	Hold    = 10 * time.Millisecond // after which a start no longer counts
)

// sharing is for how long each principal has fewer starts after two have asked within that time.
const sharing = time.Second

// StartLimiter limits concurrent starts per principal. Use NewStartLimiter: the zero value is not usable.
type StartLimiter struct {
	each int
	hold time.Duration

	mu       sync.Mutex // guards the fields below
	names    map[string]*name
	last     string    // the principal that has asked last
	lastTime time.Time // when it did
	shared   time.Time // when one asked shortly after another
}

// name is a principal with turns or waiters.
type name struct {
	turns []*turn // oldest first; some may have expired, if none waits
	line  []*turn
	timer *time.Timer // passes expired turns to waiters; nil before the first waiter
}

// turn is a principal's turn, or a place in its queue.
type turn struct {
	granted chan struct{} // closed when a waiter gets its turn
	since   time.Time
}

// NewStartLimiter returns a StartLimiter that gives each principal each turns at a time, at least 1. A turn that is not given
// back expires after hold. While several principals ask, each gets half as many, at least 1.
func NewStartLimiter(each int, hold time.Duration) *StartLimiter {
	return &StartLimiter{each: max(each, 1), hold: hold, names: map[string]*name{}}
}

// Begin waits for a turn of a principal. The caller must call done when the start is over; further calls do nothing. The error is
// that of ctx. While none waits no timer runs: the next caller notices an expired turn, and almost all are given back first.
func (t *StartLimiter) Begin(ctx context.Context, principal string) (done func(), err error) {
	t.mu.Lock()
	n := t.names[principal]
	if n == nil {
		n = &name{}
		t.names[principal] = n
	}
	now := time.Now()
	if principal != t.last && now.Sub(t.lastTime) < sharing {
		t.shared = now
	}
	t.last, t.lastTime = principal, now
	own := &turn{}
	if t.passLocked(n); len(n.line) == 0 && len(n.turns) < t.maxLocked() {
		n.begin(own)
		t.mu.Unlock()
		return func() { t.leave(principal, n, own) }, nil
	}
	own.granted = make(chan struct{})
	if n.line = append(n.line, own); len(n.line) == 1 {
		t.watchLocked(n)
	}
	t.mu.Unlock()
	select {
	case <-own.granted:
		return func() { t.leave(principal, n, own) }, nil
	case <-ctx.Done():
		t.leave(principal, n, own)
		return nil, ctx.Err()
	}
}

// leave gives back a turn, if it has not expired, or a place in the queue.
func (t *StartLimiter) leave(principal string, n *name, own *turn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	same := func(other *turn) bool { return other == own }
	n.turns = slices.DeleteFunc(n.turns, same)
	n.line = slices.DeleteFunc(n.line, same)
	t.passLocked(n)
	if len(n.turns) == 0 && t.names[principal] == n {
		delete(t.names, principal)
	}
}

// passLocked passes turns that have expired or were given back to waiters.
func (t *StartLimiter) passLocked(n *name) {
	now := time.Now()
	for len(n.turns) > 0 && now.Sub(n.turns[0].since) >= t.hold {
		n.turns = n.turns[1:]
	}
	for maxTurns := t.maxLocked(); len(n.line) > 0 && len(n.turns) < maxTurns; {
		next := n.line[0]
		n.line = n.line[1:]
		n.begin(next)
		close(next.granted)
	}
	switch {
	case len(n.line) > 0:
		t.watchLocked(n)
	case n.timer != nil:
		n.timer.Stop()
	}
}

// maxLocked returns how many turns a principal may have at the moment.
func (t *StartLimiter) maxLocked() int {
	if time.Since(t.shared) < sharing {
		return max(t.each/2, 1)
	}
	return t.each
}

// watchLocked sets the timer that passes the turn that expires first to a waiter.
func (t *StartLimiter) watchLocked(n *name) {
	left := t.hold - time.Since(n.turns[0].since)
	if n.timer != nil {
		n.timer.Reset(left)
		return
	}
	n.timer = time.AfterFunc(left, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.passLocked(n)
	})
}

func (n *name) begin(own *turn) {
	own.since = time.Now()
	n.turns = append(n.turns, own)
}
