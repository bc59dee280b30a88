// SPDX-License-Identifier: Apache-2.0

package session

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/client"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/supervisor/quota"

	"github.com/boxd-dev/boxd/supervisor/events"
	"github.com/boxd-dev/boxd/supervisor/policy"
	"github.com/boxd-dev/boxd/supervisor/process"
)

// slot is the entry of a process in its session: the caller that creates it starts the process, all others wait.
type slot struct {
	request     map[string]string
	managed     bool          // it counts as a process; otherwise as an execution
	unlisted    bool          // the caller that has started it removes it
	waiting     bool          // for room in the session; guarded by the session's mu
	spec        *process.Spec // set while it waits
	spool       quantity.Size // how much of its output may be on disk
	uncounted   bool          // it had ended when it was adopted, and is not counted
	resolved    chan struct{} // closed when process or err is set
	process     *process.Process
	err         error
	done        chan struct{} // closed when the process has ended and is no longer counted
	release     func()        // gives back what was reserved; nil if uncounted
	releaseTurn func()        // gives back its start turn; nil if it was adopted
	timer       *time.Timer   // guarded by the session's mu: drops the process; nil while it lives
	ended       time.Time     // when it ended, set before the timer is
}

// StartProcess returns the process of a session with the requested id, and starts it if there is none; the second result tells
// which. It waits until the program runs or has failed to start, which the process reports. An existing process must match the
// request, and may have ended.
func (s *Session) StartProcess(ctx context.Context, req *ProcessRequest) (p *process.Process, isNew bool, err error) {
	if err := s.Await(ctx); err != nil {
		return nil, false, err
	}
	current := s.context()
	spec, err := current.Process(req)
	if err != nil {
		return nil, false, err
	}
	entry, created, err := s.findOrQueue(ctx, spec, current, req.Exec.Wait)
	if err != nil {
		return nil, false, err
	}
	if created && entry.spec == nil {
		startCtx := ctx
		if !spec.Unlisted { // continues after its first caller hangs up
			startCtx = context.WithoutCancel(ctx)
		}
		s.launchProcess(startCtx, entry, spec)
	}
	select {
	case <-entry.resolved:
	case <-ctx.Done():
		return nil, false, ctx.Err()
	}
	if entry.err != nil {
		return nil, false, entry.err
	}
	err = entry.process.Started(ctx)
	if ctx.Err() != nil {
		if spec.Unlisted {
			_ = s.RemoveProcess(context.WithoutCancel(ctx), entry.process) // it can fail only because ctx ends
		}
		return nil, false, ctx.Err()
	}
	if step, ok := errors.AsType[*isolation.StepError](err); ok && created {
		if err := s.limitHit(step); err != nil {
			s.dropProcess(entry)
			return nil, false, err
		}
	}
	return entry.process, created, nil
}

// reserveProcess finds the slot of a process, or makes one that its caller must fill. It does nothing slow.
func (s *Session) reserveProcess(spec *process.Spec, current *Context) (entry *slot, isNew bool, err error) {
	mustQueue := !spec.Unlisted && s.hooks.Line.Waits(s.Key) // before taking mu: the queue calls back with its own lock held
	s.mu.Lock()
	defer s.mu.Unlock()
	if entry := s.processes[spec.ID]; entry != nil {
		if diff := process.Differences(entry.request, spec.Request); len(diff) > 0 {
			err := fault.Errorf(fault.Conflict, "process %s already exists with a different %s", fault.Show(spec.ID), strings.Join(diff, ", ")).
				WithHint("use another name, or remove it first")
			err.Field = strings.Join(diff, ", ")
			return nil, false, err
		}
		return entry, false, nil
	}
	if err := s.checkSpoolLocked(spec, current.Config.Processes.MaxSpool); err != nil {
		return nil, false, err
	}
	if !spec.Managed {
		if mustQueue { // those waiting come first
			return nil, false, &quota.Full{Reason: quota.Executions, Own: true}
		}
		if err := s.checkSlotLocked(current.Config.Exec.MaxPerSession); err != nil {
			return nil, false, err
		}
	} else if limit := current.Config.Processes.Max; s.managed >= limit {
		return nil, false, fault.Errorf(fault.Exhausted, "session %s has %d processes, its limit (processes.max)", fault.Show(s.ID), s.managed).
			WithHint("stop one of them").
			By(fault.Denial{Layer: fault.LayerQuota, Rule: "processes.max", Used: strconv.Itoa(s.managed), Allowed: strconv.Itoa(limit), Setting: "a larger processes.max"})
	}
	reserve := s.hooks.Accounts.Execution
	if spec.Managed {
		reserve = s.hooks.Accounts.Process
	}
	if err := s.checkReadyLocked(); err != nil {
		return nil, false, err
	}
	release, err := reserve(s.Owner.Name, &current.Policy)
	if err != nil {
		return nil, false, err
	}
	if err := s.beginExecLocked(time.Now()); err != nil {
		release()
		return nil, false, err
	}
	if spec.Managed {
		s.managed++
	}
	entry = &slot{request: spec.Request, managed: spec.Managed, unlisted: spec.Unlisted, spool: spec.Spooled(), release: release, resolved: make(chan struct{}), done: make(chan struct{})}
	if s.processes == nil {
		s.processes = map[string]*slot{}
	}
	s.processes[spec.ID] = entry
	return entry, true, nil
}

