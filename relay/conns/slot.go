// SPDX-License-Identifier: Apache-2.0

package conns

import (
	"container/list"
	"context"
)

// Slot is the place of a connection whose caller the kernel does not identify. It is anonymous until a request on it is
// authenticated. There are at most Unknown anonymous connections; one more, or a connection of a known caller when all
// places are taken, closes the oldest of them. So silent connections lock no caller out.
type Slot struct {
	callers *Limiter
	close   func()        // closes the connection
	place   *list.Element // in the list of anonymous slots; nil: the caller is known, or has left
	name    string        // of the caller, once known
	preview bool          // to a preview of the caller
	left    bool
}

// Admit admits a connection whose caller the kernel does not identify; close closes it, and may be called from another
// goroutine. Leave must follow.
func (c *Limiter) Admit(close func()) (*Slot, *Refusal) {
	c.mu.Lock()
	var evicted *Slot
	if c.anonymous.Len() >= Unknown || c.others >= c.all {
		if evicted = c.evictAnonymousLocked(); evicted == nil {
			c.mu.Unlock()
			return nil, c.allFull
		}
	}
	s := &Slot{callers: c, close: close}
	s.place = c.anonymous.PushBack(s)
	c.others++
	c.mu.Unlock()
	if evicted != nil {
		evicted.close()
	}
	return s, nil
}

// evictAnonymousLocked removes the slot of the oldest anonymous connection, and returns it; nil: there is none.
func (c *Limiter) evictAnonymousLocked() *Slot {
	first := c.anonymous.Front()
	if first == nil {
		return nil
	}
	evicted := first.Value.(*Slot) //nolint:forcetypeassert // nothing else is in there
	evicted.leaveLocked()
	return evicted
}

// Leave undoes Admit, once.
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

// uncountLocked subtracts the slot from the count of its caller, or from the anonymous ones.
func (s *Slot) uncountLocked() {
	if s.place != nil {
		s.callers.anonymous.Remove(s.place)
		s.place = nil
		return
	}
	l := s.callers.byName[s.name]
	l.conns--
	if s.preview {
		l.visits--
	}
	s.callers.forgetLocked(s.name)
}

// known counts the connection for a caller from now on, unless the caller has reached its maximum.
func (s *Slot) known(name string, preview bool) error {
	c := s.callers
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.left || s.place == nil && s.name == name && s.preview == preview {
		return nil
	}
	l, own := c.ofLocked(name), 0
	if s.place == nil && s.name == name {
		own = 1
	}
	switch {
	case l.conns-own >= c.capacity(name):
		return c.full(name).Err
	case preview && l.visits >= c.each/2:
		return c.visitsFull.Err
	}
	l.conns++ // before the slot is given up, which may be the caller's last
	if preview {
		l.visits++
	}
	c.byName[name] = l
	s.uncountLocked()
	s.name, s.preview = name, preview
	return nil
}

// slotKey is the context key of the slot.
type slotKey struct{}

// WithSlot puts the slot of a connection into the context of its requests.
func WithSlot(ctx context.Context, s *Slot) context.Context {
	return context.WithValue(ctx, slotKey{}, s)
}

// Identify counts the connection of a request for the authenticated caller, if the kernel does not identify it; a name
// of "" is ignored. The error is the refusal of one connection too many.
func Identify(ctx context.Context, name string) error { return identify(ctx, name, false) }

// IdentifyVisitor counts the connection of a request to a port for the principal that shared the port. Visitors may have
// at most half of that principal's connections, so they do not lock it out.
func IdentifyVisitor(ctx context.Context, name string) error { return identify(ctx, name, true) }

func identify(ctx context.Context, name string, preview bool) error {
	s, ok := ctx.Value(slotKey{}).(*Slot)
	if !ok || name == "" {
		return nil
	}
	return s.known(name, preview)
}
