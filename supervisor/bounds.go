// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"errors"
	"strconv"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/supervisor/access"
	"github.com/boxd-dev/boxd/supervisor/quota"
	"github.com/boxd-dev/boxd/supervisor/session"

	"github.com/boxd-dev/boxd/supervisor/policy"
	"github.com/boxd-dev/boxd/supervisor/volumes"
)

// want is what a request for a session has come to.
type want struct {
	who       access.Principal
	req       *policy.Request // its id is the one the session is to have
	cfg       *policy.Config  // one for the whole of the request
	effective policy.EffectivePolicy
	settings  policy.Settings
	profile   *policy.Profile
	enforced  map[string]policy.Mechanism
}

// want merges a request with its profile and holds it against the bounds of who asks. What it has found out
// until a refusal is there too.
func (v *Supervisor) want(ctx context.Context, who access.Principal, req *policy.Request) (*want, error) {
	w := &want{who: who, req: req, cfg: v.cfg.Load()}
	w.effective = effectivePolicy(w.cfg, who)
	id, err := w.cfg.SessionID(&w.effective, req)
	if err != nil {
		return w, err
	}
	req.ID = id
	if w.settings, w.profile, err = w.cfg.Merge(req); err != nil {
		return w, err
	}
	w.effective = w.effective.For(w.settings.Labels)
	if err = w.effective.Hold(&w.settings, req); err != nil {
		return w, err
	}
	if w.settings.Root, err = v.Attachments.Root(w.settings.Image); err != nil {
		return w, err
	}
	if err = resolveMounts(ctx, v.boxes, &w.effective, who.UID, w.settings.Mounts); err != nil {
		return w, err
	}
	if err = req.Fits(v.machine, &w.settings); err != nil {
		return w, err
	}
	if w.enforced, err = v.enforcement(ctx, w.cfg, &w.settings); err != nil {
		return w, err
	}
	return w, v.Spaces.Validate(who.Name, &w.settings, w.enforced)
}

// roomLocked refuses a session that would be one too many, whoever asks: an *quota.Full, but for a boxd that
// stops.
func (v *Supervisor) roomLocked(w *want) error {
	err := v.fullLocked(w)
	if full, ok := errors.AsType[*quota.Full](err); ok && full.Reason != quota.Starts {
		return v.evictedLocked(w, full)
	}
	return err
}

// fullLocked is roomLocked that makes no room.
func (v *Supervisor) fullLocked(w *want) error {
	const hint = "remove one with boxctl rm, or wait for an idle one to end"
	limits := w.cfg.Sessions
	if v.closed {
		return Stopping()
	}
	if own := v.owned[w.who.Name]; !w.who.Is(access.Admin) && own >= limits.MaxPerOwner {
		return &quota.Full{Reason: quota.Owner, Own: true, Err: fault.Errorf(fault.Exhausted, "you have %d of %d sessions (sessions.max_per_owner)", own, limits.MaxPerOwner).WithHint(hint).
			By(fault.Denial{Layer: fault.LayerQuota, Rule: "sessions.max_per_owner", Used: strconv.Itoa(own), Allowed: strconv.Itoa(limits.MaxPerOwner), Setting: "a larger sessions.max_per_owner"})}
	}
	return v.spaceLocked(w)
}

// spaceLocked refuses a box that would be one too many. A session that is stopped has none.
func (v *Supervisor) spaceLocked(w *want) error {
	const hint = "remove or stop one (boxctl rm, boxctl stop), or wait for an idle one to end"
	if v.closed {
		return Stopping()
	}
	if living, most := v.livingLocked(), w.cfg.Sessions.Max; living >= most {
		return &quota.Full{Reason: quota.Sessions, Err: fault.Errorf(fault.Exhausted, "boxd has %d of %d sessions, %d of them yours (sessions.max)", living, most, v.ownLivingLocked(w.who.Name)).WithHint(hint).
			By(fault.Denial{Layer: fault.LayerQuota, Rule: "sessions.max", Used: strconv.Itoa(living), Allowed: strconv.Itoa(most), Setting: "a larger sessions.max"})}
	}
	if most := w.cfg.Queue.AtOnce(); v.starting >= most {
		return &quota.Full{Reason: quota.Starts, Soon: true, Err: fault.Errorf(fault.Unavailable, "%d sessions are starting, the limit (queue.starts)", most).
			WithHint("try again")}
	}
	return nil
}

