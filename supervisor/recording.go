// SPDX-License-Identifier: Apache-2.0

// The record of a session is what the next boxd restores it from. Records of one session are written one at a time, and none
// after its end.

package supervisor

import (
	"context"
	"log/slog"

	"github.com/boxd-dev/boxd/isolation"

	"github.com/boxd-dev/boxd/supervisor/session"
)

// recorder writes the records of sessions, and removes what they name in host directories before it removes the record.
type recorder struct {
	Dir         *Records
	MountPoints mountPointCleanup
	Log         *slog.Logger
}

// Begin records what will be created in host directories for mounts of a session, before it is created.
func (r *recorder) Begin(ctx context.Context, s *session.Session) error {
	if some, err := r.MountPoints.Begin(ctx, s); err != nil || !some {
		return err
	}
	return r.Write(s)
}

// Write rewrites the record of a session. One that was removed stays removed.
func (r *recorder) Write(s *session.Session) error {
	s.Record.Lock()
	defer s.Record.Unlock()
	if s.Record.Gone {
		return nil
	}
	live, mounting := s.Mounting()
	return r.Dir.Write(&Record{
		ID: s.ID, Key: s.Key, Owner: RecordOwnerOf(s.Owner), Created: s.Created, Settings: s.Current(), Enforced: s.Enforced(),
		Box: boxOf(s), Asleep: s.Asleep(), OneShot: s.OneShot, Live: live, Mounting: mounting, Skills: s.Skills(), Drives: s.Drives(), Pushes: s.Pushes(),
		Shared: r.MountPoints.Points.Of(s.Key), Ending: s.Record.Ending,
		Rested: s.Rested(), Stopped: s.Record.Stopped, Again: s.Record.Again,
	})
}

// Stopped records that a session is stopped, before anything of it is ended. After an error it is not stopped.
func (r *recorder) Stopped(s *session.Session, stopped *session.Stopped) error {
	s.Record.Lock()
	s.Record.Stopped = stopped
	s.Record.Unlock()
	err := r.Write(s)
	if err != nil {
		s.Record.Lock()
		s.Record.Stopped = nil
		s.Record.Unlock()
		_ = r.Write(s) // it may have been replaced before something failed
	}
	return err
}

// restarted records that a stopped session has its box, and what it is yet to be given. After an error it is still stopped.
func (r *recorder) restarted(s *session.Session) error {
	s.Record.Lock()
	stopped := s.Record.Stopped
	s.Record.Stopped, s.Record.Again = nil, &stopped.Again
	s.Record.Unlock()
	err := r.Write(s)
	if err != nil {
		s.Record.Lock()
		s.Record.Stopped, s.Record.Again = stopped, nil
		s.Record.Unlock()
	}
	return err
}

// resumed records that a session has everything it was to be given.
func (r *recorder) resumed(s *session.Session) {
	s.Record.Lock()
	s.Record.Again = nil
	s.Record.Unlock()
	if err := r.Write(s); err != nil { // the next boxd gives it to the session again
		r.Log.Error("cannot write record", "session", s.ID, "error", err)
	}
}

// unmounted removes what was created for the mounts of a stopped session whose box is gone. Without an answer, it is removed
// when the session ends.
func (r *recorder) unmounted(ctx context.Context, s *session.Session) {
	live, change := s.Mounting()
	settings := s.Current()
	r.MountPoints.Ending(s.Key, s.Caller(), &settings, change.Leftovers(live))
	_ = r.MountPoints.End(ctx, s.Key) // logged; the record still has it
}

// boxOf is the box key for the record, "" if it is the session's own key.
func boxOf(s *session.Session) string {
	if s.BoxKey() == s.Key {
		return ""
	}
	return s.BoxKey()
}

// Ending notes that a session is ending, or does not begin. Its record is removed, or marked as ending if something must be
// removed after its box.
func (r *recorder) Ending(s *session.Session) {
	live, change := s.Mounting()
	settings := s.Current()
	if !r.MountPoints.Ending(s.Key, s.Caller(), &settings, change.Leftovers(live)) {
		r.remove(s)
		return
	}
	s.Record.Lock()
	s.Record.Ending = true
	s.Record.Unlock()
	if err := r.Write(s); err != nil { // the next boxd adopts what is left of it
		r.Log.Error("cannot write record", "session", s.ID, "error", err)
	}
}

// End removes what was created for the mounts of a session that is Ending and whose box is gone, and then its record. Without
// an answer the record stays, for the next boxd.
func (r *recorder) End(ctx context.Context, s *session.Session) {
	if r.MountPoints.End(ctx, s.Key) == nil {
		r.remove(s)
		return
	}
	s.Record.Lock()
	s.Record.Gone = true // nothing is written after this
	s.Record.Unlock()
}

// left restores the mount points that sessions of an earlier boxd have created, and need.
func (r *recorder) left(l *Left) {
	for key, rec := range l.Records {
		r.MountPoints.Points.restore(key, rec.Shared)
	}
}

// lost notes, by their boxes, that sessions of an earlier boxd are ending: nothing is kept for them.
func (r *recorder) lost(l *Left, boxes []string) {
	for _, box := range boxes {
		if rec := l.Of(box); rec != nil {
			o := &rec.Owner
			r.MountPoints.Ending(rec.Key, isolation.Caller{UID: o.UID, GID: o.GID, Groups: o.Groups}, &rec.Settings, rec.Mounting.Leftovers(rec.Live))
		}
	}
}

// remove removes the record of a session.
func (r *recorder) remove(s *session.Session) {
	s.Record.Lock()
	defer s.Record.Unlock()
	s.Record.Gone = true
	if err := r.Dir.Remove(s.Key); err != nil {
		r.Log.Error("cannot remove record", "session", s.ID, "error", err)
	}
}
