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

// execution is a program under way that its caller waits for.
type execution struct {
	session *Session
	caller  context.Context //nolint:containedctx // whose request it is of, for what is told of it; nothing waits for it
	spec    *process.Spec
	program *client.Program
	release func()         // gives back what was reserved
	over    func()         // gives back its turn
	late    *process.Timer // ends the session
}

// context is what a session gives to its programs. It is made once for each configuration and change of the session: to find
// the policy of an owner takes longer than to begin a program. Nobody changes it.
func (s *Session) context() *Context {
	cfg := s.hooks.Config()
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.gives; c != nil && c.Config == cfg {
		return c
	}
	s.gives = &Context{Config: cfg, Policy: cfg.PolicyOf(s.Owner).For(s.Settings.Labels), Profile: &s.profile, Settings: s.Settings, Enforced: s.enforced, Env: WithEnv(s.env, s.given)}
	return s.gives
}

// Plan says what an execution would be, and why not. It starts nothing and takes nothing of what its owner may
// have.
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

// Exec starts a program in a session, once that has started itself, and waits for it. If ctx ends, so does the program.
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
	spec.Script, spec.Input = nil, nil // they may be long
	select {
	case <-s.started:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	var box *client.Box
	var release func()
	err = s.admit(ctx, req.Wait, func() (err error) {
		box, release, err = s.take(current)
		return err
	})
	if err != nil {
		return nil, err
	}
	over, err := s.hooks.Turns.Begin(ctx, s.Owner.Name)
	if err != nil {
		release()
		s.done()
		return nil, err
	}
	p, err := box.Start(&spec.Command, files)
	if err != nil {
		over()
		release()
		s.done()
		if errors.Is(err, client.ErrBoxLost) {
			return nil, s.closed()
		}
		return nil, err
	}
	s.hooks.Executed.Add(1)
	s.Emit(ctx, events.Event{Type: events.ExecStarted})
	e := &execution{session: s, caller: context.WithoutCancel(ctx), spec: spec, program: p, release: release, over: over}
	e.late = process.After(spec.Command.Timeout+process.KillPatience, e.markLost)
	return e, nil
}

// take admits one execution, as long as its session has room and its owner may; release gives back what was
// reserved.
func (s *Session) take(current *Context) (box *client.Box, release func(), err error) {
	limit := current.Config.Exec.MaxPerSession
	if err := s.checkSlot(limit); err != nil { // which takes nothing of the owner's day
		return nil, nil, err
	}
	if release, err = s.hooks.Accounts.Execution(s.Owner.Name, &current.Policy); err != nil {
		return nil, nil, err
	}
	if box, err = s.begin(limit, time.Now()); err != nil {
		release()
	}
	return box, release, err
}

// markLost ends the session of a program that is still there when it must have ended. Every deadline is PID
// 1's; one that does not keep it serves nobody any more. With the session the program ends too, so
// whoever waits for it waits no longer than that.
func (e *execution) markLost() {
	select {
	case <-e.program.Exited(): // its output may not have been taken yet
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
			if e.late.Left() > process.KillPatience {
				e.late.Reset(process.KillPatience)
			}
			_ = e.program.Kill() // if the box is gone, Exited tells
		}
	}
}

// result says what the program has come to, to its caller and to those who watch boxd.
func (e *execution) result(canceled bool) (*Result, error) {
	exit, err := e.program.Wait(e.caller) // does not wait
	if step, ok := errors.AsType[*isolation.StepError](err); ok {
		if err := e.session.limitHit(step); err != nil {
			e.session.Emit(e.caller, events.Event{Type: events.ExecEnded, Reason: string(StatusStartFailed), Detail: err.Error()})
			return nil, err
		}
	}
	r, err := e.session.result(e.spec, exit, err, e.program.Group(), e.program.Retained, canceled)
	e.session.emitResult(e.caller, events.Event{Type: events.ExecEnded}, r, err)
	return r, err
}

// close releases a program that has ended.
func (e *execution) close() {
	e.over()
	e.late.Stop()
	if exit, err := e.program.Wait(e.caller); err == nil { // does not wait
		e.session.used(exit)
	}
	e.program.Close()
	e.release()
	e.session.done()
}

// used tells what a program has used, where the groups of the box do not.
func (s *Session) used(exit *isolation.Exit) {
	if !s.Grouped() {
		s.hooks.Used(s.Owner.Name, exit.UserTime+exit.SystemTime)
	}
}

// done ends an execution, and tells the reaper if it may not know when the session ends now.
func (s *Session) done() {
	if at := s.finish(time.Now()); !at.IsZero() {
		s.hooks.Due(s, at)
	}
	s.hooks.Line.Wake()
}
