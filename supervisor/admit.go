// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/supervisor/access"
	"github.com/boxd-dev/boxd/supervisor/quota"
	"github.com/boxd-dev/boxd/supervisor/session"

	"github.com/boxd-dev/boxd/supervisor/policy"
)

// Queue is what the configuration says about the lines in which starts and executions wait.
func (v *Supervisor) Queue() quota.QueueLimits {
	q := v.cfg.Load().Queue
	return quota.QueueLimits{Length: q.Length, Wait: time.Duration(q.Wait)}
}

// admit finds the session that is wanted, or enters a new one that its caller must start, as soon as there is
// room for it.
func (v *Supervisor) admit(ctx context.Context, w *want) (s *session.Session, isNew bool, err error) {
	if s := v.known(policy.Key(w.who.Name, w.req.ID)); s != nil {
		return s, false, nil
	}
	t := quota.Waiter{Caller: w.who.Name, What: w.req.ID, Wait: (*time.Duration)(w.req.Wait)}
	err = v.line.Admit(ctx, t, func() (err error) {
		s, isNew, err = v.claim(w)
		return err
	})
	return s, isNew, err
}

func (v *Supervisor) known(key string) *session.Session {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.knownLocked(key)
}

// knownLocked is the session that has a name, or one that has ended and whose end has yet to be told.
func (v *Supervisor) knownLocked(key string) *session.Session {
	if s := v.sessions[key]; s != nil {
		return s
	}
	return v.leaving[key]
}

// claim finds the session or enters a new one that its caller must start. Nothing slow happens here. The error
// is an *quota.Full if there may be room later.
func (v *Supervisor) claim(w *want) (*session.Session, bool, error) {
	key := policy.Key(w.who.Name, w.req.ID)
	if s := v.known(key); s != nil {
		return s, false, nil
	}
	if err := v.gate.Check(v.cfg.Load().Enabled); err != nil {
		return nil, false, err
	}
	if err := v.hostRoom(); err != nil {
		return nil, false, v.hostFull(w, err)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if s := v.knownLocked(key); s != nil {
		return s, false, nil
	}
	if err := v.roomLocked(w); err != nil {
		return nil, false, err
	}
	if err := v.accounts.Session(w.who.Name, &w.effective, key, quota.SizeOf(&w.settings)); err != nil {
		return nil, false, v.laterLocked(w, err)
	}
	s := session.New(&v.sessionHooks, &session.Params{
		ID: w.req.ID, Owner: w.who, Created: time.Now(), Settings: w.settings, Profile: w.profile, Made: w.cfg, Env: session.Environment(w.cfg, &w.settings, w.req.Env), Enforced: w.enforced, OneShot: w.req.OneShot,
	})
	v.enterLocked(s)
	v.starting++
	return s, true, nil
}

// laterLocked makes something to wait for of a refusal, if it is about what the principal has, and not about
// what it has had.
func (v *Supervisor) laterLocked(w *want, err error) error {
	if d := fault.DenialOf(err); fault.KindOf(err) != fault.Exhausted || d == nil || d.After > 0 {
		return err
	}
	return v.evictedLocked(w, &quota.Full{Reason: quota.Owner, Own: true, Err: err})
}

// evictedLocked makes room for what is wanted, where the operator lets sessions be evicted, and says who holds it.
func (v *Supervisor) evictedLocked(w *want, full *quota.Full) error {
	if w.cfg.Sessions.Evict {
		full.Soon = v.evictLocked(w.who)
	}
	return v.holders(w, full)
}

// evictLocked ends the session of a principal that was not used for the longest time, if there is one in
// which nothing runs and none is ending already. It reports whether one is.
func (v *Supervisor) evictLocked(who access.Principal) bool {
	var oldest *session.Session
	var since time.Time
	for _, s := range v.sessions {
		if s.Owner.Name != who.Name {
			continue
		}
		if state, _, _ := s.State(); s.Reason() != "" || state == session.StateStopping {
			return true
		}
		if at, idle := s.IdleSince(); idle && (oldest == nil || at.Before(since)) {
			oldest, since = s, at
		}
	}
	if oldest == nil {
		return false
	}
	v.work.Go(func() { _ = v.End(v.life, oldest, session.EndEvicted) }) // logged where it fails
	return true
}

// started notes that a start is over, well or not.
func (v *Supervisor) started() {
	v.mu.Lock()
	v.starting--
	v.mu.Unlock()
	v.line.Wake()
	v.pool.Wake()
}

// gone is the answer where there is no session of an id: its owner is told how it has ended, for a while.
func (v *Supervisor) gone(who access.Principal, id string) error {
	now := time.Now()
	end, ok := v.ended.Get(policy.Key(who.Name, id), now)
	if !ok {
		return session.NotFoundError(id)
	}
	return fault.Errorf(fault.NotFound, "no session %s: it ended %v ago (%s): it %s", fault.Show(id), max(now.Sub(end.At), 0).Round(time.Second), end.Reason, end.Reason.Text()).
		WithHint("create another one with boxctl create")
}

// Drain refuses new sessions until Undrain, whatever becomes of boxd. Those that live go on.
func (v *Supervisor) Drain(who access.Principal, reason string) (Drained, error) {
	d, err := v.gate.Drain(who.Name, reason, time.Now())
	if err == nil {
		v.log.Warn("boxd is drained and accepts no new sessions", "by", d.By, "reason", d.Reason)
	}
	v.line.Wake()
	v.pool.Wake()
	return d, err
}

// Undrain lets sessions start again.
func (v *Supervisor) Undrain(who access.Principal) error {
	err := v.gate.Undrain()
	if err == nil {
		v.log.Info("boxd accepts new sessions again", "by", who.Name)
	}
	v.line.Wake()
	v.pool.Wake()
	return err
}

// Waiting lists who waits for room: for a session, and within sessions.
func (v *Supervisor) Waiting() (starts, executions []quota.Position) {
	return v.line.Waiting(), v.execs.Waiting()
}
