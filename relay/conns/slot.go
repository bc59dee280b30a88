// SPDX-License-Identifier: Apache-2.0

package conns

import (
	"container/list"
	"context"
)

// Slot is that of a connection whose caller the kernel does not know. It is anonymous until a request on it is authenticated.
// There are Unknown anonymous connections at a time; one more, or a connection of a known caller when all slots are taken, closes
// the oldest of them. So silent connections keep no caller out.
type Slot struct {
	callers *Limiter
	end     func()        // ends the connection
	place   *list.Element // among the anonymous; nil: the caller is known, or has left
	name    string        // of the caller, where that is known
	visit   bool          // of the caller's previews
	left    bool
}

// Admit admits a connection whose caller the kernel does not know; end ends it, and may be called from elsewhere. Leave
// must follow.
func (c *Limiter) Admit(end func()) (*Slot, *Refusal) {
	c.mu.Lock()
	var evicted *Slot
	if c.anonymous.Len() >= Unknown || c.others >= c.all {
		if evicted = c.evictAnonymousLocked(); evicted == nil {
			c.mu.Unlock()
			return nil, c.allFull
		}
	}
	s := &Slot{callers: c, end: end}
	s.place = c.anonymous.PushBack(s)
	c.others++
	c.mu.Unlock()
	if evicted != nil {
		evicted.end()
	}
	return s, nil
}

// evictAnonymousLocked takes the slot of the oldest anonymous connection; nil: there is none.
func (c *Limiter) evictAnonymousLocked() *Slot {
	first := c.anonymous.Front()
	if first == nil {
		return nil
	}
	evicted := first.Value.(*Slot) //nolint:forcetypeassert // nothing else is in there
	evicted.leaveLocked()
	return evicted
}

// Leave ends what Admit began, once.
func (s *Slot) Leave() {
	s.callers.mu.Lock()
	defer s.callers.mu.Unlock()
	s.leaveLocked()
}

func (s *Slot) leaveLocked() {
	if s.left {
		return
	}
	s.left = true
	s.callers.others--
	s.uncountLocked()
}

// uncountLocked takes the slot off the count of its caller, or of the anonymous.
func (s *Slot) uncountLocked() {
	if s.place != nil {
		s.callers.anonymous.Remove(s.place)
		s.place = nil
		return
	}
	l := s.callers.people[s.name]
	l.conns--
	if s.visit {
		l.visits--
	}
	s.callers.forgetLocked(s.name)
}

// known counts the connection for a caller from now on, unless that has as many as one may have.
func (s *Slot) known(name string, visit bool) error {
	c := s.callers
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.left || s.place == nil && s.name == name && s.visit == visit {
		return nil
	}
	l, own := c.ofLocked(name), 0
	if s.place == nil && s.name == name {
		own = 1
	}
	switch {
	case l.conns-own >= c.most(name):
		return c.full(name).Err
	case visit && l.visits >= c.each/2:
		return c.visitsFull.Err
	}
	l.conns++ // before the slot is given up, which may be the last of the same caller
	if visit {
		l.visits++
	}
	c.people[name] = l
	s.uncountLocked()
	s.name, s.visit = name, visit
	return nil
}

// slotKey is the context key of the slot.
type slotKey struct{}

// WithSlot puts the slot of a connection into the context of its requests.
func WithSlot(ctx context.Context, s *Slot) context.Context {
	return context.WithValue(ctx, slotKey{}, s)
}

// Identify counts the connection of a request for a caller who has said who that is, where the kernel does not; a name
// that is "" says nothing. The error is the refusal of one connection too many.
func Identify(ctx context.Context, name string) error { return identify(ctx, name, false) }

// IdentifyVisitor counts the connection of a request for a port for who has given its bearer the right to that, of whose connections
// visitors have half at most: so they do not keep their host out.
func IdentifyVisitor(ctx context.Context, name string) error { return identify(ctx, name, true) }

func identify(ctx context.Context, name string, visit bool) error {
	s, ok := ctx.Value(slotKey{}).(*Slot)
	if !ok || name == "" {
		return nil
	}
	return s.known(name, visit)
}
