// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"cmp"
	"context"
	"errors"
	"io"
	"sync"
	"syscall"
	"time"

	"github.com/boxd-dev/boxd/cgroup"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/client"
	"github.com/boxd-dev/boxd/supervisor/command"
	"github.com/boxd-dev/boxd/supervisor/policy"
	"github.com/boxd-dev/boxd/supervisor/process"
)

// ExecRequest asks for one execution.
type ExecRequest = command.Exec

// Execution is a program under way.
type Execution struct {
	v       *Supervisor
	session *Session
	program *client.Program
	timeout time.Duration
	clamped []policy.Clamp
	limits  cgroup.Limits
	output  isolation.Output
	follow  bool
	stdin   *process.Pipe // nil: none
	opened  sync.Once
	done    sync.Once
	late    *time.Timer // ends the session
	due     time.Time   // when late fires, unless hurry has done its work
	hurry   sync.Once
}

// CheckExec reports what is wrong with a request, before a session is made for it of the profile, which
// Create judges.
func (v *Supervisor) CheckExec(profile string, req *ExecRequest) error {
	cfg := v.cfg.Load()
	if err := req.Validate(cfg); err != nil {
		return err
	}
	profile = cmp.Or(profile, cfg.Sessions.DefaultProfile)
	p, ok := cfg.Profiles[profile]
	if !ok {
		return nil
	}
	_, _, err := p.ExecTimeout(profile, req.Timeout)
	return err
}

// context is what a session gives to its programs.
func (v *Supervisor) context(s *Session) *command.Context {
	return &command.Context{Config: v.cfg.Load(), Profile: &s.profile, Settings: s.settings(), Enforced: s.enforced, Env: s.env}
}

// Exec starts a program in a session and waits for it. If ctx ends, so does the program.
func (v *Supervisor) Exec(ctx context.Context, s *Session, req *ExecRequest) (*Result, error) {
	e, err := v.Start(ctx, s, req)
	if err != nil {
		return nil, err
	}
	defer e.Close()
	return e.Wait(ctx)
}

// Start starts a program in a session, once that has started itself. The caller must call Close, which
// ends the program if it still runs.
func (v *Supervisor) Start(ctx context.Context, s *Session, req *ExecRequest) (*Execution, error) {
	order, err := v.context(s).Order(req, false)
	if err != nil {
		return nil, err
	}
	files, err := order.Files()
	if err != nil {
		return nil, err
	}
	defer command.CloseFiles(&files)
	cmd := &order.Command
	select {
	case <-s.started:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	box, err := s.begin(v.cfg.Load().Exec.MaxPerSession, time.Now())
	if err != nil {
		return nil, err
	}
	p, err := box.Start(cmd, files)
	if err != nil {
		v.finish(s)
		if errors.Is(err, client.ErrBoxLost) {
			return nil, gone(s.ID)
		}
		return nil, err
	}
	v.mu.Lock()
	v.executed++
	v.mu.Unlock()
	e := &Execution{v: v, session: s, program: p, timeout: cmd.Timeout, clamped: order.Clamped, limits: cmd.Limits, output: cmd.Output, follow: cmd.Durable}
	e.due = time.Now().Add(e.timeout + process.KillPatience)
	e.late = time.AfterFunc(e.timeout+process.KillPatience, e.lose)
	return e, nil
}

// lose ends the session of a program that is still there when it must have ended. Every deadline is PID
// 1's; one that does not keep it serves nobody any more. With the session the program ends too, so
// whoever waits for it waits no longer than that.
func (e *Execution) lose() {
	select {
	case <-e.program.Exited(): // its output may not have been taken yet
	default:
		e.v.work.Go(func() { _ = e.v.End(e.v.life, e.session, EndLost) }) // logged where it fails
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
		if time.Until(e.due) > process.KillPatience && e.late.Stop() {
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
					return nil, err
				}
			}
			o := e.session.outcome(exit, err, e.program.Group())
			o.Timeout, o.Clamped, o.Limits, o.Canceled = e.timeout, e.clamped, &e.limits, o.Canceled || canceled
			if !e.follow {
				o.Kept = e.program.Kept
			}
			return o.Result()
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
		e.late.Stop()
		if e.stdin != nil {
			e.stdin.Abandon()
		}
		if e.follow {
			_ = e.program.Forget() // without a box there is nothing to forget
		}
		e.program.Close()
		e.v.finish(e.session)
	})
}

// finish ends an execution, and tells the reaper if it does not know when the session ends now.
func (v *Supervisor) finish(s *Session) {
	at := s.finish(time.Now())
	v.mu.Lock()
	early := !at.IsZero() && at.Before(v.nextLook)
	v.mu.Unlock()
	if early {
		v.wakeReaper()
	}
}
