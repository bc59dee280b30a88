// SPDX-License-Identifier: Apache-2.0

package session

import (
	"bytes"
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/supervisor/policy"
	"github.com/boxd-dev/boxd/supervisor/process"
)

// A session can be stopped: then it has no box, and keeps its id and settings, and what it has on disk. A Session has one box
// in its life or none, so whoever waits for the end of one need not know which: where a session is stopped or started
// again, another Session of the same key takes its place.

// Stopped is what a session is started again from, beside its settings. It is in the record of one that is stopped alone.
type Stopped struct {
	Since  time.Time     `json:"since"`
	Rested time.Duration `json:"rested,omitempty"` // how long it was stopped before that, in all
	// Env is NAME=value of every program that adds nothing, in bytes: not all of it need be UTF-8. The values of a living
	// session are with PID 1 of its box alone.
	Env [][]byte `json:"env_values,omitempty"`
	Again
}

// Again is what a session that is started again is to have besides what New makes of it.
type Again struct {
	Mounts []policy.Mount `json:"mounts,omitempty"` // that it was given while it lived
	// Processes are those that were to be restarted always.
	Processes []*process.Spec `json:"processes,omitempty"`
}

// NewStopped returns a session that is stopped.
func NewStopped(host *Hooks, p *Params) *Session {
	s := New(host, p)
	s.state, s.lastUsed = StateStopped, p.Stopped.Since
	close(s.started)
	return s
}

// Valid reports whether the environment is one, which a file that is damaged may not have.
func (r *Stopped) Valid() bool {
	return !slices.ContainsFunc(r.Env, func(kv []byte) bool {
		name, _, ok := bytes.Cut(kv, []byte("="))
		return !ok || len(name) == 0 || bytes.IndexByte(kv, 0) >= 0
	}) && !r.Since.IsZero()
}

// Environment is NAME=value of every program that adds nothing.
func (r *Stopped) Environment() []string {
	list := make([]string, len(r.Env))
	for i, kv := range r.Env {
		list[i] = string(kv)
	}
	return list
}

// StoppedError is the refusal of something that needs the box of a stopped session.
func StoppedError(id string) error {
	return fault.Errorf(fault.Conflict, "session %s is stopped", fault.Show(id)).WithHint("start it again: boxctl start BOX")
}

// closedLocked is the refusal of a session that is not ready: it is, or is about to be, stopped, or is no more.
func (s *Session) closedLocked() error {
	if s.state == StateStopping || s.state == StateStopped || s.next != nil {
		return StoppedError(s.ID)
	}
	return NotFoundError(s.ID)
}

func (s *Session) closed() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closedLocked()
}

// endsOnPurpose reports whether somebody has the session end or stop, so that its programs are not lost but ended.
func (s *Session) endsOnPurpose() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reason != "" && s.reason != EndLost && s.reason != EndFileLocks || s.state == StateStopping || s.next != nil
}

// Rested is how long the session was stopped in all, which its lifetime does not count.
func (s *Session) Rested() time.Duration { return s.rested }

// Stopped is what the session is started again from; nil: it has not been stopped.
func (s *Session) Stopped() *Stopped { return s.stopped }

// Next is the session that has taken the place of this one, nil if none has. It is there before Ended is closed.
func (s *Session) Next() *Session {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.next
}

// Awake lets the programs of a session go on that are frozen. Only who has the session exclusively may call it.
func (s *Session) Awake() error {
	s.mu.Lock()
	frozen := s.frozen
	s.mu.Unlock()
	if !frozen {
		return nil
	}
	return s.freeze(false)
}

// BeginStop takes a session that is ready to where nothing is begun in it any more, and reports whether that was for the
// caller to do. CancelStop takes it back, and Succeed ends it.
func (s *Session) BeginStop() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state != StateReady {
		return false
	}
	_ = s.advanceLocked(StateStopping) // legal from ready
	s.hooks.Work.Go(s.hooks.Line.Wake) // who waits for room need not any more; not under this lock
	return true
}

// CancelStop makes a session ready again whose stop has not come so far that anything was ended.
func (s *Session) CancelStop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.advanceLocked(StateReady) // legal from stopping
}

// Succeed ends a session that is stopping or stopped, as another is to take its place, and reports whether it was in that
// state: it may be ending.
func (s *Session) Succeed(next *Session) bool {
	s.mu.Lock()
	ok := s.state == StateStopping || s.state == StateStopped
	if ok {
		_ = s.advanceLocked(StateEnded) // legal from both
		s.next = next
	}
	s.mu.Unlock()
	if ok {
		close(s.ended)
	}
	return ok
}

// Fail says, before Launched does, that a start has failed and which stopped session is there instead.
func (s *Session) Fail(back *Session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next = back
}

// ToHaveAgain is what the session, stopped now, is to have when it is started again: its live mounts, the processes that are to be there
// again, and what it was itself still to be given.
func (s *Session) ToHaveAgain() Again {
	s.Record.Lock()
	pending := s.Record.Again
	s.Record.Unlock()
	known := s.Processes() // before those that come back are looked for, since pending ones are just being started
	is := Again{Processes: s.restarting()}
	for _, m := range s.Live() {
		is.Mounts = append(is.Mounts, m.Mount)
	}
	if pending == nil {
		return is
	}
	for _, m := range pending.Mounts {
		if !slices.ContainsFunc(is.Mounts, func(has policy.Mount) bool { return has.Target == m.Target }) {
			is.Mounts = append(is.Mounts, m)
		}
	}
	for _, spec := range pending.Processes {
		if !slices.ContainsFunc(known, func(p *process.Process) bool { return p.Spec().ID == spec.ID }) &&
			!slices.ContainsFunc(is.Processes, func(has *process.Spec) bool { return has.ID == spec.ID }) {
			is.Processes = append(is.Processes, spec)
		}
	}
	return is
}

// restarting are the processes that are to be there again when the session is started again: those that are restarted
// always and that nobody has stopped.
func (s *Session) restarting() []*process.Spec {
	var list []*process.Spec
	for _, p := range s.Processes() {
		spec, info := p.Spec(), p.Info()
		if spec.Managed && spec.Restart.Policy == process.RestartAlways && info.EndedAt.IsZero() && info.State != process.StateStopping {
			list = append(list, spec)
		}
	}
	return list
}

// StopProcesses asks all processes of a session to end, each in its way, and returns when they have or ctx ends.
func (s *Session) StopProcesses(ctx context.Context) {
	var all sync.WaitGroup
	for _, entry := range s.slots() {
		all.Go(func() {
			select {
			case <-entry.known:
			case <-ctx.Done():
				return
			}
			if entry.process != nil {
				_ = entry.process.Stop(ctx) // what has not ended ends with the box
			}
		})
	}
	all.Wait()
}

// StartAgain starts processes that the session had when it was stopped, and that it has not. One that cannot start is told
// and left out.
func (s *Session) StartAgain(ctx context.Context, list []*process.Spec, log *slog.Logger) {
	for _, given := range list {
		spec := new(*given) // a process from before the stop may still read its own
		var entry *slot
		var first bool
		err := spec.Resolve() // it is from a file
		if err == nil {
			entry, first, err = s.reserveProcess(spec, s.context())
		}
		if err == nil && first {
			s.launchProcess(context.WithoutCancel(ctx), entry, spec)
			err = entry.err
		}
		if err != nil {
			log.Warn("cannot start a process of a session that was stopped", "session", s.ID, "process", spec.ID, "error", err)
		}
	}
}
