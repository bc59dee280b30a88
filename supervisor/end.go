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

// End ends a session and waits until nothing is left of it, or ctx ends; the ending goes on anyway, until boxd itself ends. A
// session that is ending already is only waited for.
func (v *Supervisor) End(ctx context.Context, s *session.Session, reason session.EndReason) error {
	if !removed(reason) {
		return v.end(ctx, s, reason)
	}
	v.mu.Lock()
	r := v.deletions[s]
	if r == nil { // there is one for all that remove it, however many hang up
		if v.deletions == nil {
			v.deletions = map[*session.Session]*deletion{}
		}
		r = &deletion{done: make(chan struct{})}
		v.deletions[s] = r
		v.work.Go(func() { v.delete(ctx, r, s, reason) })
	}
	v.mu.Unlock()
	select {
	case <-r.done:
		return r.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// deletion is the end of a session that somebody has asked for.
type deletion struct {
	done chan struct{} // closed when err is set
	err  error
}

// delete ends a session for all who remove it. It outlives its caller, but not boxd.
func (v *Supervisor) delete(caller context.Context, r *deletion, s *session.Session, reason session.EndReason) {
	ctx, stop := context.WithCancel(context.WithoutCancel(caller))
	defer stop()
	defer context.AfterFunc(v.baseCtx, stop)() //nolint:contextcheck // see above
	r.err = v.end(ctx, s, reason)
	v.mu.Lock()
	delete(v.deletions, s)
	v.mu.Unlock()
	close(r.done)
}

// end is End for a caller that stays.
func (v *Supervisor) end(ctx context.Context, s *session.Session, reason session.EndReason) error {
	for {
		select {
		case <-s.Started():
		case <-ctx.Done():
			return ctx.Err()
		}
		if reason == session.EndLost {
			reason = v.whyLost(ctx, s)
		}
		if v.pushes.awaitPushes(ctx, s, reason) && v.usedAgain(s, reason) {
			return nil
		}
		if beginEnd(s, reason) {
			v.work.Go(func() { v.release(context.WithoutCancel(ctx), s) }) // continues when boxd ends
		} else if removed(reason) {
			v.skipGrace(s) // it may be that it is being stopped
		}
		select {
		case <-s.Ended():
		case <-ctx.Done():
			return ctx.Err()
		}
		// An end for the box or a deadline concerns this session only. A caller that removes the session means its successor
		// too.
		next := s.Next()
		if next == nil || !removed(reason) {
			return nil
		}
		s = next
	}
}

// usedAgain reports whether a session was used again after it was found idle, so that it does not end for that.
func (v *Supervisor) usedAgain(s *session.Session, reason session.EndReason) bool {
	switch _, idle := s.IdleSince(); reason { //nolint:exhaustive // the others are not about its use
	case session.EndEvicted:
		if !idle {
			v.line.Wake() // another may give way
		}
		return !idle
	case session.EndIdle:
		at, reason := s.Expiry()
		again := reason != session.EndIdle || at.After(time.Now())
		if again {
			v.due(s, time.Time{})
		}
		return again
	}
	return false
}

// beginEnd reports whether the caller must end the session. A stop whose record cannot be written is undone, and only after that
// it is known whether the session is stopping.
func beginEnd(s *session.Session, reason session.EndReason) (first bool) {
	if s.BeginEnd(reason) {
		return true
	}
	if state, _, _ := s.State(); state != session.StateEnding && state != session.StateEnded { // or it was stopping until just now
		_ = s.Exclusive(func() error {
			first = s.BeginEnd(reason)
			return nil
		})
	}
	return first
}

// removed reports whether a session ends because it is to be gone, with the one that may follow it.
func removed(reason session.EndReason) bool {
	return reason == session.EndDeleted || reason == session.EndUnclaimed
}

// causeTimeout bounds the wait for the keeper to say why a box is gone.
const causeTimeout = 2 * time.Second

// whyLost returns why the box of a session is gone: the keeper may have ended it.
func (v *Supervisor) whyLost(ctx context.Context, s *session.Session) session.EndReason {
	ctx, cancel := context.WithTimeout(ctx, causeTimeout)
	defer cancel()
	if cause, err := v.boxes.WhyEnded(ctx, s.BoxKey()); err == nil && cause == isolation.CauseFileLocks {
		return session.EndFileLocks
	}
	return session.EndLost // also if there is no keeper to ask
}

// release ends the box and forgets the session. It stays listed until the box has ended.
func (v *Supervisor) release(caller context.Context, s *session.Session) {
	box, reason, last := s.Box(), s.Reason(), v.reading(s)
	if box != nil && (reason == session.EndLost || reason == session.EndFileLocks || reason == session.EndUnhealthy) {
		box.Close() // callers that wait for a program need not wait for the kernel too
	}
	forgotten := make(chan struct{})
	go func() { // waited for below; with no record, or one marked as ending, the next boxd carries on
		defer close(forgotten)
		v.record.Ending(s)
	}()
	if box == nil {
		v.released(s)
	}
	v.endBox(s, func(ctx context.Context) error { return v.Spaces.EndBox(ctx, s.BoxKey()) }) //nolint:contextcheck // the caller is for what is told of it alone
	if box != nil {
		box.Close()
	}
	<-forgotten
	_ = s.Exclusive(func() error {
		v.record.Ending(s) // again, with mounts that were in progress
		v.record.End(caller, s)
		v.giveBack(s.Key)
		return nil
	})
	v.Spaces.Release(s.Key)
	s.DropProcesses()
	v.ledger.Stop(s.Key, last)
	v.leave(s)
	v.ended.Add(s.Key, reason, time.Now())
	s.Emit(caller, events.Event{Type: events.SessionEnded, Reason: string(reason), Profile: s.Current().Profile, Took: time.Since(s.Created), Detail: fmt.Sprintf("%d executions", s.Info().Executions)}) // before callers waiting for the end look for it
	v.freeName(s)
	s.FinishEnd()
	v.line.Wake()
	v.pool.Wake()
}

// released waits until nobody holds a stopped session: a snapshot is completed, and reading its files is broken off.
func (v *Supervisor) released(s *session.Session) {
	v.mu.Lock()
	h := v.stopHolds[s]
	v.mu.Unlock()
	if h == nil {
		return
	}
	if h.removed != nil {
		h.removed()
	}
	<-h.done
}

// leave takes a session off the list but keeps its name reserved: a new session of that name starts after the end is reported.
func (v *Supervisor) leave(s *session.Session) {
	v.mu.Lock()
	v.leaving[s.Key] = s
	v.mu.Unlock()
	v.forget(s)
}

// freeName lets a new session have the name of one that has ended.
func (v *Supervisor) freeName(s *session.Session) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.leaving, s.Key)
}

// endRetry is the interval between attempts to end a box that does not die.
const endRetry = time.Second

// giveBack releases the secrets, skills, drives and images of a session whose box has ended or never existed.
func (v *Supervisor) giveBack(key string) {
	v.secrets.Forget(key)
	v.Attachments.Release(key)
}
