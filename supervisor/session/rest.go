// SPDX-License-Identifier: Apache-2.0

package session

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/boxd-dev/boxd/isolation/client"
	"github.com/boxd-dev/boxd/supervisor/process"
	"github.com/boxd-dev/boxd/supervisor/quota"
)

// errAsleep means that the session must be woken first.
var errAsleep = errors.New("the session is suspended")

// admit waits until the session has room for one more, and wakes it if it is asleep. attempt is called without a lock of the
// session, possibly more than once.
func (s *Session) admit(ctx context.Context, wait *time.Duration, attempt func() error) error {
	for {
		err := s.hooks.Line.Admit(ctx, quota.Waiter{Caller: s.Key, What: s.ID, Wait: wait}, attempt)
		if !errors.Is(err, errAsleep) {
			return err
		}
		if err := s.Use(); err != nil {
			return err
		}
	}
}

// Use notes a use of the session, and thaws it if it was frozen because it was idle.
func (s *Session) Use() error {
	s.mu.Lock()
	s.lastUsed = time.Now()
	asleep := s.asleep
	s.mu.Unlock()
	if !asleep {
		return nil
	}
	return s.Exclusive(func() error {
		s.mu.Lock()
		asleep := s.asleep && s.state == StateReady
		s.mu.Unlock()
		if !asleep { // another caller was first
			return nil
		}
		return s.freeze(false)
	})
}

// IdleAt is when the session is to be frozen if it is not used until then; zero: never, or it is frozen, and thawing calls Due.
// A session is in use while an execution runs or a client is attached: as no event reports the end of that, the result is then
// the time to check again.
func (s *Session) IdleAt() time.Time {
	delay := time.Duration(s.profile.FreezeAfter)
	if delay == 0 || !s.Grouped() {
		return time.Time{}
	}
	attached := s.attached()
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.state != StateReady || s.frozen:
		return time.Time{}
	case attached || s.running > s.managed:
		return time.Now().Add(max(delay, time.Second))
	}
	return s.lastUsed.Add(delay)
}

// attached reports whether a client is attached to a process, or may be without boxd's knowledge.
func (s *Session) attached() bool {
	return slices.ContainsFunc(s.Processes(), (*process.Process).Attached)
}

// FreezeIdle reclaims memory that the programs of an idle session do not need, and freezes it. It does nothing if the session
// is in use by then.
func (s *Session) FreezeIdle() error {
	return s.Exclusive(func() error {
		if at := s.IdleAt(); at.IsZero() || time.Now().Before(at) {
			return nil
		}
		s.hooks.Reclaim(s)
		if at := s.IdleAt(); at.IsZero() || time.Now().Before(at) {
			return nil
		}
		s.mu.Lock()
		if s.state != StateReady || s.running > s.managed {
			s.mu.Unlock()
			return nil
		}
		s.frozen, s.asleep = true, true
		s.mu.Unlock()
		s.hooks.Keep(s) // before freezing: otherwise the next boxd would think that a caller has frozen the box
		err := s.setFrozen(true, false)
		if err != nil {
			s.mu.Lock()
			s.asleep = false
			s.lastUsed = time.Now() // delays the next attempt
			s.mu.Unlock()
			s.hooks.Keep(s)
		}
		return err
	})
}

// IdleSince is since when nothing runs in the session; false if something does, or the session is not ready.
func (s *Session) IdleSince() (time.Time, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state != StateReady || s.running > 0 {
		return time.Time{}, false
	}
	busy, quiet := s.box.LeftRunning()
	if quiet.Before(s.lastUsed) {
		quiet = s.lastUsed
	}
	return quiet, !busy
}

// BoxKey is the key of the session's box on the host.
func (s *Session) BoxKey() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return cmp.Or(s.boxKey, s.Key)
}

// SetBoxKey gives the session a box of another key, or with "" of its own. It has not started yet.
func (s *Session) SetBoxKey(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.boxKey = key
}

// Pinged records the outcome of a ping of PID 1, and returns how many pings in a row were not answered.
func (s *Session) Pinged(err error) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.missedPings++; !errors.Is(err, client.ErrSilent) {
		s.missedPings = 0
	}
	return s.missedPings
}

// Unhealthy is the number of unanswered pings in a row after which PID 1 is given up.
const Unhealthy = 3

// Asleep reports whether the session is frozen because it was idle.
func (s *Session) Asleep() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asleep
}

// SetAsleep says that of a session that an earlier boxd has left frozen.
func (s *Session) SetAsleep() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asleep = s.frozen
}
