// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"time"

	"github.com/boxd-dev/boxd/supervisor/events"
	"github.com/boxd-dev/boxd/supervisor/policy"
	"github.com/boxd-dev/boxd/supervisor/quota"
	"github.com/boxd-dev/boxd/supervisor/session"
)

// Update gives a living session what a request asks for, all of it or nothing. Fields the request leaves
// out stay as they are.
func (v *Supervisor) Update(ctx context.Context, s *session.Session, req *policy.Request) error {
	if err := s.Await(ctx); err != nil {
		return err
	}
	return s.Exclusive(func() error { return v.update(ctx, s, req) })
}

func (v *Supervisor) update(ctx context.Context, s *session.Session, req *policy.Request) error {
	now := s.Current()
	next, err := s.Profile().Change(&now, req)
	if err != nil {
		return err
	}
	held := v.cfg.Load().PolicyOf(s.Owner).For(now.Labels)
	if err := held.SameTenant(now.Labels, next.Labels); err != nil {
		return err
	}
	if err := held.Limits(&next, req); err != nil {
		return err
	}
	if err := req.Fits(v.machine, &next); err != nil {
		return err
	}
	if err := v.accounts.Resize(s.Owner.Name, &held, s.Key, quota.SizeOf(&next)); err != nil {
		return err
	}
	if err := v.changer(s).Apply(ctx, &now, &next); err != nil {
		v.unsize(s, &now)
		return err
	}
	if v.grace > 0 {
		_ = s.Box().SetTimes(v.times(s, time.Now())) // a box that is lost needs none
	}
	v.due(s, time.Time{})
	if err = s.Await(ctx); err != nil { // it has ended
		return err
	}
	s.Emit(ctx, events.Event{Type: events.SessionChanged})
	return nil
}

func (v *Supervisor) changer(s *session.Session) *Updater {
	return &Updater{
		Boxes: v.boxes, Session: s, Keep: func() error { return v.record.Write(s) },
		Enforcement: func(ctx context.Context, next *policy.Settings) (map[string]policy.Mechanism, error) {
			return v.enforcement(ctx, v.cfg.Load(), next)
		},
	}
}

// unsize gives a session the size back that it had, whoever has taken it meanwhile.
func (v *Supervisor) unsize(s *session.Session, was *policy.Settings) {
	held := v.cfg.Load().PolicyOf(s.Owner).For(was.Labels)
	held.Policy = policy.NoPolicy()
	_ = v.accounts.Resize(s.Owner.Name, &held, s.Key, quota.SizeOf(was)) // nothing bounds it
}
