// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/client"
	"github.com/boxd-dev/boxd/supervisor/events"
	"github.com/boxd-dev/boxd/supervisor/session"
)

// Snapshots of a session are directories that the keeper lists: there is no record that could disagree with them.

// Snapshots lists the snapshots of a session, the oldest first.
func (v *Supervisor) Snapshots(ctx context.Context, s *session.Session) ([]isolation.Snapshot, error) {
	list, err := v.boxes.Snapshots(ctx, &isolation.ChangeSnapshots{Key: s.BoxKey(), Op: isolation.SnapshotList})
	return list, snapshotError(s, err)
}

// CreateSnapshot takes a snapshot of what a stopped session has on disk. It continues if ctx ends.
func (v *Supervisor) CreateSnapshot(ctx context.Context, s *session.Session, name string) (created isolation.Snapshot, err error) {
	if !isolation.ValidSnapshotName(name) {
		return created, fault.Field("name", name, fmt.Sprintf("1 to %d of a-z, A-Z, 0-9, ., _ and -, the first a letter, a digit or _", isolation.MaxSnapshotName))
	}
	settings := s.Current()
	if !settings.OwnDisk() || settings.Workspace != "" && !settings.OwnDir() {
		return created, fault.Errorf(fault.Conflict, "session %s has nothing of its own on disk", fault.Show(s.ID)).
			WithHint("a snapshot is of a managed workspace, changes to the root and a home on disk, not of directories and workspaces that a session shares")
	}
	err = v.whileStopped(ctx, s, func(ctx context.Context) error {
		list, err := v.Snapshots(ctx, s)
		if err != nil {
			return err
		}
		if find(list, name) != nil {
			f := fault.Errorf(fault.Conflict, "session %s already has a snapshot %s", fault.Show(s.ID), fault.Show(name)).WithHint("remove it, or choose another name")
			f.Field, f.Value = "name", name
			return f
		}
		if limit := v.cfg.Load().Sessions.MaxSnapshots; len(list) >= limit {
			return fault.Errorf(fault.Exhausted, "session %s has %d of %d snapshots (sessions.max_snapshots)", fault.Show(s.ID), len(list), limit).WithHint("remove one: boxctl snapshots rm BOX NAME").
				By(fault.Denial{Layer: fault.LayerQuota, Rule: "sessions.max_snapshots", Used: strconv.Itoa(len(list)), Allowed: strconv.Itoa(limit), Setting: "a larger sessions.max_snapshots"})
		}
		list, err = v.boxes.Snapshots(ctx, &isolation.ChangeSnapshots{Key: s.BoxKey(), Op: isolation.SnapshotMake, Name: name})
		if errors.Is(err, unix.EEXIST) { // a keeper that exited before it could answer has made it
			list, err = v.Snapshots(ctx, s)
		}
		if err != nil {
			return snapshotError(s, err)
		}
		if snapshot := find(list, name); snapshot != nil {
			created = *snapshot
		}
		s.Emit(ctx, events.Event{Type: events.SessionChanged, Detail: "snapshot " + name + " created"})
		return nil
	})
	return created, err
}

// RestoreSnapshot replaces what a stopped session has on disk by a snapshot. It continues if ctx ends.
func (v *Supervisor) RestoreSnapshot(ctx context.Context, s *session.Session, name string) error {
	return v.whileStopped(ctx, s, func(ctx context.Context) error {
		return v.changeSnapshot(ctx, s, isolation.SnapshotRestore, name, "restored")
	})
}

// RemoveSnapshot removes a snapshot. The session may be running.
func (v *Supervisor) RemoveSnapshot(ctx context.Context, s *session.Session, name string) error {
	ctx = context.WithoutCancel(ctx)
	return s.Exclusive(func() error { return v.changeSnapshot(ctx, s, isolation.SnapshotRemove, name, "removed") })
}

// changeSnapshot applies op to a snapshot, which must exist. The caller holds the session exclusively.
func (v *Supervisor) changeSnapshot(ctx context.Context, s *session.Session, op isolation.SnapshotOp, name, done string) error {
	none := fault.Errorf(fault.NotFound, "session %s has no snapshot %s", fault.Show(s.ID), fault.Show(name)).WithHint("list its snapshots: boxctl snapshots ls BOX")
	if !isolation.ValidSnapshotName(name) {
		return none
	}
	list, err := v.Snapshots(ctx, s)
	if err != nil {
		return err
	}
	_, err = v.boxes.Snapshots(ctx, &isolation.ChangeSnapshots{Key: s.BoxKey(), Op: op, Name: name})
	switch exists := find(list, name) != nil; {
	case exists && op == isolation.SnapshotRemove && errors.Is(err, unix.ENOENT): // a keeper that exited before it could answer has removed it
	case !exists && errors.Is(err, unix.ENOENT):
		return none
	case err != nil:
		return snapshotError(s, err)
	}
	s.Emit(ctx, events.Event{Type: events.SessionChanged, Detail: "snapshot " + name + " " + done})
	return nil
}

