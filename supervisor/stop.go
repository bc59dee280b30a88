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

// A stopped session has a record that says so and what it has on disk, and nothing else: no box, no memory, nothing in the
// runtime directory. The record says so before anything is ended, and until a box is there again, so a boxd that is killed
// in between leaves a session that runs or one that is stopped: the next ends what is left of a box of the latter.

// Stop ends the programs of a session, each in its own way, and its box, and keeps what it has on disk, until Start or for
// as long as sessions.stopped_age says. It returns the session as it is stopped. Stopping goes on if ctx ends. One that is
// stopped already is returned as it is.
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
		v.pushes.settle(ctx, s, "")
		first, err := v.beginStop(s)
		if err != nil {
			return nil, err
		}
		if first {
			v.work.Go(func() { v.finishStop(context.WithoutCancel(ctx), s) }) // goes on when its first caller has gone
		}
		select {
		case <-s.Ended():
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		next := s.Next()
		switch {
		case next == nil:
			return nil, v.gone(s.Owner, s.ID)
		case first || state == session.StateStopping:
			return next, nil
		}
		s = next // it had been stopped, or could not be started again, before
	}
}

// beginStop writes down that a session is stopped, which is what another boxd goes by, and reports whether the rest is for
// the caller to do.
func (v *Supervisor) beginStop(s *session.Session) (first bool, err error) {
	if s.OneShot {
		return false, fault.Errorf(fault.Conflict, "session %s is for one execution and cannot be stopped", fault.Show(s.ID)).WithHint("create a session for programs that go on")
	}
	err = s.Exclusive(func() error {
		if state, lost, _ := s.State(); state != session.StateReady || lost {
			return nil // whoever has come first, or finds it lost, sees to it
		}
		if err := s.Awake(); err != nil { // a program that is frozen hears of no signal
			return err
		}
		is := &session.Stopped{Since: time.Now(), Rested: s.Rested(), Again: s.ToHaveAgain()}
		for _, kv := range s.Environment() {
			is.Env = append(is.Env, []byte(kv))
		}
		if first = s.BeginStop(); !first {
			return nil
		}
		if err := v.record.Stopped(s, is); err != nil {
			first = false
			s.CancelStop()
			return fmt.Errorf("stop session %q: %w", s.ID, err)
		}
		return nil
	})
	return first, err
}

// finishStop ends what a session has that is stopping, and puts a stopped one in its place.
func (v *Supervisor) finishStop(caller context.Context, s *session.Session) {
	begin, last := time.Now(), v.reading(s)
	s.StopProcesses(v.life)                                                                     //nolint:contextcheck // the caller is for what is told of it alone
	v.endBox(s, func(ctx context.Context) error { return v.boxes.End(ctx, s.BoxKey(), false) }) //nolint:contextcheck // the same
	s.Box().Close()
	var next *session.Session
	_ = s.Exclusive(func() error {
		v.record.Unmounted(caller, s)
		next = v.rest(s)
		retire(s)
		v.keepRecord(next)
		return nil
	})
	s.DropProcesses()
	v.secrets.Forget(s.Key)
	v.ledger.Stop(s.Key, last)
	v.place(s, next)
	next.Emit(caller, events.Event{Type: events.SessionStopped, Profile: next.Current().Profile, Took: time.Since(begin)}) // before whoever waits for it asks for it
	s.Succeed(next)
	v.line.Wake()
	v.pool.Wake()
	v.due(next, time.Time{})
}

// rest returns the stopped session that a session becomes which has lost its box.
func (v *Supervisor) rest(s *session.Session) *session.Session {
	is := s.Record.Stopped
	settings := s.Current()
	settings.Unsettled = false // it gets its rules anew
	v.Attachments.ReleaseUnused(s)
	next := session.NewStopped(&v.sessionHooks, &session.Params{
		ID: s.ID, Owner: s.Owner, Created: s.Created, Settings: settings, Profile: s.Profile(), Made: s.Made(), Env: is.Environment(), Enforced: s.Enforced(),
		Skills: s.Skills(), Drives: s.Drives(), Pushes: s.Pushes(), Rested: is.Rested, Stopped: is,
	})
	if s.BoxKey() != s.Key {
		next.SetBoxKey(s.BoxKey())
	}
	next.TakeHistory(s)
	return next
}

// place puts a stopped session into the place of another. It reserves neither memory nor processors.
func (v *Supervisor) place(was, is *session.Session) {
	v.unsize(was, &policy.Settings{Labels: is.Settings.Labels})
	v.ledger.Resume(is.Owner.Name, is.Key, v.reading(is))
	v.mu.Lock()
	defer v.mu.Unlock()
	v.replaceLocked(was, is)
}

// Start starts a stopped session again: with its id, settings, environment and what it has on disk, as soon as there is
// room for it, as for a new one. wait bounds that; nil: the configuration does. It returns the session that runs. One that
// runs already is returned as it is.
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
			return nil, err // of the start of another caller, which this one has waited for
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
		select { // it ends, or stops
		case <-s.Ended():
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		next := s.Next()
		if next == nil {
			return nil, v.gone(s.Owner, s.ID)
		}
		s = next
	}
}

// errStale says that a stopped session has got other settings than those that its start was decided by.
var errStale = errors.New("the session was changed")

// admitAgain enters a session in the place of a stopped one, which its caller must start, as soon as there is room. It
// returns the one that is there if somebody else was first.
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
	if first { // whoever still has the other writes no record any more
		retire(s)
	}
	return next, first, err
}

// retire sees to it that nothing is written any more of a session whose place another has taken.
func retire(s *session.Session) {
	s.Record.Lock()
	defer s.Record.Unlock()
	s.Record.Gone = true
}