// checkSpoolLocked refuses a process if its output on disk, with that of all others the session still has, could exceed limit.
// What they have written also counts toward the workspace quota.
func (s *Session) checkSpoolLocked(spec *process.Spec, limit quantity.Size) error {
	needed := spec.Spooled()
	if needed == 0 {
		return nil
	}
	var total quantity.Size
	for _, other := range s.processes {
		total += other.spool
	}
	if needed <= limit && total <= limit-needed {
		return nil
	}
	err := fault.Errorf(fault.Exhausted, "session %s may keep %v of output on disk (processes.max_spool), has promised %v, and this needs %v", fault.Show(s.ID), limit, total, needed).
		WithHint("remove processes that have ended (boxctl ps BOX), or ask for a smaller spool; both streams count unless they are merged").
		By(fault.Denial{Layer: fault.LayerQuota, Rule: "processes.max_spool", Used: total.String(), Allowed: limit.String(), Setting: "a larger processes.max_spool"})
	err.Field, err.Value = "spool", needed.String()
	return err
}

// launchProcess starts the process of a slot, without holding a lock, unless ctx ends before its owner's turn comes.
func (s *Session) launchProcess(ctx context.Context, entry *slot, spec *process.Spec) {
	defer close(entry.resolved)
	releaseTurn, err := s.hooks.Turns.Begin(ctx, s.Owner.Name)
	ctx = context.WithoutCancel(ctx)
	if err == nil {
		if entry.process, err = process.Start(s.processHooks(ctx), spec); err != nil {
			releaseTurn()
		}
	}
	if err != nil {
		if entry.err = err; errors.Is(err, client.ErrBoxLost) {
			entry.err = s.notReadyError()
		}
		s.processEnded(ctx, entry)
		s.dropProcess(entry)
		return
	}
	s.hooks.Executed.Add(1)
	entry.releaseTurn = releaseTurn
	s.Emit(ctx, programEvent(spec, events.ProcessStarted, events.ExecStarted))
	s.drive(ctx, entry)
}

// processHooks are the callbacks of processes into their session.
func (s *Session) processHooks(ctx context.Context) process.Hooks {
	return process.Hooks{
		Tell: func(id string, ready bool) {
			eventType := events.ProcessRestarted
			if ready {
				eventType = events.ProcessReady
			}
			s.Emit(ctx, events.Event{Type: eventType, Process: id})
		},
		Box:     s.box,
		Lose:    s.markLost,
		Leaving: s.hooks.Leaving,
	}
}

// drive runs a process to its end, and keeps it for a while after that.
func (s *Session) drive(ctx context.Context, entry *slot) {
	s.hooks.Work.Go(func() {
		entry.process.Drive() //nolint:contextcheck // the context is for what is told of it alone
		if entry.releaseTurn != nil {
			entry.releaseTurn()
		}
		if !entry.uncounted {
			s.emitEnd(ctx, entry.process)
			s.processEnded(ctx, entry)
		}
		close(entry.done)
		s.retire(entry)
	})
}

// processEnded gives back what a process has used of the session.
func (s *Session) processEnded(ctx context.Context, entry *slot) {
	s.mu.Lock()
	if entry.managed {
		s.managed--
	}
	s.mu.Unlock()
	if entry.process != nil {
		if exit, err := entry.process.Wait(context.WithoutCancel(ctx)); err == nil { // it has ended
			s.accountCPU(exit)
		}
	}
	entry.release()
	s.endExec()
}

// maxEnded is how many ended processes a session keeps, and how many ended executions: they are counted separately, so that a
// client that returns late to a process, or to the output of an execution, finds it.
const maxEnded = 64

// attached reports whether clients attach to the process, as opposed to an execution with a result.
func (entry *slot) attached() bool { return entry.managed || entry.process.Spec().Lease != nil }