func find(list []isolation.Snapshot, name string) *isolation.Snapshot {
	i := slices.IndexFunc(list, func(snapshot isolation.Snapshot) bool { return snapshot.Name == name })
	if i < 0 {
		return nil
	}
	return &list[i]
}

// whileStopped calls f for a stopped session, which can be neither started nor changed meanwhile. f continues if ctx ends, and
// is canceled with the supervisor.
func (v *Supervisor) whileStopped(ctx context.Context, s *session.Session, f func(context.Context) error) error {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(v.baseCtx, cancel)() //nolint:contextcheck // with the supervisor it is given up
	return s.Exclusive(func() error {
		h := &stopHold{done: make(chan struct{})}
		if other, err := v.addHold(s, h); other != nil {
			return heldError(s.ID)
		} else if err != nil {
			return err
		}
		defer v.releaseHold(s, h)
		return f(ctx)
	})
}

// addHold prevents a stopped session from being started, until releaseHold. other is what does so already.
func (v *Supervisor) addHold(s *session.Session, h *stopHold) (other *stopHold, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	state, _, _ := s.State()
	switch {
	case v.sessions[s.Key] == nil || state == session.StateEnding:
		return nil, session.NotFoundError(s.ID)
	case v.sessions[s.Key] != s || state != session.StateStopped:
		return nil, fault.Errorf(fault.Conflict, "session %s must be stopped before a snapshot is taken or restored", fault.Show(s.ID)).WithHint("stop it first: boxctl stop BOX")
	case v.stopHolds[s] != nil:
		return v.stopHolds[s], nil
	}
	v.stopHolds[s] = h
	return nil, nil //nolint:nilnil // nobody else does
}

func (v *Supervisor) releaseHold(s *session.Session, h *stopHold) {
	v.mu.Lock()
	delete(v.stopHolds, s)
	v.mu.Unlock()
	close(h.done)
}

// heldError is the refusal of a start while a snapshot is being taken or restored, or files are read.
func heldError(id string) error {
	return fault.Errorf(fault.Conflict, "the files of session %s are being read, or a snapshot is being taken or restored", fault.Show(id)).WithHint("try again")
}

// snapshotError translates a keeper error about the snapshots of a session.
func snapshotError(s *session.Session, err error) error {
	if err == nil || fault.KindOf(err) != fault.Internal {
		return err
	}
	if errors.Is(err, client.ErrNoKeeper) || errors.Is(err, client.ErrKeeperGone) {
		return fault.Errorf(fault.Unavailable, "snapshots of session %s: %w", fault.Show(s.ID), err).WithHint("try again: boxd is starting a new keeper")
	}
	step, ok := errors.AsType[*isolation.StepError](err)
	if !ok {
		return fmt.Errorf("snapshots of session %q: %w", s.ID, err)
	}
	switch r := step.Refused; {
	case step.Errno == unix.EOPNOTSUPP && r != nil:
		return fault.Errorf(fault.Unsupported, "no snapshot of session %s: its filesystem is %s, and must be %s", fault.Show(s.ID), r.Value, r.Allowed).
			WithHint("see \"snapshots\" in the guide to workspaces")
	case step.Errno == unix.EDQUOT && r != nil:
		return fault.Field(r.Field, r.Value, r.Allowed).Of(fault.Exhausted).
			WithHint("remove a snapshot, or start the session and remove files").
			By(fault.Denial{Layer: fault.LayerLimit, Rule: "workspace_quota", Allowed: r.Value, Setting: "a larger workspace_quota"})
	case r != nil:
		return fault.Field(r.Field, r.Value, r.Allowed).Of(fault.Conflict)
	case step.Errno == unix.ENOSPC || step.Errno == unix.EDQUOT:
		return fault.Errorf(fault.Exhausted, "no room on disk for a snapshot of session %s: %w", fault.Show(s.ID), step.Errno).WithHint("remove a snapshot, or start the session and remove files")
	case step.Errno == unix.EBUSY:
		return heldError(s.ID)
	}
	return fmt.Errorf("snapshots of session %q: %w", s.ID, err)
}
