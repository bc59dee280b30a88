// SPDX-License-Identifier: Apache-2.0

package session

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/supervisor/quota"

	"github.com/boxd-dev/boxd/supervisor/process"
)

// An execution with an id outlives its client, and so does its wait for room in its session: it has its slot from the request
// on, and until it starts PID 1 keeps its Spec for the next boxd. Once it has started, PID 1 keeps it as a program, so that it
// never starts twice.

// Limits of the waiting executions of one session.
const (
	maxWaiting = 64
	maxSpecs   = 16 << 20 // bytes of all their Specs
)

// findOrQueue finds the slot of a process, or makes one: to be filled by the caller, or by a goroutine once there is room in the
// session. For an unlisted process the caller waits.
func (s *Session) findOrQueue(ctx context.Context, spec *process.Spec, current *Context, wait *time.Duration) (entry *slot, isNew bool, err error) {
	if spec.Unlisted {
		err = s.admit(ctx, wait, func() error {
			entry, isNew, err = s.reserveProcess(spec, current)
			return err
		})
		return entry, isNew, err
	}
	for {
		entry, isNew, err = s.reserveProcess(spec, current)
		if errors.Is(err, errAsleep) {
			if err := s.Use(); err != nil {
				return nil, false, err
			}
			continue
		}
		if _, full := errors.AsType[*quota.Full](err); !full {
			return entry, isNew, err
		}
		if entry, err = s.enqueue(spec); err != nil {
			return nil, false, err
		}
		if entry != nil { // nil: another caller has made it meanwhile
			s.handOver()
			s.hooks.Work.Go(func() { s.awaitRoom(context.WithoutCancel(ctx), entry, wait) }) // continues after the caller hangs up
			return entry, true, nil
		}
	}
}

// enqueue makes a slot that waits, nil if there is one of that id by now.
func (s *Session) enqueue(spec *process.Spec) (*slot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.processes[spec.ID] != nil {
		return nil, nil
	}
	if s.state != StateReady {
		return nil, s.notReadyErrorLocked()
	}
	count, size := 1, len(spec.Script)+len(spec.Input)
	for _, other := range s.processes {
		if other.waiting {
			count++
			size += len(other.spec.Script) + len(other.spec.Input)
		}
	}
	if spec.Command.Spool {
		if err := s.checkSpoolLocked(spec, s.hooks.Config().Processes.MaxSpool); err != nil {
			return nil, err
		}
	}
	if count > maxWaiting || size > maxSpecs {
		return nil, fault.Errorf(fault.Exhausted, "session %s has %d executions waiting, the limit", fault.Show(s.ID), count-1).
			WithHint("wait for one of them to end")
	}
	entry := &slot{request: spec.Request, spool: spec.Spooled(), resolved: make(chan struct{}), done: make(chan struct{}), waiting: true, spec: spec}
	if s.processes == nil {
		s.processes = map[string]*slot{}
	}
	s.processes[spec.ID] = entry
	return entry, nil
}

// awaitRoom fills a slot when the session has room. It ends with the session, or at the limits of the queue.
func (s *Session) awaitRoom(ctx context.Context, entry *slot, wait *time.Duration) {
	err := s.admit(ctx, wait, func() error {
		current := s.context()
		s.mu.Lock()
		defer s.mu.Unlock()
		if err := cmp.Or(s.checkSlotLocked(current.Config.Exec.MaxPerSession), s.checkReadyLocked()); err != nil {
			return err
		}
		release, err := s.hooks.Accounts.Execution(s.Owner.Name, &current.Policy)
		if err != nil {
			return err
		}
		if err := s.beginExecLocked(time.Now()); err != nil {
			release()
			return err
		}
		entry.release = release
		return nil
	})
	if err == nil {
		s.launchProcess(ctx, entry, entry.spec)
	} else {
		entry.err = err
		close(entry.resolved)
		s.dropProcess(entry)
	}
	s.mu.Lock()
	entry.waiting = false
	ready := s.state == StateReady
	s.mu.Unlock()
	if ready { // otherwise the next boxd must find it
		s.handOver()
	}
}

// handOver gives the box the executions that wait. It is serialized: an older list that arrived later would lose newer ones,
// and start again what has been started.
func (s *Session) handOver() {
	s.handOverMu.Lock()
	defer s.handOverMu.Unlock()
	s.hooks.HandOver(s)
}

// Waiting returns the executions that wait, for Resume of the next boxd.
func (s *Session) Waiting() []json.RawMessage {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []json.RawMessage
	for _, entry := range s.processes {
		if entry.waiting {
			if text, err := json.Marshal(entry.spec); err == nil { // a Spec can always be marshaled
				list = append(list, text)
			}
		}
	}
	return list
}

// Resume queues again the executions that an earlier boxd has left waiting, except those that have started. They come from PID
// 1, which is not trusted.
func (s *Session) Resume(ctx context.Context, queued []json.RawMessage, log *slog.Logger) {
	for _, text := range queued[:min(len(queued), maxWaiting)] {
		spec := &process.Spec{}
		err := json.Unmarshal(text, spec)
		if err == nil {
			err = spec.Resolve()
		}
		if err == nil && spec.Managed {
			err = errors.New("it is a process")
		}
		if err == nil {
			err = s.resume(ctx, spec)
		}
		if err != nil {
			log.Warn("a waiting execution cannot be restored", "session", s.ID, "error", err)
		}
	}
}

func (s *Session) resume(ctx context.Context, spec *process.Spec) error {
	entry, err := s.enqueue(spec)
	if entry != nil {
		s.hooks.Work.Go(func() { s.awaitRoom(ctx, entry, nil) })
	}
	return err
}
