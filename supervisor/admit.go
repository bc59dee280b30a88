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

// Queue returns the configured limits of the queues in which starts and executions wait.
func (v *Supervisor) Queue() quota.QueueLimits {
	q := v.cfg.Load().Queue
	return quota.QueueLimits{Length: q.Length, Wait: time.Duration(q.Wait)}
}

// admit finds the wanted session, or enters a new one, which the caller must then start, as soon as there is room for it.
func (v *Supervisor) admit(ctx context.Context, w *want) (s *session.Session, isNew bool, err error) {
	if s := v.known(policy.Key(w.caller.Name, w.req.ID)); s != nil {
		return s, false, nil
	}
	t := quota.Waiter{Caller: w.caller.Name, What: w.req.ID, Wait: (*time.Duration)(w.req.Wait)}
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

// knownLocked returns the session of a key: a listed one, or one that has ended but whose end is not yet reported.
func (v *Supervisor) knownLocked(key string) *session.Session {
	if s := v.sessions[key]; s != nil {
		return s
	}
	return v.leaving[key]
}

// admitsOne reports whether sessions may start now, whoever owns them. The error is a *quota.Full if there may be room later.
func (v *Supervisor) admitsOne(w *want) error {
	if err := v.gate.Check(v.cfg.Load().Enabled); err != nil {
		return err
	}
	if err := v.hostRoom(); err != nil {
		return v.hostFull(w, err)
	}
	return nil
}

// claim finds the session or enters a new one that its caller must start. It does nothing slow. The error is a *quota.Full if
// there may be room later.
func (v *Supervisor) claim(w *want) (*session.Session, bool, error) {
	key := policy.Key(w.caller.Name, w.req.ID)
	if s := v.known(key); s != nil {
		return s, false, nil
	}
	if err := v.admitsOne(w); err != nil {
		return nil, false, err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if s := v.knownLocked(key); s != nil {
		return s, false, nil
	}
	if err := v.roomLocked(w); err != nil {
		return nil, false, err
	}
	if err := v.accounts.Session(w.caller.Name, &w.effective, key, quota.SizeOf(&w.settings)); err != nil {
		return nil, false, v.laterLocked(w, err)
	}
	s := session.New(&v.sessionHooks, &session.Params{
		ID: w.req.ID, Owner: w.caller, Created: time.Now(), Settings: w.settings, Profile: w.profile, Made: w.cfg, Env: session.Environment(w.cfg, &w.settings, w.req.Env), Enforced: w.enforced, OneShot: w.req.OneShot,
	})
	v.enterLocked(s)
	v.starting++
	return s, true, nil
}

// laterLocked turns a refusal into a *quota.Full, which can be waited for, if it is about what the principal holds now and not
// about what it has used up.
func (v *Supervisor) laterLocked(w *want, err error) error {
	if d := fault.DenialOf(err); fault.KindOf(err) != fault.Exhausted || d == nil || d.After > 0 {
		return err
	}
	return v.evictedLocked(w, &quota.Full{Reason: quota.Owner, Own: true, Err: err})
}

// evictedLocked evicts a session to make room, if the operator allows that, and says who holds the resource.
func (v *Supervisor) evictedLocked(w *want, full *quota.Full) error {
	if w.cfg.Sessions.Evict {
		full.Soon = v.evictLocked(w.caller)
	}
	return v.holders(w, full)
}

// evictLocked ends the principal's session that has been unused longest and has nothing running, unless one is ending already.
// It reports whether one is ending.
func (v *Supervisor) evictLocked(owner access.Principal) bool {
	var oldest *session.Session
	var since time.Time
	for _, s := range v.sessions {
		if s.Owner.Name != owner.Name {
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
	v.work.Go(func() { _ = v.End(v.baseCtx, oldest, session.EndEvicted) }) // End logs failures
	return true
}

// started notes that a start is over, successful or not.
func (v *Supervisor) started() {
	v.mu.Lock()
	v.starting--
	v.mu.Unlock()
	v.line.Wake()
	v.pool.Wake()
}

// notFound is the error for an id without a session. For a while it tells the owner how the session ended.
func (v *Supervisor) notFound(caller access.Principal, id string) error {
	now := time.Now()
	end, ok := v.ended.Get(policy.Key(caller.Name, id), now)
	if !ok {
		return session.NotFoundError(id)
	}
	return fault.Errorf(fault.NotFound, "no session %s: it ended %v ago (%s): it %s", fault.Show(id), max(now.Sub(end.At), 0).Round(time.Second), end.Reason, end.Reason.Text()).
		WithHint("create another one with boxctl create")
}

// Drain refuses new sessions until Undrain, across restarts of boxd. Existing sessions go on.
func (v *Supervisor) Drain(caller access.Principal, reason string) (Drained, error) {
	d, err := v.gate.Drain(caller.Name, reason, time.Now())
	if err == nil {
		v.log.Warn("boxd is drained and accepts no new sessions", "by", d.By, "reason", d.Reason)
	}
	v.line.Wake()
	v.pool.Wake()
	return d, err
}

// Undrain lets sessions start again.
func (v *Supervisor) Undrain(caller access.Principal) error {
	err := v.gate.Undrain()
	if err == nil {
		v.log.Info("boxd accepts new sessions again", "by", caller.Name)
	}
	v.line.Wake()
	v.pool.Wake()
	return err
}

// Waiting lists the requests that wait for room: starts of sessions, and executions within sessions.
func (v *Supervisor) Waiting() (starts, executions []quota.Position) {
	return v.line.Waiting(), v.execs.Waiting()
}
