// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/client"
	"github.com/boxd-dev/boxd/supervisor/policy"
)

// Update gives a living session what a request asks for, all of it or nothing. Fields the request leaves
// out stay as they are.
func (v *Supervisor) Update(ctx context.Context, s *Session, req *policy.Request) error {
	if err := s.await(ctx); err != nil {
		return err
	}
	s.changing.Lock()
	defer s.changing.Unlock()
	now := s.settings()
	next, err := s.profile.Change(&now, req)
	if err != nil {
		return err
	}
	if err := req.Fits(v.machine); err != nil {
		return err
	}
	if err := v.limit(ctx, s, &now, &next); err != nil {
		return err
	}
	s.mu.Lock()
	s.Settings = next
	s.mu.Unlock()
	if err := v.writeRecord(s); err != nil {
		s.mu.Lock()
		s.Settings = now
		s.mu.Unlock()
		return errors.Join(err, v.limit(ctx, s, &next, &now))
	}
	if v.grace > 0 {
		_ = s.box.SetTimes(v.times(s, time.Now())) // a box that is lost needs none
	}
	v.wakeReaper()
	if err = s.await(ctx); err != nil { // it has ended, and its record may have been removed before
		v.removeRecord(s)
	}
	return err
}

// limit changes what the kernel keeps. What it does not keep cannot be changed while programs run that
// have started under the old limit.
func (v *Supervisor) limit(ctx context.Context, s *Session, now, next *policy.Settings) error {
	old, limits := policy.Groups(now), policy.Groups(next)
	work := policy.Work(next, s.enforced)
	if old == limits && work == policy.Work(now, s.enforced) && (now.WorkspaceQuota == next.WorkspaceQuota || work.Bytes > 0) {
		return nil
	}
	by, err := v.enforcement(ctx, v.cfg.Load(), next)
	if err != nil {
		return err
	}
	if old != limits && !s.grouped() || !maps.Equal(by, s.enforced) {
		return fault.Errorf(fault.Unsupported, "the limits of session %s cannot be changed: not all of them are kept by the kernel", fault.Show(s.ID)).
			WithHint("make another session with the limits you want")
	}
	err = v.boxes.SetLimits(ctx, s.Key, &limits, work)
	step, ok := errors.AsType[*isolation.StepError](err)
	switch {
	case err == nil:
		return nil
	case ok && step.Refused != nil:
		r := step.Refused
		return fault.Field(r.Field, r.Value, r.Allowed).Of(fault.Conflict).WithHint("end some of its programs, or remove some of its files, first")
	case errors.Is(err, unix.ESRCH):
		return gone(s.ID)
	}
	return fmt.Errorf("set the limits of session %q: %w", s.ID, err)
}

// await waits until a session has started, and refuses one that is ending.
func (s *Session) await(ctx context.Context) error {
	select {
	case <-s.started:
	case <-ctx.Done():
		return ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state != StateReady {
		return gone(s.ID)
	}
	return nil
}

// Freeze stops all programs of a session where they are, or lets them go on, and returns when that is
// true. Nothing can be started in a frozen session; timeouts and the session's own times go on.
func (v *Supervisor) Freeze(ctx context.Context, s *Session, on bool) error {
	if err := s.await(ctx); err != nil {
		return err
	}
	if !s.grouped() {
		return fault.Errorf(fault.Unsupported, "session %s cannot be frozen: it has no control groups", fault.Show(s.ID)).
			WithHint("boxctl doctor says why")
	}
	s.changing.Lock()
	defer s.changing.Unlock()
	s.mu.Lock()
	before := s.frozen
	s.frozen = true // until it is known that nothing is: no program may be started meanwhile
	s.mu.Unlock()
	err := s.box.Freeze(on)
	s.mu.Lock()
	s.frozen = on && err == nil || !on && err != nil && before
	s.lastUsed = time.Now()
	s.mu.Unlock()
	switch {
	case errors.Is(err, client.ErrBoxLost):
		return gone(s.ID)
	case errors.Is(err, unix.ETIMEDOUT):
		return fault.Errorf(fault.Unavailable, "session %s: some process does not stop; it runs on", fault.Show(s.ID)).
			WithHint("a process that waits for a disk stops when that answers; try again")
	case err != nil:
		return fmt.Errorf("session %q: %w", s.ID, err)
	}
	return nil
}
