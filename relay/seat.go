// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"container/list"
	"context"
)

// Slot is the place of a connection whose caller the kernel does not know: a stranger's, until a request on it says who
// that is. Strangers have MaxStrangers together, and one more takes the place of the one that has been a stranger for the
// longest time, as does who is known when boxd is full. So who says nothing keeps nobody out who has something to say.
type Slot struct {
	callers *ConnLimiter
	end     func()        // ends the connection
	place   *list.Element // among the strangers; nil: the caller is known, or has no seat any more
	name    string        // of the caller, where that is known
	visit   bool          // of the caller's previews
	left    bool
}

// Admit admits a connection whose caller the kernel does not know; end ends it, and may be called from elsewhere. Leave
// must follow.
func (c *ConnLimiter) Admit(end func()) (*Slot, *Refusal) {
	c.mu.Lock()
	var gone *Slot
	if c.anonymous.Len() >= maxAnonymous || c.others >= maxConnections {
		if gone = c.evictAnonymousLocked(); gone == nil {
			c.mu.Unlock()
			return nil, c.allFull
		}
	}
	s := &Slot{callers: c, end: end}
	s.place = c.anonymous.PushBack(s)
	c.others++
	c.mu.Unlock()
	if gone != nil {
		gone.end()
	}
	return s, nil
}

// evictAnonymousLocked takes the seat from who has been a stranger for the longest time, nil: there is none.
func (c *ConnLimiter) evictAnonymousLocked() *Slot {
	first := c.anonymous.Front()
	if first == nil {
		return nil
	}
	gone := first.Value.(*Slot) //nolint:forcetypeassert // nothing else is in there
	gone.leaveLocked()
	return gone
}

// Leave ends what Sit began, once.
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
	s.standLocked()
}

// standLocked takes the seat from whom it counts for.
func (s *Slot) standLocked() {
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
	case visit && l.visits >= maxVisits:
		return c.visitsFull.Err
	}
	l.conns++ // before the seat is given up, which may be the last of the same caller
	if visit {
		l.visits++
	}
	c.people[name] = l
	s.standLocked()
	s.name, s.visit = name, visit
	return nil
}

// slotKey is the context key of the seat.
type slotKey struct{}

// withSlot puts the seat of a connection into the context of its requests.
func withSlot(ctx context.Context, s *Slot) context.Context {
	return context.WithValue(ctx, slotKey{}, s)
}

// Identify counts the connection of a request for a caller who has said who that is, where the kernel does not; a name
// that is "" says nothing. The error is the refusal of one connection too many.
func Identify(ctx context.Context, name string) error { return identify(ctx, name, false) }

// identifyVisitor counts the connection of a request for a preview for who has made the preview, of whose connections visitors have
// half at most: so they do not keep their host out.
func identifyVisitor(ctx context.Context, name string) error { return identify(ctx, name, true) }

func identify(ctx context.Context, name string, visit bool) error {
	s, ok := ctx.Value(slotKey{}).(*Slot)
	if !ok || name == "" {
		return nil
	}
	return s.known(name, visit)
}