// wantAgain holds a stopped session against the configuration and the bounds of its owner, as a request for it would be.
func (v *Supervisor) wantAgain(ctx context.Context, s *session.Session) (*want, error) {
	w := &want{who: s.Owner, req: &policy.Request{ID: s.ID}, cfg: v.cfg.Load(), settings: s.Current()}
	w.effective = effectivePolicy(w.cfg, w.who).For(w.settings.Labels)
	if err := w.effective.Hold(&w.settings, w.req); err != nil {
		return w, err
	}
	err := resolveMounts(ctx, v.boxes, &w.effective, w.who.UID, w.settings.Mounts)
	if err == nil {
		w.enforced, err = v.enforcement(ctx, w.cfg, &w.settings)
	}
	if err == nil {
		w.profile, err = w.cfg.Recheck(&w.settings, w.enforced)
	}
	if err == nil {
		err = v.Spaces.Validate(w.who.Name, &w.settings, w.enforced)
	}
	return w, err
}

// claimAgain enters a session that its caller must start. Nothing slow happens here. The error is an *quota.Full if there may
// be room later.
func (v *Supervisor) claimAgain(s *session.Session, w *want, changes int) (*session.Session, bool, error) {
	if err := v.gate.Check(v.cfg.Load().Enabled); err != nil {
		return nil, false, err
	}
	if err := v.hostRoom(); err != nil {
		return nil, false, v.hostFull(w, err)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	switch now := v.sessions[s.Key]; {
	case now == nil:
		return nil, false, v.gone(s.Owner, s.ID)
	case now != s:
		return now, false, nil
	case s.Changes() != changes:
		return nil, false, errStale
	case v.held[s]:
		return nil, false, heldError(s.ID)
	}
	if err := v.spaceLocked(w); err != nil {
		if full, ok := errors.AsType[*quota.Full](err); ok && full.Reason != quota.Starts {
			return nil, false, v.evictedLocked(w, full)
		}
		return nil, false, err
	}
	if err := v.accounts.Resize(w.who.Name, &w.effective, s.Key, quota.SizeOf(&w.settings)); err != nil {
		return nil, false, v.laterLocked(w, err)
	}
	is := s.Stopped()
	next := session.New(&v.sessionHooks, &session.Params{
		ID: s.ID, Owner: s.Owner, Created: s.Created, Settings: w.settings, Profile: w.profile, Made: w.cfg, Env: is.Environment(), Enforced: w.enforced,
		Skills: s.Skills(), Drives: s.Drives(), Pushes: s.Pushes(), Rested: is.Rested + max(time.Since(is.Since), 0), Stopped: is,
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

// startFailed puts a stopped session back into the place of one that could not be started again.
func (v *Supervisor) startFailed(ctx context.Context, s *session.Session) {
	v.secrets.Forget(s.Key)
	v.record.Unmounted(ctx, s)
	back := v.rest(s)
	retire(s)
	v.keepRecord(back)
	v.place(s, back)
	s.Fail(back)
	v.due(back, time.Time{})
}

// startedAgain writes down that a session which was stopped has its box.
func (v *Supervisor) startedAgain(s *session.Session) error {
	if s.Stopped() == nil {
		return nil
	}
	return v.record.Restarted(s)
}

// resume gives a session that was started again what it had besides: mounts that it was given while it lived, and
// processes. What it cannot have again is told, and left out.
func (v *Supervisor) resume(ctx context.Context, s *session.Session, again *session.Again) {
	for _, m := range again.Mounts {
		if _, _, err := v.Mounts(s).Add(ctx, m, false); err != nil {
			v.log.Warn("cannot restore a mount of a session that was stopped", "session", s.ID, "target", m.Target, "error", err)
			s.Emit(ctx, events.Event{Type: events.SessionChanged, Detail: "the mount on " + m.Target + " could not be restored: " + err.Error()})
		}
	}
	s.StartAgain(ctx, again.Processes, v.log)
	v.record.Resumed(s)
	v.resumePushes(s) //nolint:contextcheck // results are taken in the life of boxd
}

// takeOverStopped enters a session that an earlier boxd has stopped, or has begun to stop or to start again, and ends what
// is left of its box. It reports whether there is one: without its files there is not.
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
	v.Attachments.ReleaseUnused(s)
	return s, nil
}

// enterStopped puts a session of takeOverStopped on the list.
func (v *Supervisor) enterStopped(ctx context.Context, s *session.Session) {
	v.record.Unmounted(ctx, s)
	v.keepRecord(s)
	effective := v.cfg.Load().PolicyOf(s.Owner).For(s.Settings.Labels)
	v.accounts.Restore(s.Owner.Name, &effective, s.Key, quota.Size{})
	v.ledger.Resume(s.Owner.Name, s.Key, v.reading(s))
	v.mu.Lock()
	defer v.mu.Unlock()
	v.enterLocked(s)
}

// endBox does what ends a box, again and again until it is done, or boxd is given up: the next one does it then.
func (v *Supervisor) endBox(s *session.Session, end func(context.Context) error) {
	for {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(v.life), startPatience)
		err := end(ctx)
		cancel()
		if err == nil || errors.Is(err, client.ErrKeeperGone) {
			return
		}
		v.log.Error("cannot end session; trying again", "session", s.ID, "error", err)
		select {
		case <-time.After(endRetry):
		case <-v.life.Done():
			return
		}
	}
}

// resumeAdopted gives a session what the boxd that has started it again has not come to.
func (v *Supervisor) resumeAdopted(ctx context.Context, l *Left, s *session.Session) {
	if r := l.Records[s.Key]; r != nil && r.Again != nil {
		v.resume(context.WithoutCancel(ctx), s, r.Again)
		return
	}
	v.resumePushes(s) //nolint:contextcheck // results are taken in the life of boxd
}
