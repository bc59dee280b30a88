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
	"github.com/boxd-dev/boxd/supervisor/events"
	"github.com/boxd-dev/boxd/supervisor/policy"
	"github.com/boxd-dev/boxd/supervisor/quota"
	"github.com/boxd-dev/boxd/supervisor/session"
)

// Update gives a living session what a request asks for, all of it or nothing. Fields the request leaves
// out stay as they are.
func (v *Supervisor) Update(ctx context.Context, s *Session, req *policy.Request) error {
	if err := s.Await(ctx); err != nil {
		return err
	}
	return s.Exclusive(func() error { return v.update(ctx, s, req) })
}

func (v *Supervisor) update(ctx context.Context, s *Session, req *policy.Request) error {
	now := s.Current()
	next, err := s.Profile().Change(&now, req)
	if err != nil {
		return err
	}
	held := v.cfg.Load().BoundsOf(s.Owner)
	if err := held.Limits(&next, req); err != nil {
		return err
	}
	if err := req.Fits(v.machine, &next); err != nil {
		return err
	}
	if err := v.book.Resize(s.Owner.Name, &held, s.Key, quota.SizeOf(&next)); err != nil {
		return err
	}
	if err := v.limit(ctx, s, &now, &next); err != nil {
		v.unsize(s, &now)
		return err
	}
	s.Set(next)
	if err := v.writeRecord(s); err != nil {
		s.Set(now)
		v.unsize(s, &now)
		return errors.Join(err, v.limit(ctx, s, &next, &now))
	}
	if v.grace > 0 {
		_ = s.Box().SetTimes(v.times(s, time.Now())) // a box that is lost needs none
	}
	v.wakeReaper()
	if err = s.Await(ctx); err != nil { // it has ended, and its record may have been removed before
		v.removeRecord(s)
		return err
	}
	s.Tell(ctx, events.Event{Type: events.SessionChanged})
	return nil
}

// unsize gives a session the size back that it had, whoever has taken it meanwhile.
func (v *Supervisor) unsize(s *Session, was *policy.Settings) {
	held := policy.Held{Bounds: policy.NoBounds()}
	_ = v.book.Resize(s.Owner.Name, &held, s.Key, quota.SizeOf(was)) // nothing bounds it
}

// limit changes what the kernel keeps. What it does not keep cannot be changed while programs run that
// have started under the old limit.
func (v *Supervisor) limit(ctx context.Context, s *Session, now, next *policy.Settings) error {
	old, limits := policy.Groups(now), policy.Groups(next)
	work := policy.Work(next, s.Enforced())
	if old == limits && work == policy.Work(now, s.Enforced()) && (now.WorkspaceQuota == next.WorkspaceQuota || work.Bytes > 0) {
		return nil
	}
	by, err := v.enforcement(ctx, v.cfg.Load(), next)
	if err != nil {
		return err
	}
	if old != limits && !s.Grouped() || !maps.Equal(by, s.Enforced()) {
		return fault.Errorf(fault.Unsupported, "the limits of session %s cannot be changed: not all of them are kept by the kernel", fault.Show(s.ID)).
			WithHint("make another session with the limits you want")
	}
	err = v.boxes.SetLimits(ctx, s.BoxKey(), &limits, work)
	step, ok := errors.AsType[*isolation.StepError](err)
	switch {
	case err == nil:
		return nil
	case ok && step.Refused != nil:
		r := step.Refused
		return fault.Field(r.Field, r.Value, r.Allowed).Of(fault.Conflict).WithHint("end some of its programs, or remove some of its files, first")
	case errors.Is(err, unix.ESRCH):
		return session.Gone(s.ID)
	}
	return fmt.Errorf("set the limits of session %q: %w", s.ID, err)
}
