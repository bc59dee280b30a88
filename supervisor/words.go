// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"cmp"
	"context"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/supervisor/access"
	"github.com/boxd-dev/boxd/supervisor/policy"
	"github.com/boxd-dev/boxd/supervisor/process"
	"github.com/boxd-dev/boxd/supervisor/session"
)

// The words of the room of sessions, for callers of this one.
//
//nolint:revive // each is explained where it is made
type (
	Principal      = access.Principal
	Session        = session.Session
	Info           = session.Info
	State          = session.State
	EndReason      = session.EndReason
	ExecRequest    = session.ExecRequest
	ProcessRequest = session.ProcessRequest
	Execution      = session.Execution
	Result         = session.Result
)

// The states and reasons that callers ask for.
const (
	StateReady   = session.StateReady
	Unhealthy    = session.Unhealthy // signs of life in a row that a session has not given
	StatusExited = session.StatusExited
	EndDeleted   = session.EndDeleted
	EndOneShot   = session.EndOneShot
	EndUnclaimed = session.EndUnclaimed
	EndLost      = session.EndLost
	EndShutdown  = session.EndShutdown
)

// IsFull reports whether nothing more fits.
func IsFull(d isolation.Disk) bool { return session.IsFull(d) }

// CheckExec reports what is wrong with a request, before a session is made for it of the profile, which
// Create judges.
func (v *Supervisor) CheckExec(who Principal, profile string, req *ExecRequest) error {
	cfg := v.cfg.Load()
	held := cfg.BoundsOf(who)
	if err := held.May(policy.ToolExec); err != nil {
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
	if _, _, err := held.ExecTimeout(&p, profile, req.Timeout); err != nil {
		return err
	}
	err := v.book.TryExecution(who.Name, &held)
	if d := fault.DenialOf(err); d != nil && d.After == 0 {
		return nil // what others of its owner have now may be waited for
	}
	return err
}

// Exec starts a program in a session and waits for it. If ctx ends, so does the program.
func (v *Supervisor) Exec(ctx context.Context, s *Session, req *ExecRequest) (*Result, error) {
	return s.Exec(ctx, req)
}

// Start starts a program in a session; the caller must close it.
func (v *Supervisor) Start(ctx context.Context, s *Session, req *ExecRequest) (*Execution, error) {
	return s.Start(ctx, req)
}

// StartProcess returns the process of a session with the requested id, and starts it if there is none.
func (v *Supervisor) StartProcess(ctx context.Context, s *Session, req *ProcessRequest) (*process.Process, bool, error) {
	return s.StartProcess(ctx, req)
}

// Process returns the process of an id.
func (v *Supervisor) Process(s *Session, id string) (*process.Process, error) { return s.Process(id) }

// Processes returns the processes of a session, oldest first.
func (v *Supervisor) Processes(s *Session) []*process.Process { return s.Processes() }

// Revoke stops all processes of those who have been shut out. Their sessions stay: what is in them may be wanted again.
func (v *Supervisor) Revoke(isOut func(Principal) bool) {
	for _, s := range v.all() {
		if !isOut(s.Owner) {
			continue
		}
		for _, p := range s.Processes() {
			p.Revoke()
		}
	}
}

// RemoveProcess stops a process and forgets it.
func (v *Supervisor) RemoveProcess(ctx context.Context, s *Session, p *process.Process) error {
	return s.RemoveProcess(ctx, p)
}

// ProcessResult waits for the end of a process and says what its last program has come to.
func (v *Supervisor) ProcessResult(ctx context.Context, s *Session, p *process.Process) (*Result, error) {
	return s.ProcessResult(ctx, p)
}

// ProcessEnd does the same without the output.
func (v *Supervisor) ProcessEnd(ctx context.Context, s *Session, p *process.Process) (*Result, error) {
	return s.ProcessEnd(ctx, p)
}

// Freeze stops all programs of a session where they are, or lets them go on.
func (v *Supervisor) Freeze(ctx context.Context, s *Session, on bool) error { return s.Freeze(ctx, on) }

// Work is how full a session's workspace is, nil if it has no quota.
func (v *Supervisor) Work(ctx context.Context, s *Session) *isolation.Disk {
	if source := s.HostWork(); source != "" {
		d, _ := v.boxes.Held(ctx, s.BoxKey(), source) // nil of one that is ending
		return d
	}
	return s.Work(v.Workspaces())
}

// CanBound says why the kernel cannot keep a quota of a directory of the host, in bytes and files, nil if it can. It goes by
// the path and by what the keeper has found out; a start finds out about the directory itself.
func (v *Supervisor) CanBound(path string) error {
	return v.cfg.Load().Roots.Can(v.found().Bounds, path)
}
