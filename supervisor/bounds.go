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

// want is a validated request for a session.
type want struct {
	caller    access.Principal
	req       *policy.Request // its id is the one the session will have
	cfg       *policy.Config  // the same for the whole request
	effective policy.EffectivePolicy
	settings  policy.Settings
	profile   *policy.Profile
	enforced  map[string]policy.Mechanism
}

// want merges a request with its profile and checks it against the policy of the caller. On a refusal it returns what it has
// found out so far too.
func (v *Supervisor) want(ctx context.Context, caller access.Principal, req *policy.Request) (*want, error) {
	w := &want{caller: caller, req: req, cfg: v.cfg.Load()}
	w.effective = effectivePolicy(w.cfg, caller)
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
	if err = resolveMounts(ctx, v.boxes, &w.effective, caller.UID, w.settings.Mounts); err != nil {
		return w, err
	}
	if err = req.Fits(v.machine, &w.settings); err != nil {
		return w, err
	}
	if w.enforced, err = v.enforcement(ctx, w.cfg, &w.settings); err != nil {
		return w, err
	}
	return w, v.Spaces.Validate(caller.Name, &w.settings, w.enforced)
}

// roomLocked refuses a session beyond the limits, with a *quota.Full, unless boxd is stopping.
func (v *Supervisor) roomLocked(w *want) error {
	err := v.fullLocked(w)
	if full, ok := errors.AsType[*quota.Full](err); ok && full.Reason != quota.Starts {
		return v.evictedLocked(w, full)
	}
	return err
}

// fullLocked is roomLocked without eviction.
func (v *Supervisor) fullLocked(w *want) error {
	const hint = "remove one with boxctl rm, or wait for an idle one to end"
	limits := w.cfg.Sessions
	if v.closed {
		return Stopping()
	}
	if own := v.owned[w.caller.Name]; !w.caller.Is(access.Admin) && own >= limits.MaxPerOwner {
		return &quota.Full{Reason: quota.Owner, Own: true, Err: fault.Errorf(fault.Exhausted, "you have %d of %d sessions (sessions.max_per_owner)", own, limits.MaxPerOwner).WithHint(hint).
			By(fault.Denial{Layer: fault.LayerQuota, Rule: "sessions.max_per_owner", Used: strconv.Itoa(own), Allowed: strconv.Itoa(limits.MaxPerOwner), Setting: "a larger sessions.max_per_owner"})}
	}
	return v.spaceLocked(w)
}

// spaceLocked refuses a box beyond the limit. A stopped session has no box.
func (v *Supervisor) spaceLocked(w *want) error {
	const hint = "remove or stop one (boxctl rm, boxctl stop), or wait for an idle one to end"
	if v.closed {
		return Stopping()
	}
	if living, limit := v.livingLocked(), w.cfg.Sessions.Max; living >= limit {
		return &quota.Full{Reason: quota.Sessions, Err: fault.Errorf(fault.Exhausted, "boxd has %d of %d sessions, %d of them yours (sessions.max)", living, limit, v.ownLivingLocked(w.caller.Name)).WithHint(hint).
			By(fault.Denial{Layer: fault.LayerQuota, Rule: "sessions.max", Used: strconv.Itoa(living), Allowed: strconv.Itoa(limit), Setting: "a larger sessions.max"})}
	}
	if limit := w.cfg.Queue.AtOnce(); v.starting >= limit {
		return &quota.Full{Reason: quota.Starts, Soon: true, Err: fault.Errorf(fault.Unavailable, "%d sessions are starting, the limit (queue.starts)", limit).
			WithHint("try again")}
	}
	return nil
}

// ownLivingLocked returns how many of an owner's sessions have a box.
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

// reading returns the present usage of a session.
func (v *Supervisor) reading(s *session.Session) quota.Reading {
	r := quota.Reading{Memory: s.Current().Memory, Counted: s.Grouped()}
	if s.Box() == nil { // only its disk usage is left
		r = quota.Reading{Space: true}
	}
	if d := s.Own(v.Workspaces()); d != nil { // a named workspace is counted once, elsewhere
		r.Disk = quantity.Size(d.Used)
	}
	if u := s.Usage(); u != nil {
		r.CPU = u.CPU
	}
	return r
}

// readings returns the present usage of all sessions.
func (v *Supervisor) readings() map[string]quota.Reading {
	all := v.all()
	list := make(map[string]quota.Reading, len(all))
	for _, s := range all {
		select {
		case <-s.Started():
			list[s.Key] = v.reading(s)
		default: // not counted until it has started
		}
	}
	return v.Spaces.Readings(list)
}

// CreateSpace creates a named workspace that sessions of the principal can use.
func (v *Supervisor) CreateSpace(ctx context.Context, caller access.Principal, w volumes.WorkspaceRequest) (volumes.Workspace, error) {
	effective := v.cfg.Load().PolicyOf(caller)
	host, err := v.lookAtHost(ctx)
	if err != nil {
		return volumes.Workspace{}, err
	}
	return v.Spaces.Create(ctx, caller.Name, &effective, host, w)
}

// Usage returns what a principal, or every principal, has used on the last recorded days.
func (v *Supervisor) Usage(caller access.Principal, allOwners bool, days int) ([]quota.Row, error) {
	name := caller.Name
	if allOwners {
		name = ""
	}
	return v.ledger.Rows(name, days)
}

// Refused counts a request of a principal that a rule has refused.
func (v *Supervisor) Refused(principal string) { v.ledger.Refuse(principal) }

// UsedInAll returns what all principals together have used since this boxd started.
func (v *Supervisor) UsedInAll() quota.Use { return v.ledger.Total() }

// Holding is how much of a limited resource a principal holds.
type Holding struct {
	Rule          string
	Used, Allowed float64
}

// Holdings returns what a principal holds of each limited resource, and the name of its policy.
func (v *Supervisor) Holdings(caller access.Principal) (name string, list []Holding) {
	effective := v.cfg.Load().PolicyOf(caller)
	now := v.accounts.Standing(caller.Name)
	today, _ := v.ledger.Used(caller.Name)
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
