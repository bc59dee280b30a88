// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"strings"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/supervisor/access"
	"github.com/boxd-dev/boxd/supervisor/policy"
	"github.com/boxd-dev/boxd/supervisor/process"
	"github.com/boxd-dev/boxd/supervisor/quota"
	"github.com/boxd-dev/boxd/supervisor/session"
)

// Plan is what a request would result in. Nothing has been started or reserved, and it is true only for now.
type Plan struct {
	Policy   string // the name of the policy that applies, "" if none does
	ID       string // of the session
	Exists   bool   // it exists already, and the request would get it
	Settings *policy.Settings
	Enforced map[string]policy.Mechanism
	Exec     *process.Spec // of an execution
	Refused  error
}

// PlanSession is Create as a dry run. It does not know what only the start of a box finds out, such as whether a directory to
// mount exists.
func (v *Supervisor) PlanSession(ctx context.Context, caller access.Principal, req *policy.Request) *Plan {
	w, err := v.want(ctx, caller, req)
	p := &Plan{Policy: w.effective.Name, ID: req.ID, Enforced: w.enforced, Refused: err}
	if req.MadeUp { // the next one will differ
		p.ID = ""
	}
	if w.profile != nil {
		p.Settings = &w.settings
	}
	if err != nil {
		return p
	}
	v.mu.Lock()
	s := v.sessions[policy.Key(caller.Name, req.ID)]
	if s == nil {
		p.Refused = v.fullLocked(w)
	}
	dir := v.host.Workspaces
	v.mu.Unlock()
	if p.Exists = s != nil; p.Exists {
		p.Refused = different(s, v.differences(s, req, &w.settings))
		return p
	}
	if p.Refused == nil {
		p.Refused = v.accounts.TrySession(caller.Name, &w.effective, quota.SizeOf(&w.settings))
	}
	if p.Refused == nil {
		p.Refused = v.room(dir)
	}
	if p.Refused == nil {
		p.Refused = v.gate.Check(w.cfg.Enabled)
	}
	return p
}

// PlanExec is a dry run of an execution in an existing session.
func (v *Supervisor) PlanExec(s *session.Session, req *session.ExecRequest) *Plan {
	effective := v.cfg.Load().PolicyOf(s.Owner)
	p := &Plan{Policy: effective.Name, ID: s.ID, Exists: true}
	p.Exec, p.Refused = s.Plan(req)
	return p
}

// PlanOneShot is a dry run of an execution in a session of its own.
func (v *Supervisor) PlanOneShot(ctx context.Context, caller access.Principal, req *policy.Request, exec *session.ExecRequest) *Plan {
	p := v.PlanSession(ctx, caller, req)
	if p.Refused != nil {
		return p
	}
	cfg := v.cfg.Load()
	profile := cfg.Profiles[p.Settings.Profile]
	planned := session.Context{Config: cfg, Policy: cfg.PolicyOf(caller).For(p.Settings.Labels), Profile: &profile, Settings: *p.Settings, Enforced: p.Enforced, Env: session.Environment(cfg, p.Settings, req.Env)}
	if p.Exec, p.Refused = planned.Plan(exec, false); p.Refused == nil {
		p.Refused = v.accounts.TryExecution(caller.Name, &planned.Policy)
	}
	return p
}

// different is the refusal if an existing session differs from the request, nil if it does not.
func different(s *session.Session, fields []string) error {
	if len(fields) == 0 {
		return nil
	}
	names := strings.Join(fields, ", ")
	err := fault.Errorf(fault.Conflict, "session %s already exists with a different %s", fault.Show(s.ID), names).
		WithHint("use another name, or remove it first")
	err.Field = names
	return err
}
