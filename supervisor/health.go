// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/boxd-dev/boxd/isolation/client"
	"github.com/boxd-dev/boxd/supervisor/policy"
	"github.com/boxd-dev/boxd/supervisor/session"
)

// pingAtOnce is how many boxes are pinged at a time.
const pingAtOnce = 32

// pingOff is the interval at which pingBoxes checks whether pings have been enabled.
const pingOff = 10 * time.Second

// pingBoxes pings the box of every session, repeatedly, until ctx ends.
func (v *Supervisor) pingBoxes(ctx context.Context) {
	for {
		every := time.Duration(v.cfg.Load().Sessions.Ping)
		pause := every
		if every == 0 {
			pause = pingOff
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
		if every > 0 {
			v.pingAll(ctx, every)
		}
	}
}

func (v *Supervisor) pingAll(ctx context.Context, timeout time.Duration) {
	var wg sync.WaitGroup
	sem := make(chan struct{}, pingAtOnce)
	for _, s := range v.all() {
		sem <- struct{}{}
		wg.Go(func() {
			defer func() { <-sem }()
			v.ping(ctx, s, timeout)
		})
	}
	wg.Wait()
}

// ping pings one box. One that has not answered for too long is ended, if the operator wants that.
func (v *Supervisor) ping(ctx context.Context, s *session.Session, timeout time.Duration) {
	if state, lost, _ := s.State(); state != session.StateReady || lost {
		return
	}
	timeoutCtx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	err := s.Box().Ping(timeoutCtx)
	if ctx.Err() != nil {
		return
	}
	silent := s.Pinged(err)
	if silent < session.Unhealthy {
		return
	}
	if silent == session.Unhealthy {
		v.log.Error("session is unhealthy: its PID 1 does not answer", "session", s.ID, "owner", s.Owner.Name)
	}
	if v.cfg.Load().Sessions.Unhealthy == policy.UnhealthyEnd {
		v.work.Go(func() { _ = v.End(v.baseCtx, s, session.EndUnhealthy) }) // End logs failures
	}
}

// all returns all listed sessions.
func (v *Supervisor) all() []*session.Session {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.allLocked()
}

func (v *Supervisor) allLocked() []*session.Session { return slices.Collect(maps.Values(v.sessions)) }

// enterLocked puts a session on the list.
func (v *Supervisor) enterLocked(s *session.Session) {
	v.sessions[s.Key] = s
	v.owned[s.Owner.Name]++
	v.markStoppedLocked(s)
}

// markStoppedLocked marks a session as stopped if it is.
func (v *Supervisor) markStoppedLocked(s *session.Session) {
	if state, _, _ := s.State(); state == session.StateStopped {
		v.stopped[s] = true
	}
}

// replaceLocked replaces a listed session by another of the same key.
func (v *Supervisor) replaceLocked(prev, next *session.Session) {
	delete(v.stopped, prev)
	v.sessions[next.Key] = next
	v.markStoppedLocked(next)
}

// livingLocked returns how many sessions have a box, or will have one.
func (v *Supervisor) livingLocked() int { return len(v.sessions) - len(v.stopped) }

// leaveLocked takes a session off the list, if it is on it.
func (v *Supervisor) leaveLocked(s *session.Session) {
	if v.sessions[s.Key] != s {
		return
	}
	delete(v.sessions, s.Key)
	delete(v.stopped, s)
	if v.owned[s.Owner.Name]--; v.owned[s.Owner.Name] == 0 {
		delete(v.owned, s.Owner.Name) // so that the names of owners do not accumulate
	}
}

// Renew restarts the idle time of a session.
func (v *Supervisor) Renew(ctx context.Context, s *session.Session) error {
	if err := s.Await(ctx); err != nil {
		return err
	}
	s.Touch(time.Now())
	v.due(s, time.Time{})
	return nil
}

// freezeIdle freezes a session that is still idle.
func (v *Supervisor) freezeIdle(s *session.Session) {
	if err := s.FreezeIdle(); err != nil && !errors.Is(err, client.ErrBoxLost) {
		v.log.Warn("cannot freeze session", "session", s.ID, "error", err)
	}
}

// keepRecord rewrites the record of a session.
func (v *Supervisor) keepRecord(s *session.Session) {
	if err := v.record.Write(s); err != nil {
		v.log.Error("cannot write record", "session", s.ID, "error", err)
	}
}

// handOverAgain gives the box of a session the current state of what the next boxd needs.
func (v *Supervisor) handOverAgain(s *session.Session) {
	if err := v.handOver(s, s.Box(), s.Environment(), s.Waiting()); err != nil && !errors.Is(err, client.ErrBoxLost) {
		v.log.Error("cannot record waiting executions; the next boxd will not know them", "session", s.ID, "error", err)
	}
}

// reclaim takes back memory that the programs of a session do not need.
func (v *Supervisor) reclaim(s *session.Session) {
	ctx, cancel := context.WithTimeout(v.baseCtx, startTimeout)
	defer cancel()
	if err := v.boxes.Reclaim(ctx, s.BoxKey()); err != nil && !errors.Is(err, errors.ErrUnsupported) {
		v.log.Debug("cannot reclaim memory", "session", s.ID, "error", err)
	}
}