// retire starts the time for which an ended process is kept, and drops the oldest if there are too many.
func (s *Session) retire(entry *slot) {
	if entry.unlisted {
		return
	}
	info := entry.process.Info()
	keepFor := max(time.Until(info.EndedAt.Add(entry.process.Keep(time.Duration(s.hooks.Config().Processes.Keep)))), 0)
	s.mu.Lock()
	if s.processes[info.ID] != entry || s.state != StateReady {
		s.mu.Unlock()
		return
	}
	entry.ended, entry.timer = info.EndedAt, time.AfterFunc(keepFor, func() { s.dropProcess(entry) })
	var ended []*slot
	for _, other := range s.processes {
		if other.timer != nil && other.attached() == entry.attached() {
			ended = append(ended, other)
		}
	}
	s.mu.Unlock()
	slices.SortFunc(ended, func(a, b *slot) int { return b.ended.Compare(a.ended) })
	for _, old := range ended[min(len(ended), maxEnded):] {
		s.dropProcess(old)
	}
}

// dropProcess drops a process that has ended or never started.
func (s *Session) dropProcess(entry *slot) {
	s.mu.Lock()
	for id, other := range s.processes {
		if other == entry {
			delete(s.processes, id)
		}
	}
	if entry.timer != nil {
		entry.timer.Stop()
	}
	s.mu.Unlock()
	if entry.process != nil {
		entry.process.Release()
	}
}

// DropProcesses drops all processes of a session whose box is gone.
func (s *Session) DropProcesses() {
	for _, entry := range s.slots() {
		<-entry.resolved
		if entry.process != nil {
			<-entry.done // soon, as the box is gone
		}
		s.dropProcess(entry)
	}
}

func (s *Session) slots() []*slot {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]*slot, 0, len(s.processes))
	for _, entry := range s.processes {
		list = append(list, entry)
	}
	return list
}

// Process returns the process with an id.
func (s *Session) Process(id string) (*process.Process, error) {
	if err := policy.ValidateID(id); err != nil {
		return nil, err
	}
	s.mu.Lock()
	entry := s.processes[id]
	s.mu.Unlock()
	if entry != nil && !entry.unlisted {
		select {
		case <-entry.resolved:
			if entry.process != nil {
				return entry.process, nil
			}
		default: // it is being started
		}
	}
	return nil, fault.Errorf(fault.NotFound, "no process %s in session %s", fault.Show(id), fault.Show(s.ID)).
		WithHint("list processes: boxctl ps BOX")
}

// Processes returns the processes of a session, oldest first.
func (s *Session) Processes() []*process.Process {
	var list []*process.Process
	for _, entry := range s.slots() {
		select {
		case <-entry.resolved:
			if entry.process != nil && !entry.unlisted {
				list = append(list, entry.process)
			}
		default:
		}
	}
	slices.SortFunc(list, func(a, b *process.Process) int {
		return cmp.Or(a.FirstStart().Compare(b.FirstStart()), cmp.Compare(a.Spec().ID, b.Spec().ID))
	})
	return list
}

// RemoveProcess stops a process and drops it.
func (s *Session) RemoveProcess(ctx context.Context, p *process.Process) error {
	if err := p.Stop(ctx); err != nil {
		return err
	}
	entry, err := s.awaitReleased(ctx, p)
	if entry != nil {
		s.dropProcess(entry)
	}
	return err
}

// AwaitReleased waits until a process that has ended no longer counts as running.
func (s *Session) AwaitReleased(ctx context.Context, p *process.Process) error {
	_, err := s.awaitReleased(ctx, p)
	return err
}

// awaitReleased returns the slot of a process that is over, nil if it no longer has one.
func (s *Session) awaitReleased(ctx context.Context, p *process.Process) (*slot, error) {
	for _, entry := range s.slots() {
		select {
		case <-entry.resolved:
			if entry.process != p {
				continue
			}
			select {
			case <-entry.done:
				return entry, nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		default:
		}
	}
	return nil, nil
}

// ProcessResult waits for the end of a process and returns the result of its last program.
func (s *Session) ProcessResult(ctx context.Context, p *process.Process) (*Result, error) {
	return s.processResult(ctx, p, p.Retained)
}

// ProcessEnd is ProcessResult without the output.
func (s *Session) ProcessEnd(ctx context.Context, p *process.Process) (*Result, error) {
	return s.processResult(ctx, p, nil)
}

func (s *Session) processResult(ctx context.Context, p *process.Process, out retained) (*Result, error) {
	exit, err := p.Wait(ctx)
	if err != nil && ctx.Err() != nil {
		return nil, err
	}
	r, err := s.result(p.Spec(), exit, err, p.Group(), out, false)
	if r != nil && r.Failed == nil {
		r.PID = p.PID()
	}
	return r, err
}
