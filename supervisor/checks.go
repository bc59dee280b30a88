// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"cmp"
	"context"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/supervisor/access"
	"github.com/boxd-dev/boxd/supervisor/policy"
	"github.com/boxd-dev/boxd/supervisor/session"
)

// CheckExec reports what is wrong with a request, before a session is made for it of the profile, which
// Create judges.
func (v *Supervisor) CheckExec(who access.Principal, profile string, req *session.ExecRequest) error {
	cfg := v.cfg.Load()
	effective := cfg.PolicyOf(who)
	if err := effective.May(policy.ToolExec); err != nil {
		return err
	}
	if err := req.Validate(cfg); err != nil {
		return err
	}
	profile = cmp.Or(profile, cfg.Sessions.DefaultProfile)
	p, ok := cfg.Profiles[profile]
	if !ok {
		return nil
	}
	if _, _, err := effective.ExecTimeout(&p, profile, req.Timeout); err != nil {
		return err
	}
	err := v.accounts.TryExecution(who.Name, &effective)
	if d := fault.DenialOf(err); d != nil && d.After == 0 {
		return nil // what others of its owner have now may be waited for
	}
	return err
}

// Revoke stops all processes of those who have been shut out. Their sessions stay: what is in them may be wanted again.
func (v *Supervisor) Revoke(isOut func(access.Principal) bool) {
	for _, s := range v.all() {
		if !isOut(s.Owner) {
			continue
		}
		for _, p := range s.Processes() {
			p.Revoke()
		}
	}
}

// Work is how full a session's workspace is, nil if it has no quota.
func (v *Supervisor) Work(ctx context.Context, s *session.Session) *isolation.Disk {
	if source := s.HostWork(); source != "" {
		d, _ := v.boxes.HostQuota(ctx, s.BoxKey(), source) // nil of one that is ending
		return d
	}
	return s.Work(v.Workspaces())
}

// BoundsOwnDisk reports whether the kernel keeps the quota of what a session has on disk of its own.
func (v *Supervisor) BoundsOwnDisk() bool { return v.found().Quota != "" }

// CanBound says why the kernel cannot keep a quota of a directory of the host, in bytes and files, nil if it can. It goes by
// the path and by what the keeper has found out; a start finds out about the directory itself.
func (v *Supervisor) CanBound(path string) error {
	return v.cfg.Load().Roots.Can(v.found().Bounds, path)
}
