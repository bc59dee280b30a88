// SPDX-License-Identifier: Apache-2.0

package session

import (
	"context"
	"errors"
	"io"
	"sync"
	"syscall"
	"time"

	"github.com/boxd-dev/boxd/cgroup"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/client"

	"github.com/boxd-dev/boxd/supervisor/events"
	"github.com/boxd-dev/boxd/supervisor/policy"
	"github.com/boxd-dev/boxd/supervisor/process"
)

// Execution is a program under way.
type Execution struct {
	session *Session
	release func() // gives back what was reserved
	over    func() // gives back its turn
	program *client.Program
	timeout time.Duration
	clamped []policy.Clamp
	limits  cgroup.Limits
	output  isolation.Output
	follow  bool
	stdin   *process.Pipe // nil: none
	opened  sync.Once
	done    sync.Once
	told    sync.Once       // of its end
	caller  context.Context //nolint:containedctx // whose request it is of, for what is told of it; nothing waits for it
	late    *process.Timer  // ends the session
	hurry   sync.Once
}

// context is what a session gives to its programs.
func (s *Session) context() *Context {
	cfg := s.host.Config()
	return &Context{Config: cfg, Held: cfg.BoundsOf(s.Owner).For(s.Current().Labels), Profile: &s.profile, Settings: s.Current(), Enforced: s.enforced, Env: WithEnv(s.env, s.givenEnv())}
}

// Plan says what an execution would be, and why not. It starts nothing and takes nothing of what its owner may
// have.
func (s *Session) Plan(req *ExecRequest) (*ExecPlan, error) {
	given := s.context()
	order, err := given.Order(req, false)
	if err != nil {
		return nil, err
	}
	if err := s.room(given.Config.Exec.MaxPerSession); err != nil {
		return order, err
	}
	return order, s.host.Book.TryExecution(s.Owner.Name, &given.Held)
}

// Exec starts a program in a session and waits for it. If ctx ends, so does the program.
func (s *Session) Exec(ctx context.Context, req *ExecRequest) (*Result, error) {
	e, err := s.Start(ctx, req)
	if err != nil {
		return nil, err
	}
	defer e.Close()
	return e.Wait(ctx)
}

