// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/quantity"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/client"
	"github.com/boxd-dev/boxd/supervisor/policy"
)

// ExecRequest asks for one execution: exactly one of Argv, Command and Code.
type ExecRequest struct {
	Argv        []string
	Command     *string // for the shell
	Code        *string // in Language
	Language    string
	Env         map[string]string
	Dir         string // "": the workspace
	Stdin       []byte // what the program reads, if StdinPipe is not set
	Timeout     *quantity.Duration
	Limits      policy.ProgramLimits
	OutputLimit *quantity.Size // per stream; "": the configured one

	// Follow hands the output over as it comes, with nothing cut; see Execution.Follow.
	Follow bool
	// StdinPipe gives the program a standard input that is written to while it runs.
	StdinPipe bool
}

// Status is how an execution ended.
type Status string

// The statuses; the set is closed.
const (
	StatusExited      Status = "exited"
	StatusSignaled    Status = "signaled"
	StatusTimedOut    Status = "timed_out"
	StatusOOMKilled   Status = "oom_killed"
	StatusCanceled    Status = "canceled"
	StatusLost        Status = "lost"
	StatusStartFailed Status = "start_failed"
)

// Result is what an execution came to.
type Result struct {
	Status   Status
	ExitCode int    // for StatusExited
	Signal   string // "SIGKILL", whenever a signal ended it
	Streams  [2]Stream
	Duration time.Duration
	UserTime time.Duration
	SysTime  time.Duration
	MaxRSS   quantity.Size
	// Grouped says that the command had a control group: then the times are of all its processes, and
	// the four fields below are known.
	Grouped    bool
	MemoryPeak quantity.Size
	PidsPeak   int
	Read       quantity.Size // from devices
	Written    quantity.Size // to devices
	Full       []Full
	OOM        *OOM // nil: none of its processes was killed for want of memory
	// Leftovers is how many processes the command had left running; they have been killed.
	Leftovers int
	Timeout   time.Duration
	Clamped   []policy.Clamp
	Failed    *isolation.StepError // for StatusStartFailed
}

// OOM tells of processes that the kernel has killed for want of memory.
type OOM struct {
	Kills   int           // processes
	Limit   quantity.Size // that was reached
	Own     bool          // the limit was the execution's own, not the session's
	Victims []string      // names of the processes the kernel chose, as far as its log still knows
}

// killPatience is what PID 1 gets to report an end that was due; after that the box counts as lost.
const killPatience = 45 * time.Second

// Execution is a program under way.
type Execution struct {
	v       *Supervisor
	session *Session
	program *client.Program
	timeout time.Duration
	clamped []policy.Clamp
	memory  quantity.Size // the execution's own limit; 0: none
	pids    int           // the limit that is nearer, its own or its session's
	done    sync.Once
	late    *time.Timer // ends the session
	due     time.Time   // when late fires, unless hurry has done its work
	hurry   sync.Once
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
	cmd, script, clamped, err := v.command(s, req)
	if err != nil {
		return nil, err
	}
	files, err := openFiles(script, req)
	if err != nil {
		return nil, err
	}
	defer files.close()
	select {
	case <-s.started:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	box, err := s.begin(v.cfg.Exec.MaxPerSession, time.Now())
	if err != nil {
		return nil, err
	}
	p, err := box.Start(cmd, files.Files)
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
	e := &Execution{v: v, session: s, program: p, timeout: cmd.Timeout, clamped: clamped, memory: quantity.Size(cmd.Limits.Memory), pids: int(cmd.Limits.Pids)}
	if e.pids == 0 {
		e.pids = s.settings().Pids
	}
	e.due = time.Now().Add(e.timeout + killPatience)
	e.late = time.AfterFunc(e.timeout+killPatience, e.lose)
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

// Stdin is the program's standard input if StdinPipe was asked for. Closing it is its end of file.
func (e *Execution) Stdin() *os.File { return e.program.Stdin() }

// Signal sends a signal to the program's process group.
func (e *Execution) Signal(sig syscall.Signal) error { return e.program.Signal(sig) }

// Kill ends the program and everything it started; Wait tells when that is done.
func (e *Execution) Kill() error {
	e.hurry.Do(func() {
		if time.Until(e.due) > killPatience && e.late.Stop() {
			e.late.Reset(killPatience)
		}
	})
	return e.program.Kill()
}

// Follow hands the output to emit as it comes, until there is no more; stream 0 is standard output,
// 1 standard error. The program waits while emit does.
func (e *Execution) Follow(ctx context.Context, emit func(stream int, data []byte) error) error {
	err := e.program.Follow(ctx, emit)
	if errors.As(err, new(*isolation.StepError)) || errors.Is(err, client.ErrBoxLost) {
		return nil // Wait tells
	}
	return err
}

// Wait waits for the end of the program. If ctx ends first the program is killed, and the result
// says canceled.
func (e *Execution) Wait(ctx context.Context) (*Result, error) {
	canceled := false
	for done := ctx.Done(); ; {
		select {
		case <-e.program.Exited():
			return e.result(ctx, canceled)
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

func (e *Execution) result(ctx context.Context, canceled bool) (*Result, error) {
	r := &Result{Timeout: e.timeout, Clamped: e.clamped}
	exit, err := e.program.Wait(context.WithoutCancel(ctx)) // has ended: does not wait
	if step, ok := errors.AsType[*isolation.StepError](err); ok {
		if err := e.limitHit(step); err != nil {
			return nil, err
		}
		r.Status, r.Failed = StatusStartFailed, step
		return r, nil
	}
	if err != nil {
		r.Status = StatusLost
		if reason := e.session.endReason(); canceled || reason != "" && reason != EndLost {
			r.Status = StatusCanceled
		}
		return r, nil
	}
	r.Status = map[isolation.Reason]Status{
		isolation.ReasonExited: StatusExited, isolation.ReasonSignaled: StatusSignaled,
		isolation.ReasonTimedOut: StatusTimedOut, isolation.ReasonCanceled: StatusCanceled, isolation.ReasonOOM: StatusOOMKilled,
	}[exit.Reason]
	r.ExitCode = exit.Code
	if exit.Signal != 0 {
		r.Signal = unix.SignalName(syscall.Signal(exit.Signal))
	}
	r.Duration, r.UserTime, r.SysTime = exit.Duration, exit.UserTime, exit.SystemTime
	r.MaxRSS, r.Leftovers = quantity.Size(exit.MaxRSS), int(exit.Leftovers)
	e.addUse(r, exit)
	for i := range r.Streams {
		head, tail, err := e.program.Kept(i)
		if err != nil {
			return nil, fmt.Errorf("session %q: %w", e.session.ID, err)
		}
		r.Streams[i] = newStream(head, tail, exit.Streams[i])
	}
	return r, nil
}
