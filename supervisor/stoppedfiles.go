// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"errors"
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/supervisor/policy"
	"github.com/boxd-dev/boxd/supervisor/session"
)

// maxReaders is how many boxes exist at a time to read the files of stopped sessions. Their memory is not reserved.
const maxReaders = 4

// Files calls f with a session in which file operations work that only read. That is s itself unless it is stopped. Then it is one
// of a box that is made for f alone: it has the files of s on disk, and neither its network, its mounts nor its processes. s stays
// stopped, and cannot be started meanwhile. ctx of f ends too when s is removed.
func (v *Supervisor) Files(ctx context.Context, s *session.Session, f func(context.Context, *session.Session) error) error {
	if state, _, _ := s.State(); state != session.StateStopped {
		return f(ctx, s)
	}
	settings := s.Current()
	if !settings.OwnDisk() && settings.Workspace == "" {
		return fault.Errorf(fault.Conflict, "session %s is stopped and has no files of its own on disk", fault.Show(s.ID)).WithHint("read the directories of the host, or start it again: boxctl start BOX")
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	select {
	case v.readers <- struct{}{}:
		defer func() { <-v.readers }()
	case <-ctx.Done():
		return ctx.Err()
	}
	return v.whileStopped(ctx, s, cancel, func(within context.Context) error {
		defer context.AfterFunc(within, cancel)() // it ends with the supervisor
		return v.readStopped(ctx, s, &settings, f)
	})
}

// readStopped is Files for a stopped session that the caller holds.
func (v *Supervisor) readStopped(ctx context.Context, s *session.Session, settings *policy.Settings, f func(context.Context, *session.Session) error) error {
	if err := errors.Join(v.gate.Check(v.cfg.Load().Enabled), v.hostRoom()); err != nil {
		return err
	}
	reader := v.newReader(s, settings)
	begun, done := context.WithTimeout(ctx, startPatience)
	defer done()
	// Its record says that it is stopped, so if this boxd dies the next one ends the box.
	box, err := v.boxes.Launch(begun, reader.Spec())
	if isNoRange(err) && v.pool.Yield(begun) {
		box, err = v.boxes.Launch(begun, reader.Spec())
	}
	if err == nil {
		err = box.SetTimes(isolation.Times{}) // it ends with this boxd
	}
	if box != nil {
		defer func() { //nolint:contextcheck // it must end, whatever becomes of the caller; f panics to cut an answer off
			reader.BeginEnd(session.EndDeleted)
			v.endBox(s, func(ctx context.Context) error { return v.boxes.End(ctx, s.BoxKey(), false) })
			box.Close()
			reader.DropProcesses()
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
	return f(ctx, reader)
}

// newReader returns the session of a box for reading the files of a stopped one. It is in no list, and no record is written of it.
func (v *Supervisor) newReader(s *session.Session, settings *policy.Settings) *session.Session {
	is := *settings
	is.Network, is.NetworkRules, is.NetworkStrict, is.Secrets, is.Push = policy.NetworkOff, nil, false, nil, ""
	is.Mounts, is.Inputs, is.Bounded = nil, nil, nil
	hooks := v.sessionHooks
	hooks.Events = nil
	hooks.Keep, hooks.HandOver, hooks.Reclaim = func(*session.Session) {}, func(*session.Session) {}, func(*session.Session) {}
	hooks.End = func(*session.Session, session.EndReason) {}
	hooks.Due = func(*session.Session, time.Time) {}
	r := session.New(&hooks, &session.Params{
		ID: s.ID, Owner: s.Owner, Created: s.Created, Settings: is, Profile: s.Profile(), Made: s.Made(), Env: s.Environment(), Enforced: s.Enforced(), OneShot: true, Stopped: s.Stopped(),
	})
	if s.BoxKey() != s.Key {
		r.SetBoxKey(s.BoxKey())
	}
	return r
}
