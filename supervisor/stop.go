// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation/client"
	"github.com/boxd-dev/boxd/supervisor/events"
	"github.com/boxd-dev/boxd/supervisor/policy"
	"github.com/boxd-dev/boxd/supervisor/quota"
	"github.com/boxd-dev/boxd/supervisor/session"
)

// A stopped session has its files on disk and a record that says so, and nothing else: no box, no memory, nothing in the
// runtime directory. The record says so before anything is ended, and until a box exists again. So a boxd that is killed in
// between leaves a running session or a stopped one, and the next boxd ends what is left of a stopped one's box.

// Stop ends the programs of a session, each by its own stop settings, and its box, and keeps its files on disk until Start, or
// for as long as sessions.stopped_age says. It returns the stopped session, also if it was stopped already. Stopping continues
// if ctx ends.
func (v *Supervisor) Stop(ctx context.Context, s *session.Session) (*session.Session, error) {
	for {
		select {
		case <-s.Started():
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		state, _, _ := s.State()
		if state == session.StateStopped {
			return s, nil
		}
		v.pushes.awaitPushes(ctx, s, "")
		programs, err := v.beginStop(s)
		if err != nil {
			return nil, err
		}
		first := programs != nil
		if first {
			v.work.Go(func() { v.finishStop(context.WithoutCancel(ctx), programs, s) }) // continues after its first caller hangs up
		}
		select {
		case <-s.Ended():
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		next := s.Next()
		switch {
		case next == nil:
			return nil, v.notFound(s.Owner, s.ID)
		case first || state == session.StateStopping:
			return next, nil
		}
		s = next // it had been stopped, or failed to start again, before
	}
}

// beginStop records that a session is stopped, which is what the next boxd goes by. If the caller must do the rest, it returns
// the context for the time that programs have; else nil.
func (v *Supervisor) beginStop(s *session.Session) (programs context.Context, err error) {
	if s.OneShot {
		return nil, fault.Errorf(fault.Conflict, "session %s is for one execution and cannot be stopped", fault.Show(s.ID)).WithHint("create a session for programs that go on")
	}
	err = s.Exclusive(func() error {
		if state, lost, _ := s.State(); state != session.StateReady || lost {
			return nil // another caller stops it, or handles its loss
		}
		if err := s.Awake(); err != nil { // frozen programs handle no signal
			return err
		}
		stopped := &session.Stopped{Since: time.Now(), Rested: s.Rested()}
		for _, kv := range s.Environment() {
			stopped.Env = append(stopped.Env, []byte(kv))
		}
		ctx := v.stoppable(s)
		if !s.BeginStop() {
			v.skipGrace(s)
			return nil
		}
		stopped.Again = s.ToHaveAgain() // nothing can be started any more
		if err := v.record.Stopped(s, stopped); err != nil {
			v.skipGrace(s)
			s.CancelStop()
			return fmt.Errorf("stop session %q: %w", s.ID, err)
		}
		programs = ctx //nolint:fatcontext // there is only this one
		return nil
	})
	return programs, err
}

// stoppable returns the context for the time that programs of a session have to end when it is stopped. skipGrace ends it.
func (v *Supervisor) stoppable(s *session.Session) context.Context {
	ctx, cancel := context.WithCancel(v.baseCtx)
	v.mu.Lock()
	defer v.mu.Unlock()
	v.stopping[s] = cancel
	return ctx
}

// skipGrace takes the time that is left from the programs of a session that is being stopped; the box ends them.
func (v *Supervisor) skipGrace(s *session.Session) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if cancel := v.stopping[s]; cancel != nil {
		cancel()
		delete(v.stopping, s)
	}
}

// finishStop ends the programs and box of a stopping session, and puts a stopped one in its place.
func (v *Supervisor) finishStop(caller, programs context.Context, s *session.Session) {
	start, last := time.Now(), v.reading(s)
	s.StopProcesses(programs)
	v.skipGrace(s)                                                                              // nobody else needs to
	v.endBox(s, func(ctx context.Context) error { return v.boxes.End(ctx, s.BoxKey(), false) }) //nolint:contextcheck // the same
	s.Box().Close()
	var next *session.Session
	_ = s.Exclusive(func() error {
		v.record.unmounted(caller, s)
		next = v.stoppedFrom(s)
		retire(s)
		v.keepRecord(next)
		return nil
	})
	s.DropProcesses()
	v.secrets.Forget(s.Key)
	v.ledger.Stop(s.Key, last)
	v.replaceStopped(s, next)
	next.Emit(caller, events.Event{Type: events.SessionStopped, Profile: next.Current().Profile, Took: time.Since(start)}) // before callers waiting for it look for it
	s.Succeed(next)
	v.line.Wake()
	v.pool.Wake()
	v.due(next, time.Time{})
}

// stoppedFrom returns the stopped session that replaces one that has lost its box.
func (v *Supervisor) stoppedFrom(s *session.Session) *session.Session {
	stopped := s.Record.Stopped
	settings := s.Current()
	settings.Unsettled = false // its rules are set anew at the next start
	v.Attachments.releaseUnused(s)
	next := session.NewStopped(&v.sessionHooks, &session.Params{
		ID: s.ID, Owner: s.Owner, Created: s.Created, Settings: settings, Profile: s.Profile(), Made: s.Made(), Env: stopped.Environment(), Enforced: s.Enforced(),
		Skills: s.Skills(), Drives: s.Drives(), Pushes: s.Pushes(), Rested: stopped.Rested, Stopped: stopped,
	})
	if s.BoxKey() != s.Key {
		next.SetBoxKey(s.BoxKey())
	}
	next.TakeHistory(s)
	return next
}

// replaceStopped replaces a session by a stopped one, which reserves neither memory nor CPU.
func (v *Supervisor) replaceStopped(prev, next *session.Session) {
	v.unsize(prev, &policy.Settings{Labels: next.Settings.Labels})
	v.ledger.Resume(next.Owner.Name, next.Key, v.reading(next))
	v.mu.Lock()
	defer v.mu.Unlock()
	v.replaceLocked(prev, next)
}

// Start starts a stopped session again with its id, settings, environment and files, as soon as there is room, as for a new
// one. wait bounds the wait; nil: the configuration does. It returns the running session, also if it was running already.
func (v *Supervisor) Start(ctx context.Context, s *session.Session, wait *time.Duration) (*session.Session, error) {
	for {
		select {
		case <-s.Started():
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		state, lost, err := s.State()
		switch {
		case err != nil:
			return nil, err // from the start by another caller that this one has waited for
		case state == session.StateReady && !lost:
			s.Touch(time.Now())
			return s, nil
		case state == session.StateStopped:
			next, first, err := v.admitAgain(ctx, s, wait)
			if err != nil {
				return nil, err
			}
			if first {
				return next, v.start(ctx, next)
			}
			s = next
			continue
		}
		select { // it is ending or stopping
		case <-s.Ended():
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		next := s.Next()
		if next == nil {
			return nil, v.notFound(s.Owner, s.ID)
		}
		s = next
	}
}

// errStale says that the settings of a stopped session have changed while its start was being decided on.
var errStale = errors.New("the session was changed")

// admitAgain replaces a stopped session by one that the caller must start, as soon as there is room. If another caller was
// first, it returns that one's.
func (v *Supervisor) admitAgain(ctx context.Context, s *session.Session, wait *time.Duration) (next *session.Session, first bool, err error) {
	err = errStale
	for errors.Is(err, errStale) {
		changes := s.Changes()
		w, werr := v.wantAgain(ctx, s)
		if werr != nil {
			return nil, false, werr
		}
		err = v.line.Admit(ctx, quota.Waiter{Caller: s.Owner.Name, What: s.ID, Wait: wait}, func() (err error) {
			next, first, err = v.claimAgain(s, w, changes)
			return err
		})
	}
	if first { // whatever still refers to the old one no longer writes records
		retire(s)
	}
	return next, first, err
}

// retire prevents further writes to the record by a session that has been replaced.
func retire(s *session.Session) {
	s.Record.Lock()
	defer s.Record.Unlock()
	s.Record.Gone = true
}

// wantAgain checks a stopped session against the configuration and the policy of its owner, as a request for it would be.
func (v *Supervisor) wantAgain(ctx context.Context, s *session.Session) (*want, error) {
	w := &want{caller: s.Owner, req: &policy.Request{ID: s.ID}, cfg: v.cfg.Load(), settings: s.Current()}
	w.effective = effectivePolicy(w.cfg, w.caller).For(w.settings.Labels)
	if err := w.effective.Hold(&w.settings, w.req); err != nil {
		return w, err
	}
	err := resolveMounts(ctx, v.boxes, &w.effective, w.caller.UID, w.settings.Mounts)
	if err == nil {
		w.enforced, err = v.enforcement(ctx, w.cfg, &w.settings)
	}
	if err == nil {
		w.profile, err = w.cfg.Recheck(&w.settings, w.enforced)
	}
	if err == nil {
		err = v.Spaces.Validate(w.caller.Name, &w.settings, w.enforced)
	}
	return w, err
}

// claimAgain enters a session that its caller must start. It does nothing slow. The error is a *quota.Full if there may be room
// later.
func (v *Supervisor) claimAgain(s *session.Session, w *want, changes int) (*session.Session, bool, error) {
	if err := v.admitsOne(w); err != nil {
		return nil, false, err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	switch now := v.sessions[s.Key]; {
	case now == nil:
		return nil, false, v.notFound(s.Owner, s.ID)
	case now != s:
		return now, false, nil
	case s.Changes() != changes:
		return nil, false, errStale
	case v.stopHolds[s] != nil:
		return nil, false, heldError(s.ID)
	}
	if err := v.spaceLocked(w); err != nil {
		if full, ok := errors.AsType[*quota.Full](err); ok && full.Reason != quota.Starts {
			return nil, false, v.evictedLocked(w, full)
		}
		return nil, false, err
	}
	if err := v.accounts.Resize(w.caller.Name, &w.effective, s.Key, quota.SizeOf(&w.settings)); err != nil {
		return nil, false, v.laterLocked(w, err)
	}
	stopped := s.Stopped()
	next := session.New(&v.sessionHooks, &session.Params{
		ID: s.ID, Owner: s.Owner, Created: s.Created, Settings: w.settings, Profile: w.profile, Made: w.cfg, Env: stopped.Environment(), Enforced: w.enforced,
		Skills: s.Skills(), Drives: s.Drives(), Pushes: s.Pushes(), Rested: stopped.Rested + max(time.Since(stopped.Since), 0), Stopped: stopped,
	})
	next.TakeHistory(s)
	if s.BoxKey() != s.Key {
		next.SetBoxKey(s.BoxKey())
	}
	if !s.Succeed(next) { // it is being removed
		v.unsize(s, &policy.Settings{Labels: w.settings.Labels})
		return nil, false, session.NotFoundError(s.ID)
	}
	v.replaceLocked(s, next)
	v.starting++
	return next, true, nil
}

// startFailed puts a stopped session back in place of one that could not be started again.
func (v *Supervisor) startFailed(ctx context.Context, s *session.Session) {
	v.secrets.Forget(s.Key)
	v.record.unmounted(ctx, s)
	back := v.stoppedFrom(s)
	retire(s)
	v.keepRecord(back)
	v.replaceStopped(s, back)
	s.Fail(back)
	v.due(back, time.Time{})
}

// startedAgain records that a stopped session has its box.
func (v *Supervisor) startedAgain(s *session.Session) error {
	if s.Stopped() == nil {
		return nil
	}
	return v.record.restarted(s)
}

// resume restores what a session had when it was stopped, besides its box: mounts that were added while it lived, and
// processes. What cannot be restored is logged and left out.
func (v *Supervisor) resume(ctx context.Context, s *session.Session, again *session.Again) {
	for _, m := range again.Mounts {
		if _, _, err := v.Mounts(s).Add(ctx, m, false); err != nil {
			v.log.Warn("cannot restore a mount of a session that was stopped", "session", s.ID, "target", m.Target, "error", err)
			s.Emit(ctx, events.Event{Type: events.SessionChanged, Detail: "the mount on " + m.Target + " could not be restored: " + err.Error()})
		}
	}
	s.StartAgain(ctx, again.Processes, v.log)
	v.record.resumed(s)
	v.resumePushes(s) //nolint:contextcheck // results are taken in the life of boxd
}

// takeOverStopped enters a session that an earlier boxd has stopped, or had begun to stop or start, and ends what is left of
// its box. It returns nil if the files of the session are missing.
func (v *Supervisor) takeOverStopped(ctx context.Context, l *Left, box string) (*session.Session, error) {
	r := l.Of(box)
	if r.Settings.OwnDisk() && (r.Settings.Workspace == "" || r.Settings.OwnDir()) {
		if _, err := os.Lstat(filepath.Join(v.Workspaces(), box)); errors.Is(err, fs.ErrNotExist) {
			v.log.Error("a stopped session is lost: its files are missing", "record", v.records.Path(r.Key), "error", err)
			return nil, nil //nolint:nilnil // it is cleaned up after
		}
	}
	var err error
	if slices.Contains(l.Living, box) {
		err = v.boxes.End(ctx, box, false)
	}
	if err != nil && (ctx.Err() != nil || session.Transient(err)) {
		return nil, fmt.Errorf("stop session %s (the next boxd tries again): %w", r.Key, err)
	}
	if err != nil && !errors.Is(err, syscall.EUCLEAN) {
		v.log.Error("cannot end the box of a stopped session; the next boxd tries again", "session", r.ID, "error", err)
	}
	cfg := v.cfg.Load()
	profile := cfg.Profiles[r.Settings.Profile] // if it is gone, the session does not start
	s := session.NewStopped(&v.sessionHooks, &session.Params{
		ID: r.ID, Owner: r.Owner.Principal(), Created: r.Created, Settings: r.Settings, Profile: &profile, Made: cfg, Env: r.Stopped.Environment(), Enforced: r.Enforced,
		Skills: r.Skills, Drives: r.Drives, Pushes: r.Pushes, Rested: r.Stopped.Rested, Stopped: r.Stopped,
	})
	s.SetBoxKey(r.Box)
	v.Attachments.releaseUnused(s)
	return s, nil
}

// enterStopped puts a session from takeOverStopped on the list.
func (v *Supervisor) enterStopped(ctx context.Context, s *session.Session) {
	v.record.unmounted(ctx, s)
	v.keepRecord(s)
	effective := v.cfg.Load().PolicyOf(s.Owner).For(s.Settings.Labels)
	v.accounts.Restore(s.Owner.Name, &effective, s.Key, quota.Size{})
	v.ledger.Resume(s.Owner.Name, s.Key, v.reading(s))
	v.mu.Lock()
	defer v.mu.Unlock()
	v.enterLocked(s)
}

// endBox retries end until it succeeds or boxd gives up: then the next boxd does it.
func (v *Supervisor) endBox(s *session.Session, end func(context.Context) error) {
	for {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(v.baseCtx), startTimeout)
		err := end(ctx)
		cancel()
		if err == nil || errors.Is(err, client.ErrKeeperGone) {
			return
		}
		v.log.Error("cannot end session; trying again", "session", s.ID, "error", err)
		select {
		case <-time.After(endRetry):
		case <-v.baseCtx.Done():
			return
		}
	}
}

// resumeAdopted finishes what the boxd that started the session again had left undone.
func (v *Supervisor) resumeAdopted(ctx context.Context, l *Left, s *session.Session) {
	if r := l.Records[s.Key]; r != nil && r.Again != nil {
		v.resume(context.WithoutCancel(ctx), s, r.Again)
		return
	}
	v.resumePushes(s) //nolint:contextcheck // results are taken in the life of boxd
}
