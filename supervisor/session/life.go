// SPDX-License-Identifier: Apache-2.0

package session

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation/client"
	"github.com/boxd-dev/boxd/supervisor/events"
	"github.com/boxd-dev/boxd/supervisor/policy"
)

// Launched tells a session what its start has come to, and everybody who waits for that if it has failed; otherwise FinishStart
// must follow.
func (s *Session) Launched(box *client.Box, err error) error {
	s.mu.Lock()
	s.box, s.err, s.lastUsed = box, err, time.Now()
	next := StateReady
	if err != nil {
		next = StateEnded
	}
	move := s.advanceLocked(next)
	s.mu.Unlock()
	if err != nil {
		s.FinishStart()
		close(s.ended)
		return move
	}
	s.hooks.Work.Go(s.watch)
	return move
}

// FinishStart tells everybody who waits for the start of a session that it is over. What others may do with the session, as
// to end it, comes after that.
func (s *Session) FinishStart() { close(s.started) }

// Started is closed when the start is over, well or not.
func (s *Session) Started() <-chan struct{} { return s.started }

// Ended is closed when nothing is left of the session.
func (s *Session) Ended() <-chan struct{} { return s.ended }

// Box is the box of a session that has started well.
func (s *Session) Box() *client.Box {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.box
}

// State is where the session is in its life, and why its start failed. One that is ready and whose box is gone,
// which nobody has seen to yet, is lost.
func (s *Session) State() (state State, lost bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state, s.state == StateReady && s.box.Gone(), s.err
}

// BeginEnd takes a session that is ready or stopped to its end, and reports whether that was for the caller to do.
func (s *Session) BeginEnd(reason EndReason) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state != StateReady && s.state != StateStopped {
		return false
	}
	_ = s.advanceLocked(StateEnding) // legal from both; nothing is begun in it any more
	s.reason = reason
	s.hooks.Work.Go(s.hooks.Line.Wake) // who waits for room need not any more; not under this lock
	return true
}

// FinishEnd says that nothing is left of a session whose end has begun.
func (s *Session) FinishEnd() {
	s.mu.Lock()
	_ = s.advanceLocked(StateEnded) // legal from ending
	s.mu.Unlock()
	close(s.ended)
}

// watch ends the session when its box goes by itself, and returns when it ends.
func (s *Session) watch() {
	for {
		select {
		case <-s.box.Quiet():
			s.hooks.Due(s, time.Time{}) // it may be idle now
		case <-s.box.Done():
			s.hooks.End(s, EndLost)
			return
		case <-s.ended:
			return
		}
	}
}

// markLost ends a session whose PID 1 does not do what it must.
func (s *Session) markLost() {
	s.hooks.Work.Go(func() { s.hooks.End(s, EndLost) })
}

// Expiry returns when the session ends by itself and why, if it is ready or stopped; a zero time is never.
func (s *Session) Expiry() (at time.Time, why EndReason) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state != StateReady && s.state != StateStopped {
		return at, why
	}
	return s.expiryLocked()
}

// Enforced says what keeps each of the limits.
func (s *Session) Enforced() map[string]policy.Mechanism { return s.enforced }

// Environment is NAME=value of every program that adds nothing.
func (s *Session) Environment() []string { return s.env }

// SetGiven gives all programs from now on variables that take the place of those of Environment. What a program has of
// its own goes before.
func (s *Session) SetGiven(env map[string]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.given, s.gives = env, nil
}

// Made is the configuration the session was made, or taken over, under.
func (s *Session) Made() *policy.Config { return s.made }

// Profile is what the session was made by.
func (s *Session) Profile() *policy.Profile { return &s.profile }

// Exclusive calls f while nobody else changes the session or freezes it.
func (s *Session) Exclusive(f func() error) error {
	s.changing.Lock()
	defer s.changing.Unlock()
	return f()
}

// Set gives the session other settings.
func (s *Session) Set(settings policy.Settings) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Settings, s.gives = settings, nil
	s.changes++
}

// Changes is how often the session was given other settings.
func (s *Session) Changes() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changes
}

// Await waits until a session has started, and refuses one that is ending.
func (s *Session) Await(ctx context.Context) error {
	select {
	case <-s.started:
	case <-ctx.Done():
		return ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state != StateReady {
		return s.closedLocked()
	}
	return nil
}

// TimeIsUp reports whether the session ends, or has ended, for a time of its own: its ttl or its max_lifetime.
func (s *Session) TimeIsUp() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reason == EndIdle || s.reason == EndLifetime
}

// Freeze stops all programs of a session where they are, or lets them go on, and returns when that is
// true. Nothing can be started in a frozen session; timeouts and the session's own times go on.
func (s *Session) Freeze(ctx context.Context, on bool) error {
	if err := s.Await(ctx); err != nil {
		return err
	}
	if !s.Grouped() {
		return fault.Errorf(fault.Unsupported, "cannot freeze session %s: it has no cgroup", fault.Show(s.ID)).
			WithHint("run boxctl doctor to see why")
	}
	if err := s.Exclusive(func() error { return s.freeze(on) }); err != nil {
		return err
	}
	what := events.SessionThawed
	if on {
		what = events.SessionFrozen
	}
	s.Emit(ctx, events.Event{Type: what})
	return nil
}

func (s *Session) freeze(on bool) error {
	s.mu.Lock()
	before := s.frozen
	s.frozen = true // until it is known that nothing is: no program may be started meanwhile
	slept := s.asleep
	s.asleep = s.asleep && !on // whoever comes meanwhile waits for the thaw
	s.lastUsed = time.Now()
	s.mu.Unlock()
	if slept && on {
		s.hooks.Keep(s) // or the next boxd wakes what a caller has frozen
	}
	err := s.setFrozen(on, before)
	if slept {
		s.mu.Lock()
		s.asleep = s.asleep && s.frozen
		s.mu.Unlock()
		s.hooks.Keep(s)
	}
	if at := s.IdleAt(); !at.IsZero() {
		s.hooks.Due(s, at)
	}
	return err
}

// setFrozen does it, and says what has come of it.
func (s *Session) setFrozen(on, before bool) error {
	err := s.box.Freeze(on)
	s.mu.Lock()
	s.frozen = on && err == nil || !on && err != nil && before
	s.mu.Unlock()
	switch {
	case errors.Is(err, client.ErrBoxLost):
		return s.closed()
	case errors.Is(err, unix.ETIMEDOUT):
		return fault.Errorf(fault.Unavailable, "cannot freeze session %s: a process does not stop", fault.Show(s.ID)).
			WithHint("try again: a process may be waiting for a disk")
	case err != nil:
		return fmt.Errorf("session %q: %w", s.ID, err)
	}
	return nil
}
