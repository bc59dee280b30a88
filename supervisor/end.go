// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"fmt"
	"time"

	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/supervisor/events"
	"github.com/boxd-dev/boxd/supervisor/session"
)

// End ends a session and waits until nothing is left of it, or ctx ends; the ending goes on anyway.
// Ending one that is ending already only waits.
func (v *Supervisor) End(ctx context.Context, s *session.Session, reason session.EndReason) error {
	for {
		select {
		case <-s.Started():
		case <-ctx.Done():
			return ctx.Err()
		}
		if reason == session.EndLost {
			reason = v.whyLost(ctx, s)
		}
		v.pushes.settle(ctx, s, reason)
		if s.BeginEnd(reason) {
			v.work.Go(func() { v.release(context.WithoutCancel(ctx), s) }) // goes on when its first caller has gone
		}
		select {
		case <-s.Ended():
		case <-ctx.Done():
			return ctx.Err()
		}
		// What was to end because of its box, or of its time, has ended. Whoever wants the session gone means the one that
		// has taken its place too.
		next := s.Next()
		if next == nil || reason != session.EndDeleted && reason != session.EndUnclaimed {
			return nil
		}
		s = next
	}
}

// causePatience bounds the wait for the keeper's word about a box that is gone.
const causePatience = 2 * time.Second

// whyLost returns why the box of a session is gone: the keeper may have ended it.
func (v *Supervisor) whyLost(ctx context.Context, s *session.Session) session.EndReason {
	ctx, cancel := context.WithTimeout(ctx, causePatience)
	defer cancel()
	if cause, err := v.boxes.WhyEnded(ctx, s.BoxKey()); err == nil && cause == isolation.CauseFileLocks {
		return session.EndFileLocks
	}
	return session.EndLost // also where there is no keeper to ask
}

// release ends the box and forgets the session. While the box resists it stays in the list.
func (v *Supervisor) release(caller context.Context, s *session.Session) {
	box, reason, last := s.Box(), s.Reason(), v.reading(s)
	if box != nil && (reason == session.EndLost || reason == session.EndFileLocks || reason == session.EndUnhealthy) {
		box.Close() // whoever waits for a program of it need not wait for the kernel too
	}
	forgotten := make(chan struct{})
	go func() { // waited for below; without a record, or with one that says so, the next boxd goes on with this
		defer close(forgotten)
		v.record.Ending(s)
	}()
	if box == nil {
		_ = s.Exclusive(func() error { return nil }) // a snapshot of it that is being taken or restored is waited for
	}
	v.endBox(s, func(ctx context.Context) error { return v.Spaces.EndBox(ctx, s.BoxKey()) }) //nolint:contextcheck // the caller is for what is told of it alone
	if box != nil {
		box.Close()
	}
	<-forgotten
	_ = s.Exclusive(func() error {
		v.record.Ending(s) // and with what was still being mounted
		v.record.End(caller, s)
		v.giveBack(s.Key)
		return nil
	})
	v.Spaces.Release(s.Key)
	s.DropProcesses()
	v.ledger.Stop(s.Key, last)
	v.leave(s)
	v.ended.Add(s.Key, reason, time.Now())
	s.Emit(caller, events.Event{Type: events.SessionEnded, Reason: string(reason), Profile: s.Current().Profile, Took: time.Since(s.Created), Detail: fmt.Sprintf("%d executions", s.Info().Executions)}) // before whoever waits for the end asks for it
	v.freeName(s)
	s.FinishEnd()
	v.line.Wake()
	v.pool.Wake()
}

// leave takes a session off the list while its name is still its own: the next one of that name starts after its end is told.
func (v *Supervisor) leave(s *session.Session) {
	v.mu.Lock()
	v.leaving[s.Key] = s
	v.mu.Unlock()
	v.forget(s)
}

// freeName lets another session have the name of one that has ended.
func (v *Supervisor) freeName(s *session.Session) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.leaving, s.Key)
}

// endRetry is how often a box that does not die is tried again.
const endRetry = time.Second

// giveBack returns what a session has of secrets, skills, drives and images, whose box has ended or has never been.
func (v *Supervisor) giveBack(key string) {
	v.secrets.Forget(key)
	v.Attachments.Release(key)
}
