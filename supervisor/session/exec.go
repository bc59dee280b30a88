// SPDX-License-Identifier: Apache-2.0

package session

import (
	"context"
	"errors"
	"time"

	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/client"

	"github.com/boxd-dev/boxd/supervisor/events"
	"github.com/boxd-dev/boxd/supervisor/process"
)

// execution is a running program whose caller waits for it.
type execution struct {
	session     *Session
	callerCtx   context.Context //nolint:containedctx // whose request it is of, for what is told of it; nothing waits for it
	spec        *process.Spec
	program     *client.Program
	release     func()         // gives back what was reserved
	releaseTurn func()         // gives back its start turn
	deadline    *process.Timer // ends the session
}

// context returns what the session provides to its programs. It is cached until the configuration or the session changes:
// finding the policy of an owner takes longer than starting a program. It is never modified.
func (s *Session) context() *Context {
	cfg := s.hooks.Config()
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.cachedContext; c != nil && c.Config == cfg {
		return c
	}
	s.cachedContext = &Context{Config: cfg, Policy: cfg.PolicyOf(s.Owner).For(s.Settings.Labels), Profile: &s.profile, Settings: s.Settings, Enforced: s.enforced, Env: withEnv(s.env, s.extraEnv)}
	return s.cachedContext
}

// Plan returns what an execution would be, or why it is refused. It starts nothing and uses up nothing of its owner's limits.
func (s *Session) Plan(req *ExecRequest) (*process.Spec, error) {
	current := s.context()
	spec, err := current.Plan(req, false)
	if err != nil {
		return nil, err
	}
	if err := s.checkSlot(current.Config.Exec.MaxPerSession); err != nil {
		return spec, err
	}
	return spec, s.hooks.Accounts.TryExecution(s.Owner.Name, &current.Policy)
}

// Exec waits for a session to start, starts a program in it, and waits for that. If ctx ends, so does the program.
func (s *Session) Exec(ctx context.Context, req *ExecRequest) (*Result, error) {
	e, err := s.start(ctx, req)
	if err != nil {
		return nil, err
	}
	defer e.close()
	return e.wait(ctx)
}

func (s *Session) start(ctx context.Context, req *ExecRequest) (*execution, error) {
	current := s.context()
	spec, err := current.Plan(req, false)
	if err != nil {
		return nil, err
	}
	files, err := spec.Files()
	if err != nil {
		return nil, err
	}
	defer process.CloseFiles(&files)
	spec.Script, spec.Input = nil, nil // free them, as they may be long
	select {
	case <-s.started:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	var box *client.Box
	var release func()
	err = s.admit(ctx, req.Wait, func() (err error) {
		box, release, err = s.reserve(current)
		return err
	})
	if err != nil {
		return nil, err
	}
	releaseTurn, err := s.hooks.Turns.Begin(ctx, s.Owner.Name)
	if err != nil {
		release()
		s.endExec()
		return nil, err
	}
	p, err := box.Start(&spec.Command, files)
	if err != nil {
		releaseTurn()
		release()
		s.endExec()
		if errors.Is(err, client.ErrBoxLost) {
			return nil, s.notReadyError()
		}
		return nil, err
	}
	s.hooks.Executed.Add(1)
	s.Emit(ctx, events.Event{Type: events.ExecStarted})
	e := &execution{session: s, callerCtx: context.WithoutCancel(ctx), spec: spec, program: p, release: release, releaseTurn: releaseTurn}
	e.deadline = process.After(spec.Command.Timeout+process.KillPatience, e.markLost)
	return e, nil
}

// reserve admits one execution, if its session and its owner's limits have room; release gives back what was reserved.
func (s *Session) reserve(current *Context) (box *client.Box, release func(), err error) {
	limit := current.Config.Exec.MaxPerSession
	if err := s.checkSlot(limit); err != nil { // before anything of the owner's day is used up
		return nil, nil, err
	}
	if release, err = s.hooks.Accounts.Execution(s.Owner.Name, &current.Policy); err != nil {
		return nil, nil, err
	}
	if box, err = s.beginExec(limit, time.Now()); err != nil {
		release()
	}
	return box, release, err
}

// markLost ends the session of a program that exists past its deadline. All deadlines are kept by PID 1; one that misses them
// is unusable. The program ends with the session, so a caller that waits for it does not wait longer.
func (e *execution) markLost() {
	select {
	case <-e.program.Exited(): // its output may not have been read yet
	default:
		e.session.markLost()
	}
}

// wait waits for the end of the program. If ctx ends first the program is killed, and the result
// says canceled.
func (e *execution) wait(ctx context.Context) (*Result, error) {
	canceled := false
	for done := ctx.Done(); ; {
		select {
		case <-e.program.Exited():
			return e.result(canceled)
		case <-done:
			done, canceled = nil, true
			if e.deadline.Left() > process.KillPatience {
				e.deadline.Reset(process.KillPatience)
			}
			_ = e.program.Kill() // if the box is gone, Exited is closed
		}
	}
}

// result reports the outcome of the program, to its caller and as an event.
func (e *execution) result(canceled bool) (*Result, error) {
	exit, err := e.program.Wait(e.callerCtx) // returns at once
	if step, ok := errors.AsType[*isolation.StepError](err); ok {
		if err := e.session.limitHit(step); err != nil {
			e.session.Emit(e.callerCtx, events.Event{Type: events.ExecEnded, Reason: string(StatusStartFailed), Detail: err.Error()})
			return nil, err
		}
	}
	r, err := e.session.result(e.spec, exit, err, e.program.Group(), e.program.Retained, canceled)
	e.session.emitResult(e.callerCtx, events.Event{Type: events.ExecEnded}, r, err)
	return r, err
}

// close releases a program that has ended.
func (e *execution) close() {
	e.releaseTurn()
	e.deadline.Stop()
	if exit, err := e.program.Wait(e.callerCtx); err == nil { // returns at once
		e.session.accountCPU(exit)
	}
	e.program.Close()
	e.release()
	e.session.endExec()
}

// accountCPU accounts for a program's CPU time if the box has no cgroups that do.
func (s *Session) accountCPU(exit *isolation.Exit) {
	if !s.Grouped() {
		s.hooks.Used(s.Owner.Name, exit.UserTime+exit.SystemTime)
	}
}

// endExec ends an execution, and tells the reaper when the session expires now.
func (s *Session) endExec() {
	if at := s.finishExec(time.Now()); !at.IsZero() {
		s.hooks.Due(s, at)
	}
	s.hooks.Line.Wake()
}
