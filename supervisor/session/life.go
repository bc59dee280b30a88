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

// Launched tells a session the outcome of its start. If that failed it also wakes those who wait for it; otherwise FinishStart
// must follow.
func (s *Session) Launched(box *client.Box, err error) error {
	s.mu.Lock()
	s.box, s.err, s.lastUsed = box, err, time.Now()
	next := StateReady
	if err != nil {
		next = StateEnded
	}
	transitionErr := s.advanceLocked(next)
	s.mu.Unlock()
	if err != nil {
		s.FinishStart()
		close(s.ended)
		return transitionErr
	}
	s.watch()
	return transitionErr
}

// FinishStart wakes the callers that wait for the start of a session. What other callers may do with it, such as ending it,
// happens after that.
func (s *Session) FinishStart() { close(s.started) }

// Started is closed when the start is over, successful or not.
func (s *Session) Started() <-chan struct{} { return s.started }

// Ended is closed when nothing is left of the session.
func (s *Session) Ended() <-chan struct{} { return s.ended }

// Box is the box of a session that has started successfully.
func (s *Session) Box() *client.Box {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.box
}

// State is the state of the session, and why its start failed. A session is lost if it is ready and its box is gone, which has
// not been handled yet.
func (s *Session) State() (state State, lost bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state, s.state == StateReady && s.box.Gone(), s.err
}

// BeginEnd begins the end of a session that is ready or stopped, and reports whether the caller must carry it out.
func (s *Session) BeginEnd(reason EndReason) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state != StateReady && s.state != StateStopped {
		return false
	}
	_ = s.advanceLocked(StateEnding) // legal from both; nothing can be started now
	s.reason = reason
	s.hooks.Work.Go(s.hooks.Line.Wake) // callers waiting for room get an error; not under this lock
	return true
}

// FinishEnd says that nothing is left of a session that was ending.
func (s *Session) FinishEnd() {
	s.mu.Lock()
	_ = s.advanceLocked(StateEnded) // legal from ending
	s.unwatchLocked()
	s.mu.Unlock()
	close(s.ended)
}

// watch has the session end when its box goes by itself. Until then, or until the session has ended, it counts as work of the
// supervisor.
func (s *Session) watch() {
	s.hooks.Work.Add(1)
	s.mu.Lock()
	s.watching = true
	s.mu.Unlock()
	s.box.Watch(s.boxChanged)
}

// boxChanged is told by the box that it is gone, or that nothing runs in it any more.
func (s *Session) boxChanged(gone bool) {
	if !gone {
		s.hooks.Due(s, time.Time{}) // it may be idle now
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.watching && s.state != StateEnding { // or whoever ends the session has ended its box
		s.markLost()
	}
	s.unwatchLocked()
}

// unwatchLocked is called when a session has no box to watch any more.
func (s *Session) unwatchLocked() {
	if s.watching {
		s.watching = false
		s.hooks.Work.Done()
	}
}

// markLost ends a session whose PID 1 does not work.
func (s *Session) markLost() {
	s.hooks.Work.Go(func() { s.hooks.End(s, EndLost) })
}

// Expiry returns when and why the session ends by itself, if it is ready or stopped; a zero time means never.
func (s *Session) Expiry() (at time.Time, reason EndReason) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state != StateReady && s.state != StateStopped {
		return at, reason
	}
	return s.expiryLocked()
}

// Enforced returns what enforces each of the limits.
func (s *Session) Enforced() map[string]policy.Mechanism { return s.enforced }

// Environment is NAME=value, without variables of a single program.
func (s *Session) Environment() []string { return s.env }

// SetGiven sets variables that override those of Environment for all programs from now on. A program's own take precedence.
func (s *Session) SetGiven(env map[string]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.extraEnv, s.cachedContext = env, nil
}

// Made is the configuration under which the session was created or adopted.
func (s *Session) Made() *policy.Config { return s.createdConfig }

// Profile is the profile of the session.
func (s *Session) Profile() *policy.Profile { return &s.profile }

// Exclusive calls f while nothing else changes the session or freezes it.
func (s *Session) Exclusive(f func() error) error {
	s.changeMu.Lock()
	defer s.changeMu.Unlock()
	return f()
}

// Set replaces the settings of the session.
func (s *Session) Set(settings policy.Settings) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Settings, s.cachedContext = settings, nil
	s.changes++
}

// Changes is how often the settings of the session were replaced.
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
		return s.notReadyErrorLocked()
	}
	return nil
}

// TimeIsUp reports whether the session is ending, or has ended, because of its ttl or its max_lifetime.
func (s *Session) TimeIsUp() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reason == EndIdle || s.reason == EndLifetime
}

// Freeze stops all programs of a session, or lets them continue, and returns when that is done. Nothing can be started in a
// frozen session; timeouts and the lifetime of the session go on.
func (s *Session) Freeze(ctx context.Context, on bool) error {
	if err := s.Await(ctx); err != nil {
		return err
	}
	if !s.Grouped() {
		return fault.Errorf(fault.Unsupported, "cannot freeze session %s: it has no cgroup", fault.Show(s.ID)).
			WithHint("run boxctl doctor to see why")
	}
	err := s.Exclusive(func() error {
		if err := s.Await(ctx); err != nil { // it may have begun to stop or to end meanwhile
			return err
		}
		return s.freeze(on)
	})
	if err != nil {
		return err
	}
	eventType := events.SessionThawed
	if on {
		eventType = events.SessionFrozen
	}
	s.Emit(ctx, events.Event{Type: eventType})
	return nil
}

func (s *Session) freeze(on bool) error {
	s.mu.Lock()
	wasFrozen := s.frozen
	s.frozen = true // until it is known not to be: no program may be started meanwhile
	wasAsleep := s.asleep
	s.asleep = s.asleep && !on // callers that come meanwhile wait for the thaw
	s.lastUsed = time.Now()
	s.mu.Unlock()
	if wasAsleep && on {
		s.hooks.Keep(s) // otherwise the next boxd would thaw what a caller has frozen
	}
	err := s.setFrozen(on, wasFrozen)
	if wasAsleep {
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

// setFrozen freezes or thaws the box, and records the outcome.
func (s *Session) setFrozen(on, wasFrozen bool) error {
	err := s.box.Freeze(on)
	s.mu.Lock()
	s.frozen = on && err == nil || !on && err != nil && wasFrozen
	s.mu.Unlock()
	switch {
	case errors.Is(err, client.ErrBoxLost):
		return s.notReadyError()
	case errors.Is(err, unix.ETIMEDOUT):
		return fault.Errorf(fault.Unavailable, "cannot freeze session %s: a process does not stop", fault.Show(s.ID)).
			WithHint("try again: a process may be waiting for a disk")
	case err != nil:
		return fmt.Errorf("session %q: %w", s.ID, err)
	}
	return nil
}
