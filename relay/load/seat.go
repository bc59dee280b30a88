// SPDX-License-Identifier: Apache-2.0

package load

import (
	"container/list"
	"context"
)

// Seat is the place of a connection whose caller the kernel does not know: a stranger's, until a request on it says who
// that is. Strangers have MaxUserConnections together, and one more takes the place of the one that has been a
// stranger for the longest time. So who says nothing keeps nobody out who has something to say.
type Seat struct {
	callers *Callers
	end     func()        // ends the connection
	place   *list.Element // among the strangers; nil: the caller is known, or has no seat any more
	name    string        // of the caller, where that is known
	left    bool
}

// seats are those of all connections whose callers the kernel does not know. Callers.mu guards them.
type seats struct {
	strangers list.List      // of *Seat, those first that have been there for longest
	known     map[string]int // connections of callers who have said who they are
}

// Sit admits a connection whose caller the kernel does not know; end ends it, and may be called from elsewhere. Leave
// must follow.
func (c *Callers) Sit(end func()) (*Seat, *Refusal) {
	c.mu.Lock()
	var gone *Seat
	if c.seats.strangers.Len() >= MaxUserConnections || c.others >= MaxConnections {
		first := c.seats.strangers.Front()
		if first == nil {
			c.mu.Unlock()
			return nil, c.allFull
		}
		gone = first.Value.(*Seat) //nolint:forcetypeassert // nothing else is in there
		gone.leaveLocked()
	}
	s := &Seat{callers: c, end: end}
	s.place = c.seats.strangers.PushBack(s)
	c.others++
	c.mu.Unlock()
	if gone != nil {
		gone.end()
	}
	return s, nil
}

// Leave ends what Sit began, once.
func (s *Seat) Leave() {
	s.callers.mu.Lock()
	defer s.callers.mu.Unlock()
	s.leaveLocked()
}

func (s *Seat) leaveLocked() {
	if s.left {
		return
	}
	s.left = true
	s.callers.others--
	s.standLocked()
}

// standLocked takes the seat from whom it counts for.
func (s *Seat) standLocked() {
	held := &s.callers.seats
	switch {
	case s.place != nil:
		held.strangers.Remove(s.place)
		s.place = nil
	case held.known[s.name] > 1:
		held.known[s.name]--
	default:
		delete(held.known, s.name)
	}
}

// known counts the connection for a caller from now on, unless that has as many as one may have.
func (s *Seat) known(name string) error {
	c := s.callers
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.left || s.place == nil && s.name == name {
		return nil
	}
	if c.seats.known[name] >= MaxUserConnections {
		return c.userFull.Err
	}
	s.standLocked()
	s.name = name
	c.seats.known[name]++
	return nil
}

// seatKey is the context key of the seat.
type seatKey struct{}

// WithSeat puts the seat of a connection into the context of its requests.
func WithSeat(ctx context.Context, s *Seat) context.Context {
	return context.WithValue(ctx, seatKey{}, s)
}

// Known counts the connection of a request for a caller who has said who that is, where the kernel does not; a name
// that is "" says nothing. The error is the refusal of one connection too many.
func Known(ctx context.Context, name string) error {
	s, ok := ctx.Value(seatKey{}).(*Seat)
	if !ok || name == "" {
		return nil
	}
	return s.known(name)
}
