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

// A session can be stopped: then it has no box, and keeps its id, settings and files. A Session has at most one box in its
// life, so a caller that waits for its end need not know which: when a session is stopped or started again, another Session of
// the same key replaces it.

// Stopped is what a session is started again from, besides its settings. Only the record of a stopped session has it.
type Stopped struct {
	Since  time.Time     `json:"since"`
	Rested time.Duration `json:"rested,omitempty"` // how long it was stopped before that, in all
	// Env is NAME=value, without variables of a single program, as bytes: it may be invalid UTF-8. The values of a living
	// session are only with PID 1 of its box.
	Env [][]byte `json:"env_values,omitempty"`
	Again
}

// Again is what a session that is started again gets besides what New gives it.
type Again struct {
	Mounts []policy.Mount `json:"mounts,omitempty"` // added while it lived
	// Processes are those with the restart policy "always".
	Processes []*process.Spec `json:"processes,omitempty"`
}

// NewStopped returns a stopped session.
func NewStopped(hooks *Hooks, p *Params) *Session {
	s := New(hooks, p)
	s.state, s.lastUsed = StateStopped, p.Stopped.Since
	close(s.started)
	return s
}

// Valid reports whether the record has a time and a valid environment, which a damaged file may not have.
func (r *Stopped) Valid() bool {
	return !slices.ContainsFunc(r.Env, func(kv []byte) bool {
		name, _, ok := bytes.Cut(kv, []byte("="))
		return !ok || len(name) == 0 || bytes.IndexByte(kv, 0) >= 0
	}) && !r.Since.IsZero()
}

// Environment is NAME=value, without variables of a single program.
func (r *Stopped) Environment() []string {
	list := make([]string, len(r.Env))
	for i, kv := range r.Env {
		list[i] = string(kv)
	}
	return list
}

// StoppedError is the refusal of an operation that needs the box of a stopped session.
func StoppedError(id string) error {
	return fault.Errorf(fault.Conflict, "session %s is stopped", fault.Show(id)).WithHint("start it again: boxctl start BOX")
}

// notReadyErrorLocked is the refusal of a session that is not ready: it is stopping or stopped, or no longer exists.
func (s *Session) notReadyErrorLocked() error {
	if s.state == StateStopping || s.state == StateStopped || s.next != nil {
		return StoppedError(s.ID)
	}
	return NotFoundError(s.ID)
}

func (s *Session) notReadyError() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.notReadyErrorLocked()
}

// Canceled is the error for a request whose program was ended on purpose: with its box, which is being stopped or removed, or
// because its caller has gone. It is context.Canceled to errors.Is.
func (s *Session) Canceled() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state != StateReady {
		return canceledError{s.notReadyErrorLocked()}
	}
	return context.Canceled
}

// canceledError is a refusal of a session that ended a program on purpose.
type canceledError struct{ error }

// Unwrap returns the refusal.
func (e canceledError) Unwrap() error { return e.error }

// Is reports that nothing has failed.
func (canceledError) Is(target error) bool { return target == context.Canceled }

// endsOnPurpose reports whether the session is ended or stopped on purpose, so that its programs are not lost but canceled.
func (s *Session) endsOnPurpose() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reason != "" && s.reason != EndLost && s.reason != EndFileLocks || s.state == StateStopping || s.next != nil
}

// Rested is how long the session was stopped in all, which does not count toward its lifetime.
func (s *Session) Rested() time.Duration { return s.rested }

// Stopped is what the session is started again from; nil: it has not been stopped.
func (s *Session) Stopped() *Stopped { return s.stopped }

// Next is the session that has replaced this one, nil if none has. It is set before Ended is closed.
func (s *Session) Next() *Session {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.next
}

// Awake thaws a frozen session. The caller must hold the session exclusively.
func (s *Session) Awake() error {
	s.mu.Lock()
	frozen := s.frozen
	s.mu.Unlock()
	if !frozen {
		return nil
	}
	return s.freeze(false)
}

