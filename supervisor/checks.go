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

// CheckExec validates a request before a session of the given profile is created for it. Create checks the profile.
func (v *Supervisor) CheckExec(caller access.Principal, profile string, req *session.ExecRequest) error {
	cfg := v.cfg.Load()
	effective := cfg.PolicyOf(caller)
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
	err := v.accounts.TryExecution(caller.Name, &effective)
	if d := fault.DenialOf(err); d != nil && d.After == 0 {
		return nil // waiting may help: others of its owner hold it now
	}
	return err
}

// Revoke stops all processes of principals that have lost access. Their sessions stay, as their files may be needed again.
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

// Work returns how full a session's workspace is, nil if it has no quota.
func (v *Supervisor) Work(ctx context.Context, s *session.Session) *isolation.Disk {
	if source := s.HostWork(); source != "" {
		d, _ := v.boxes.HostQuota(ctx, s.BoxKey(), source) // nil if the session is ending
		return d
	}
	if name := s.Current().Workspace; name != "" {
		return v.Spaces.Disk(s.Owner.Name, name)
	}
	return s.Own(v.Workspaces())
}

// BoundsOwnDisk reports whether the kernel enforces a quota on what a session has on its own disk.
func (v *Supervisor) BoundsOwnDisk() bool { return v.found().Quota != "" }

// CanBound says why the kernel cannot enforce a quota, in bytes and files, on a host directory; nil if it can. It goes by the
// path and by what the keeper has found; only a start examines the directory itself.
func (v *Supervisor) CanBound(path string) error {
	return v.cfg.Load().Roots.Can(v.found().Bounds, path)
}
