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

// errAsleep means that the session has to be woken first.
var errAsleep = errors.New("the session is suspended")

// admit waits until the session has room for one more, and wakes it if it is asleep. try is called under no
// lock, maybe more than once.
func (s *Session) admit(ctx context.Context, wait *time.Duration, try func() error) error {
	for {
		err := s.hooks.Line.Admit(ctx, quota.Waiter{Caller: s.Key, What: s.ID, Wait: wait}, try)
		if !errors.Is(err, errAsleep) {
			return err
		}
		if err := s.Use(); err != nil {
			return err
		}
	}
}

// Use notes that somebody uses the session, and lets its programs go on if they were stopped because nobody
// did.
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
		if !asleep { // somebody else was first
			return nil
		}
		return s.freeze(false)
	})
}

// IdleAt is when the programs of the session are to be stopped if nobody uses it until then; zero: never, or
// they are stopped, and thawing them calls Due. A session is used while a program runs that is waited for and
// while a client is attached: no event tells when that is over, so it is then the time to look again.
func (s *Session) IdleAt() time.Time {
	after := time.Duration(s.profile.FreezeAfter)
	if after == 0 || !s.Grouped() {
		return time.Time{}
	}
	attached := s.attached()
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.state != StateReady || s.frozen:
		return time.Time{}
	case attached || s.running > s.lives:
		return time.Now().Add(max(after, time.Second))
	}
	return s.lastUsed.Add(after)
}

// attached reports whether somebody is, or may be without boxd's knowledge.
func (s *Session) attached() bool {
	return slices.ContainsFunc(s.Processes(), (*process.Process).Attached)
}

// FreezeIdle stops the programs of a session that nobody has used, after what memory they do not need was taken
// back. It does nothing if somebody uses it by now.
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
		if s.state != StateReady || s.running > s.lives {
			s.mu.Unlock()
			return nil
		}
		s.frozen, s.asleep = true, true
		s.mu.Unlock()
		s.hooks.Keep(s) // first: to a boxd that finds the box frozen without that, a caller has frozen it
		err := s.setFrozen(true, false)
		if err != nil {
			s.mu.Lock()
			s.asleep = false
			s.lastUsed = time.Now() // not so soon again
			s.mu.Unlock()
			s.hooks.Keep(s)
		}
		return err
	})
}

// IdleSince is since when nothing runs in the session; false if something does, or it is not ready.
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

// BoxKey names the box of the session on the host.
func (s *Session) BoxKey() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return cmp.Or(s.boxKey, s.Key)
}

// SetBoxKey gives the session a box of another name, or with "" one of its own. It has not started yet.
func (s *Session) SetBoxKey(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.boxKey = key
}

// Pinged notes whether PID 1 has given the sign of life it was asked for, and returns how many it has not
// given in a row.
func (s *Session) Pinged(err error) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.missedPings++; !errors.Is(err, client.ErrSilent) {
		s.missedPings = 0
	}
	return s.missedPings
}

// Unhealthy is how many signs of life in a row a PID 1 owes that is given up.
const Unhealthy = 3

// Asleep reports whether the programs are stopped because nobody has used the session.
func (s *Session) Asleep() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asleep
}

// SetAsleep says so of a session that an earlier boxd has left frozen.
func (s *Session) SetAsleep() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asleep = s.frozen
}
