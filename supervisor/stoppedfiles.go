// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"path"
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/internal/places"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/supervisor/policy"
	"github.com/boxd-dev/boxd/supervisor/session"
)

// Bounds of boxes that exist to read the files of stopped sessions. Their memory is not reserved, and a host that takes no new
// sessions or is full has them too: that is when people want their files.
const (
	maxReaders    = 8
	maxOwnReaders = 2 // of these, of one owner
	readerTimeout = 10 * time.Second
)

// newReaders returns the places for these boxes.
func newReaders() *places.Limit {
	return &places.Limit{
		All: maxReaders, Each: maxOwnReaders, Patience: readerTimeout,
		Of: "stopped sessions have their files read", Hint: "try again, or start the session: boxctl start BOX",
	}
}

// stopHold is what prevents a stopped session from being started.
type stopHold struct {
	removed func()        // called when the session is removed; nil: whoever removes it only waits
	done    chan struct{} // closed when it prevents that no more
}

// Files calls f with a session in which file operations work that only read, about a path in the box. That is s itself unless it is
// stopped. Then it is one of a box that is made for f alone: it has the files of s on disk, and neither its network, its mounts nor
// its processes. s stays stopped, and cannot be started meanwhile. ctx of f ends too when s is removed, and after
// files.archive_timeout.
func (v *Supervisor) Files(ctx context.Context, s *session.Session, at string, f func(context.Context, *session.Session) error) error {
	for {
		state, _, _ := s.State()
		if next := s.Next(); state == session.StateEnded && next != nil { // it was started or stopped meanwhile
			s = next
			continue
		}
		if state != session.StateStopped {
			return f(ctx, s)
		}
		settings := s.Current()
		if err := readable(s.ID, &settings, at); err != nil {
			return err
		}
		again, err := v.readHeld(ctx, s, &settings, f)
		if !again {
			return err
		}
	}
}

// readable refuses a path of a stopped session where something is mounted while it runs.
func readable(id string, settings *policy.Settings, at string) error {
	if !settings.OwnDisk() && settings.Workspace == "" {
		return fault.Errorf(fault.Conflict, "session %s is stopped, and has nothing of its own on disk", fault.Show(id)).WithHint("read its directories on the host, or start the session: boxctl start BOX")
	}
	if !path.IsAbs(at) {
		at = path.Join(isolation.Workspace, at)
	}
	targets := []string{isolation.SkillsDir, isolation.DrivesDir}
	for _, m := range settings.Mounts {
		targets = append(targets, m.Target)
	}
	for _, in := range settings.Inputs {
		targets = append(targets, in.Target)
	}
	for _, target := range targets {
		if isolation.Within(path.Clean(at), target) {
			return fault.Errorf(fault.Conflict, "session %s is stopped, and has nothing at %s now", fault.Show(id), target).WithHint("read it on the host, or start the session: boxctl start BOX")
		}
	}
	return nil
}

// readHeld reads the files of a stopped session, which it holds. again: s is not stopped any more, or somebody else had held it.
func (v *Supervisor) readHeld(ctx context.Context, s *session.Session, settings *policy.Settings, f func(context.Context, *session.Session) error) (again bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(v.baseCtx, cancel)() //nolint:contextcheck // it ends with the supervisor
	if limit := time.Duration(v.cfg.Load().Files.ArchiveTimeout); limit > 0 {
		expired := fault.Errorf(fault.Exhausted, "it took longer than %v (files.archive_timeout)", limit).WithHint("read less at once, or start the session: boxctl start BOX")
		var done context.CancelFunc
		ctx, done = context.WithTimeoutCause(ctx, limit, expired)
		defer done()
	}
	h := &stopHold{cancel, make(chan struct{})}
	switch other, err := v.addHold(s, h); {
	case other != nil:
		select {
		case <-other.done:
			return true, nil
		case <-ctx.Done():
			return false, context.Cause(ctx)
		}
	case err != nil:
		return s.Next() != nil, err
	}
	defer v.releaseHold(s, h)
	release, err := v.readers.Enter(ctx, s.Owner.Name)
	if err != nil {
		return false, err
	}
	defer release()
	return false, v.readStopped(ctx, s, settings, f)
}

// readStopped makes the box of a stopped session that the caller holds.
func (v *Supervisor) readStopped(ctx context.Context, s *session.Session, settings *policy.Settings, f func(context.Context, *session.Session) error) error {
	reader := v.newReader(s, settings)
	// Whoever has gone does not interrupt the start. The record says that the session is stopped, so if this boxd dies the next one
	// ends the box.
	startCtx, done := context.WithTimeout(context.WithoutCancel(ctx), startTimeout)
	defer done()
	box, err := v.boxes.Launch(startCtx, reader.Spec())
	if isNoRange(err) && v.pool.yield(startCtx) {
		box, err = v.boxes.Launch(startCtx, reader.Spec())
	}
	if err == nil {
		err = box.SetTimes(isolation.Times{}) // it ends with this boxd
	}
	if box != nil {
		defer func() { //nolint:contextcheck // it must end, whatever becomes of the caller; f panics to cut an answer off
			reader.BeginEnd(session.EndDeleted)
			v.endBox(s, func(ctx context.Context) error { return v.boxes.End(ctx, s.BoxKey(), false) })
			box.Close()
			reader.FinishEnd()
		}()
	}
	if err == nil {
		err = reader.Launched(box, nil)
		reader.FinishStart()
	}
	if err != nil {
		return session.StartError(s.ID, settings, err)
	}
	if err = f(ctx, reader); err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return err
}

// newReader returns the session of a box for reading the files of a stopped one. It is in no list, and no record is written of it.
func (v *Supervisor) newReader(s *session.Session, settings *policy.Settings) *session.Session {
	copied := *settings
	copied.Network, copied.NetworkRules, copied.NetworkStrict, copied.Secrets, copied.Push = policy.NetworkOff, nil, false, nil, ""
	copied.Mounts, copied.Inputs = nil, nil
	hooks := v.sessionHooks
	hooks.Events = nil
	hooks.Keep, hooks.HandOver, hooks.Reclaim = func(*session.Session) {}, func(*session.Session) {}, func(*session.Session) {}
	hooks.End = func(*session.Session, session.EndReason) {}
	hooks.Due = func(*session.Session, time.Time) {}
	r := session.New(&hooks, &session.Params{
		ID: s.ID, Owner: s.Owner, Created: s.Created, Settings: copied, Profile: s.Profile(), Made: s.Made(), Env: s.Environment(), Enforced: s.Enforced(), OneShot: true, Stopped: s.Stopped(),
	})
	if s.BoxKey() != s.Key {
		r.SetBoxKey(s.BoxKey())
	}
	return r
}