// BeginStop makes a ready session one in which nothing can be started, and reports whether the caller must stop it. CancelStop
// undoes that, and Succeed completes it.
func (s *Session) BeginStop() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state != StateReady {
		return false
	}
	_ = s.advanceLocked(StateStopping) // legal from ready
	s.hooks.Work.Go(s.hooks.Line.Wake) // callers waiting for room get an error; not under this lock
	return true
}

// CancelStop makes a session ready again whose stop has not ended anything yet.
func (s *Session) CancelStop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.advanceLocked(StateReady) // legal from stopping
}

// Succeed ends a session that is stopping or stopped, as next replaces it, and reports whether it was in such a state: it may
// be ending.
func (s *Session) Succeed(next *Session) bool {
	s.mu.Lock()
	ok := s.state == StateStopping || s.state == StateStopped
	if ok {
		_ = s.advanceLocked(StateEnded) // legal from both
		s.next = next
		s.unwatchLocked()
	}
	s.mu.Unlock()
	if ok {
		close(s.ended)
	}
	return ok
}

// Fail says, before Launched is called, that a start has failed and which stopped session replaces this one.
func (s *Session) Fail(stopped *Session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next = stopped
}

// ToHaveAgain returns what the session, which is stopped or could be, will be given when it is started again: its live mounts, its
// processes with the restart policy "always", and what it was itself yet to be given.
func (s *Session) ToHaveAgain() Again {
	if state, _, _ := s.State(); state == StateStopped {
		return s.stopped.Again
	}
	s.Record.Lock()
	pending := s.Record.Again
	s.Record.Unlock()
	existing := s.Processes() // before restarting, since pending processes are just being started
	again := Again{Processes: s.restarting()}
	for _, m := range s.Live() {
		again.Mounts = append(again.Mounts, m.Mount)
	}
	if pending == nil {
		return again
	}
	for _, m := range pending.Mounts {
		if !slices.ContainsFunc(again.Mounts, func(have policy.Mount) bool { return have.Target == m.Target }) {
			again.Mounts = append(again.Mounts, m)
		}
	}
	for _, spec := range pending.Processes {
		if !slices.ContainsFunc(existing, func(p *process.Process) bool { return p.Spec().ID == spec.ID }) &&
			!slices.ContainsFunc(again.Processes, func(have *process.Spec) bool { return have.ID == spec.ID }) {
			again.Processes = append(again.Processes, spec)
		}
	}
	return again
}

// restarting lists the processes to start when the session is started again: those with the restart policy "always" that were
// not stopped.
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

// StopProcesses asks all processes of a session to end, each by its own stop settings, and returns when they have or ctx ends.
func (s *Session) StopProcesses(ctx context.Context) {
	var wg sync.WaitGroup
	for _, entry := range s.slots() {
		wg.Go(func() {
			select {
			case <-entry.resolved:
			case <-ctx.Done():
				return
			}
			if entry.process != nil {
				_ = entry.process.Stop(ctx) // one that has not ended ends with the box
			}
		})
	}
	wg.Wait()
}

// StartAgain starts processes that the session had when it was stopped, unless it has them already. Failures are logged.
func (s *Session) StartAgain(ctx context.Context, list []*process.Spec, log *slog.Logger) {
	for _, orig := range list {
		spec := new(*orig) // a process from before the stop may still read its own
		var entry *slot
		var isNew bool
		err := spec.Resolve() // it comes from a file
		if err == nil {
			entry, isNew, err = s.reserveProcess(spec, s.context())
		}
		if err == nil && isNew {
			s.launchProcess(context.WithoutCancel(ctx), entry, spec)
			err = entry.err
		}
		if err != nil {
			log.Warn("cannot start a process of a session that was stopped", "session", s.ID, "process", spec.ID, "error", err)
		}
	}
}
