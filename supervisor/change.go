// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/supervisor/events"
	"github.com/boxd-dev/boxd/supervisor/policy"
	"github.com/boxd-dev/boxd/supervisor/quota"
	"github.com/boxd-dev/boxd/supervisor/session"
)

// Update changes a session as requested, completely or not at all. Fields the request leaves out stay as they are.
func (v *Supervisor) Update(ctx context.Context, s *session.Session, req *policy.Request) error {
	if state, _, _ := s.State(); state == session.StateStopped {
		return s.Exclusive(func() error { return v.updateStopped(ctx, s, req) })
	}
	if err := s.Await(ctx); err != nil {
		return err
	}
	return s.Exclusive(func() error { return v.update(ctx, s, req) })
}

// changed returns the settings of a session after a requested change, if its owner may have them.
func (v *Supervisor) changed(s *session.Session, now *policy.Settings, req *policy.Request) (next policy.Settings, effective policy.EffectivePolicy, err error) {
	if next, err = s.Profile().Change(now, req); err != nil {
		return next, effective, err
	}
	effective = v.cfg.Load().PolicyOf(s.Owner).For(now.Labels)
	if err := effective.SameTenant(now.Labels, next.Labels); err != nil {
		return next, effective, err
	}
	if err := effective.Limits(&next, req); err != nil {
		return next, effective, err
	}
	return next, effective, req.Fits(v.machine, &next)
}

// updateStopped changes what a stopped session is started with. It reserves nothing and changes nothing in the kernel: the next
// start is checked against the limits of that time.
func (v *Supervisor) updateStopped(ctx context.Context, s *session.Session, req *policy.Request) error {
	now := s.Current()
	next, _, err := v.changed(s, &now, req)
	if err != nil {
		return err
	}
	if _, err := v.enforcement(ctx, v.cfg.Load(), &next); err != nil {
		return err
	}
	work := v.Work(ctx, s)
	if now.Workspace != "" { // which has a quota of its own
		work = s.Own(v.Workspaces())
	}
	if work != nil && next.WorkspaceQuota < now.WorkspaceQuota && quantity.Size(work.Used) > next.WorkspaceQuota {
		return fault.Field("workspace_quota", next.WorkspaceQuota, "at least "+quantity.Size(work.Used).String()+", which is used").Of(fault.Conflict).WithHint("start the session and remove some of its files first")
	}
	if work != nil && next.WorkspaceInodes < now.WorkspaceInodes && work.Files > uint64(max(next.WorkspaceInodes, 0)) {
		return fault.Field("workspace_inodes", next.WorkspaceInodes, fmt.Sprintf("at least %d, which are used", work.Files)).Of(fault.Conflict).WithHint("start the session and remove some of its files first")
	}
	if err := v.setStopped(s, &next); err != nil {
		return err
	}
	if err := v.record.Write(s); err != nil {
		return errors.Join(err, v.setStopped(s, &now))
	}
	s.Emit(ctx, events.Event{Type: events.SessionChanged})
	v.due(s, time.Time{})
	return nil
}

// setStopped changes the settings of a session that is still stopped. A start being decided on comes before, or sees them.
func (v *Supervisor) setStopped(s *session.Session, settings *policy.Settings) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if state, _, _ := s.State(); state != session.StateStopped || v.sessions[s.Key] != s {
		return fault.Errorf(fault.Conflict, "session %s is being started or removed", fault.Show(s.ID)).WithHint("try again")
	}
	s.Set(*settings)
	return nil
}

func (v *Supervisor) update(ctx context.Context, s *session.Session, req *policy.Request) error {
	now := s.Current()
	next, effective, err := v.changed(s, &now, req)
	if err != nil {
		return err
	}
	if err := v.accounts.Resize(s.Owner.Name, &effective, s.Key, quota.SizeOf(&next)); fault.KindOf(err) == fault.Exhausted {
		return v.holders(&want{caller: s.Owner, effective: effective}, &quota.Full{Reason: quota.Owner, Own: true, Err: err}).Refusal()
	} else if err != nil {
		return err
	}
	if err := v.changer(s).Apply(ctx, &now, &next); err != nil {
		v.unsize(s, &now)
		return err
	}
	if v.grace > 0 {
		_ = s.Box().SetTimes(v.times(s, time.Now())) // not needed if the box is lost
	}
	defer v.due(s, time.Time{})                          // after the event: the change itself may end the session
	if err = s.Await(ctx); err != nil && !s.TimeIsUp() { // ended, and not by the limits it was just given
		return err
	}
	s.Emit(ctx, events.Event{Type: events.SessionChanged})
	return nil
}

func (v *Supervisor) changer(s *session.Session) *updater {
	return &updater{
		Boxes: v.boxes, Session: s, Keep: func() error { return v.record.Write(s) },
		Enforcement: func(ctx context.Context, next *policy.Settings) (map[string]policy.Mechanism, error) {
			return v.enforcement(ctx, v.cfg.Load(), next)
		},
	}
}

// unsize gives a session back what it had reserved, even if others have taken it meanwhile.
func (v *Supervisor) unsize(s *session.Session, was *policy.Settings) {
	effective := v.cfg.Load().PolicyOf(s.Owner).For(was.Labels)
	effective.Policy = policy.NoPolicy()
	_ = v.accounts.Resize(s.Owner.Name, &effective, s.Key, quota.SizeOf(was)) // no policy, so this cannot fail
}