// Start starts a program in a session, once that has started itself. The caller must call Close, which
// ends the program if it still runs.
func (s *Session) Start(ctx context.Context, req *ExecRequest) (*Execution, error) {
	given := s.context()
	order, err := given.Order(req, false)
	if err != nil {
		return nil, err
	}
	files, err := order.Files()
	if err != nil {
		return nil, err
	}
	defer CloseFiles(&files)
	cmd := &order.Command
	select {
	case <-s.started:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	var box *client.Box
	var release func()
	err = s.admit(ctx, req.Wait, func() (err error) {
		box, release, err = s.take(given)
		return err
	})
	if err != nil {
		return nil, err
	}
	over, err := s.host.Turns.Begin(ctx, s.Owner.Name)
	if err != nil {
		release()
		s.done()
		return nil, err
	}
	p, err := box.Start(cmd, files)
	if err != nil {
		over()
		release()
		s.done()
		if errors.Is(err, client.ErrBoxLost) {
			return nil, Gone(s.ID)
		}
		return nil, err
	}
	s.host.Executed.Add(1)
	s.Tell(ctx, events.Event{Type: events.ExecStarted})
	e := &Execution{caller: context.WithoutCancel(ctx), session: s, over: over, release: release, program: p, timeout: cmd.Timeout, clamped: order.Clamped, limits: cmd.Limits, output: cmd.Output, follow: cmd.Durable}
	e.late = process.After(e.timeout+process.KillPatience, e.lose)
	return e, nil
}

// take admits one execution, as long as its session has room and its owner may; release gives back what was
// reserved.
func (s *Session) take(given *Context) (box *client.Box, release func(), err error) {
	limit := given.Config.Exec.MaxPerSession
	if err := s.room(limit); err != nil { // which takes nothing of the owner's day
		return nil, nil, err
	}
	if release, err = s.host.Book.Execution(s.Owner.Name, &given.Held); err != nil {
		return nil, nil, err
	}
	if box, err = s.begin(limit, time.Now()); err != nil {
		release()
	}
	return box, release, err
}

// lose ends the session of a program that is still there when it must have ended. Every deadline is PID
// 1's; one that does not keep it serves nobody any more. With the session the program ends too, so
// whoever waits for it waits no longer than that.
func (e *Execution) lose() {
	select {
	case <-e.program.Exited(): // its output may not have been taken yet
	default:
		e.session.lose()
	}
}

// Started waits until a followed program runs. A program that could not be started is no error
// here: Wait tells.
func (e *Execution) Started(ctx context.Context) error {
	err := e.program.Started(ctx)
	if ctx.Err() != nil {
		return err
	}
	return nil
}

// Exited is closed when the program has ended.
func (e *Execution) Exited() <-chan struct{} { return e.program.Exited() }

// Clamped lists what was given less of than asked for.
func (e *Execution) Clamped() []policy.Clamp { return e.clamped }

// Stdin is the standard input of a program that has started, if StdinPipe was asked for, otherwise nil.
// Closing it is its end of file.
func (e *Execution) Stdin() io.WriteCloser {
	in := e.program.Input()
	if in == nil {
		return nil
	}
	e.opened.Do(func() { e.stdin = process.NewPipe(in) })
	return e.stdin
}

// Signal sends a signal to the program's process group.
func (e *Execution) Signal(sig syscall.Signal) error { return e.program.Signal(sig) }

// Kill ends the program and everything it started; Wait tells when that is done.
func (e *Execution) Kill() error {
	e.hurry.Do(func() {
		if e.late.Left() > process.KillPatience {
			e.late.Reset(process.KillPatience)
		}
	})
	return e.program.Kill()
}

// Follow hands the output of a program that has started to emit as it comes, until there is no more; stream
// 0 is standard output, 1 standard error. The program waits while emit does.
func (e *Execution) Follow(ctx context.Context, emit func(stream int, data []byte) error) error {
	return process.Follow(ctx, e.program, e.output, emit)
}

// Wait waits for the end of the program. If ctx ends first the program is killed, and the result
// says canceled.
func (e *Execution) Wait(ctx context.Context) (*Result, error) {
	canceled := false
	for done := ctx.Done(); ; {
		select {
		case <-e.program.Exited():
			exit, err := e.program.Wait(context.WithoutCancel(ctx)) // does not wait
			if step, ok := errors.AsType[*isolation.StepError](err); ok {
				if err := e.session.limitHit(step); err != nil {
					e.told.Do(func() {
						e.session.Tell(e.caller, events.Event{Type: events.ExecEnded, Reason: string(StatusStartFailed), Detail: err.Error()})
					})
					return nil, err
				}
			}
			o := e.session.outcome(exit, err, e.program.Group())
			o.Timeout, o.Clamped, o.Limits, o.Canceled = e.timeout, e.clamped, &e.limits, o.Canceled || canceled
			if !e.follow {
				o.Kept = e.program.Kept
			}
			r, err := o.Result()
			e.told.Do(func() { e.session.tellResult(e.caller, events.Event{Type: events.ExecEnded}, r, err) })
			return r, err
		case <-done:
			done, canceled = nil, true
			_ = e.Kill() // if the box is gone, Exited tells
		}
	}
}

// Close ends the program if it still runs, and releases it.
func (e *Execution) Close() {
	e.done.Do(func() {
		select {
		case <-e.program.Exited():
		default:
			_ = e.Kill()
			<-e.program.Exited()
		}
		e.over()
		e.late.Stop()
		if e.stdin != nil {
			e.stdin.Abandon()
		}
		if exit, err := e.program.Wait(e.caller); err == nil { // does not wait
			e.session.used(exit)
		}
		if e.follow {
			_ = e.program.Forget() // without a box there is nothing to forget
		}
		e.program.Close()
		e.told.Do(func() { // nobody has waited for it
			e.session.Tell(e.caller, events.Event{Type: events.ExecEnded, Reason: string(StatusCanceled)})
		})
		e.release()
		e.session.done()
	})
}

// used tells what a program has used, where the groups of the box do not.
func (s *Session) used(exit *isolation.Exit) {
	if !s.Grouped() {
		s.host.Used(s.Owner.Name, exit.UserTime+exit.SystemTime)
	}
}

// done ends an execution, and tells the reaper if it may not know when the session ends now.
func (s *Session) done() {
	if at := s.finish(time.Now()); !at.IsZero() {
		s.host.Due(at)
	}
	s.host.Line.Wake()
}