// ownLivingLocked is how many of an owner's sessions have a box.
func (v *Supervisor) ownLivingLocked(owner string) int {
	n := v.owned[owner]
	for s := range v.stopped {
		if s.Owner.Name == owner {
			n--
		}
	}
	return n
}

// forget takes a session off the list, with what it had reserved.
func (v *Supervisor) forget(s *session.Session) {
	v.mu.Lock()
	v.leaveLocked(s)
	v.accounts.Release(s.Owner.Name, s.Key)
	v.mu.Unlock()
}

// May refuses a tool that the owner of a session may not use in it: see policy.Tools.
func (v *Supervisor) May(s *session.Session, tool string) error {
	effective := v.cfg.Load().PolicyOf(s.Owner)
	return effective.May(tool)
}

// reading is what a session has at the moment.
func (v *Supervisor) reading(s *session.Session) quota.Reading {
	r := quota.Reading{Memory: s.Current().Memory, Counted: s.Grouped()}
	if s.Box() == nil { // what it holds on disk is all
		r = quota.Reading{Space: true}
	}
	if d := s.Work(v.Workspaces()); d != nil && s.Current().Workspace == "" { // one that is lent is counted once
		r.Disk = quantity.Size(d.Used)
	}
	if u := s.Usage(); u != nil {
		r.CPU = u.CPU
	}
	return r
}

// readings are those of all sessions.
func (v *Supervisor) readings() map[string]quota.Reading {
	all := v.all()
	list := make(map[string]quota.Reading, len(all))
	for _, s := range all {
		select {
		case <-s.Started():
			list[s.Key] = v.reading(s)
		default: // it is not counted yet
		}
	}
	return v.Spaces.Readings(list)
}

// CreateSpace makes a workspace that sessions of a principal can be lent.
func (v *Supervisor) CreateSpace(ctx context.Context, who access.Principal, w volumes.WorkspaceRequest) (volumes.Workspace, error) {
	effective := v.cfg.Load().PolicyOf(who)
	host, err := v.lookAtHost(ctx)
	if err != nil {
		return volumes.Workspace{}, err
	}
	return v.Spaces.Create(ctx, who.Name, &effective, host, w)
}

// Usage is what a principal, or everybody, has used on the last days that there are.
func (v *Supervisor) Usage(who access.Principal, everybody bool, days int) ([]quota.Row, error) {
	name := who.Name
	if everybody {
		name = ""
	}
	return v.ledger.Rows(name, days)
}

// Refused counts a request of a principal that a rule has refused.
func (v *Supervisor) Refused(who string) { v.ledger.Refuse(who) }

// UsedToday is what everybody has used on this day, from memory alone.
func (v *Supervisor) UsedToday() []quota.Row { return v.ledger.Today() }

// UsedInAll is what all principals have used since this boxd began.
func (v *Supervisor) UsedInAll() quota.Use { return v.ledger.Total() }

// Holding is what a principal has of something that a rule bounds.
type Holding struct {
	Rule          string
	Used, Allowed float64
}

// Holdings is what a principal has of all that its bounds count, and their name.
func (v *Supervisor) Holdings(who access.Principal) (name string, list []Holding) {
	effective := v.cfg.Load().PolicyOf(who)
	now := v.accounts.Standing(who.Name)
	today, _ := v.ledger.Used(who.Name)
	for _, h := range []Holding{
		{"sessions", float64(now.Sessions), float64(effective.Sessions)},
		{"processes", float64(now.Processes), float64(effective.Processes)},
		{"executions", float64(now.Executions), float64(effective.Executions)},
		{"executions_per_day", float64(today), float64(effective.PerDay)},
		{"total_memory", float64(now.Memory), float64(effective.Memory)},
		{"total_cpus", now.CPUs, effective.CPUs},
	} {
		if h.Allowed > 0 {
			h.Rule = effective.Rule(h.Rule)
			list = append(list, h)
		}
	}
	return effective.Name, list
}
