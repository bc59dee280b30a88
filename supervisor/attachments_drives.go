// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"cmp"
	"context"
	"errors"
	"path"
	"slices"
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation"

	"github.com/boxd-dev/boxd/supervisor/events"
	"github.com/boxd-dev/boxd/supervisor/volumes"

	"github.com/boxd-dev/boxd/supervisor/policy"
	"github.com/boxd-dev/boxd/supervisor/session"
)

// maxGone is how many removed drives of a session are remembered.
const maxGone = 64

// DriveTarget is the path of a drive in a box.
func DriveTarget(name string) string { return isolation.DriveTarget(name) }

// beginDrives leases the drives that a session is created with. A missing one is an error: drives are its input.
func (d *Attachments) beginDrives(s *session.Session) error {
	var list []policy.ActiveDrive
	for _, text := range s.Current().Drives {
		name, number, err := policy.DriveRef("drives", text)
		if err != nil {
			return err
		}
		v, tree, err := d.drv.Take(s.Owner.Name, name, number)
		if err != nil {
			return err
		}
		d.pinTree(s.Key, tree)
		list = append(list, activeDrive(name, &v, tree))
	}
	s.SetDrives(list)
	return nil
}

func activeDrive(name string, v *volumes.Version, tree string) policy.ActiveDrive {
	return policy.ActiveDrive{Name: name, Version: v.Number, Since: time.Now(), Digest: v.Digest, Tree: tree}
}

// pinTree notes that a session uses a tree, which counts once.
func (d *Attachments) pinTree(key, tree string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if slices.Contains(d.driveTrees[key], tree) {
		d.drv.Release(tree)
		return
	}
	d.driveTrees[key] = append(d.driveTrees[key], tree)
}

// unpinTree releases a tree that programs of a session can no longer use.
func (d *Attachments) unpinTree(key, tree string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if i := slices.Index(d.driveTrees[key], tree); i >= 0 {
		d.driveTrees[key] = slices.Delete(d.driveTrees[key], i, i+1)
		d.drv.Release(tree)
	}
}

// restoreDrives leases what a session of an earlier boxd has, until Release. The store must not be swept before.
func (d *Attachments) restoreDrives(key string, list []policy.ActiveDrive) {
	for i := range list {
		for _, tree := range slices.Concat([]string{list[i].Tree}, list[i].Earlier) {
			d.drv.Restore(tree)
			d.pinTree(key, tree)
		}
	}
}

// mountDrives mounts the drives of a session that no other caller can use yet.
func (d *Attachments) mountDrives(ctx context.Context, s *session.Session) (found bool, err error) {
	list := s.Drives()
	for i := range list {
		if err := d.mountDrive(ctx, s, &list[i]); err != nil {
			return false, err
		}
	}
	s.SetDrives(list)
	return len(list) > 0, nil
}

func (d *Attachments) adoptedDrives(ctx context.Context, s *session.Session) {
	for _, k := range s.Drives() {
		if k.Gone {
			continue
		}
		if err := d.mountDrive(ctx, s, &k); err != nil {
			d.log.Warn("cannot restore a drive of a session", "session", s.ID, "drive", k.Name, "error", err)
		}
	}
}

func (d *Attachments) mountDrive(ctx context.Context, s *session.Session, k *policy.ActiveDrive) error {
	done, err := d.boxes.ChangeMount(ctx, driveRequest(s, k))
	if err != nil {
		return attachFailure(s, "drive", k.Name, err)
	}
	k.Attrs = mountAttributes(done.Attrs)
	return nil
}

func driveRequest(s *session.Session, k *policy.ActiveDrive) *isolation.ChangeMount {
	return &isolation.ChangeMount{
		Key: s.BoxKey(), Op: isolation.MountAdd, Caller: s.Caller(), Mount: isolation.Mount{Target: DriveTarget(k.Name)},
		Skill: isolation.Skill{Owner: s.Owner.Name, Drive: k.Name, Tree: path.Base(k.Tree)},
	}
}

func driveAt(list []policy.ActiveDrive, name string) (int, bool) {
	return slices.BinarySearchFunc(list, name, func(k policy.ActiveDrive, n string) int { return cmp.Compare(k.Name, n) })
}

// Switch gives a living session a version of a drive, 0 for the newest, in place of the one it has. Open files of that one stay
// open, and its files are kept until the session ends. isNew tells whether it had none.
func (d *Attachments) Switch(ctx context.Context, s *session.Session, name string, version int) (active policy.ActiveDrive, isNew bool, err error) {
	err = d.withChangeLock(ctx, s, func(ctx context.Context) error {
		active, isNew, err = d.switchTo(ctx, s, name, version)
		return err
	})
	return active, isNew, err
}

func (d *Attachments) switchTo(ctx context.Context, s *session.Session, name string, version int) (active policy.ActiveDrive, isNew bool, err error) {
	was := s.Drives()
	i, found := driveAt(was, name)
	isNew = !found || was[i].Gone
	v, tree, err := d.drv.Take(s.Owner.Name, name, version)
	if err != nil {
		return active, false, err
	}
	active = activeDrive(name, &v, tree)
	if found {
		old := &was[i]
		if !isNew && old.Tree == tree {
			d.drv.Release(tree)
			return *old, false, nil
		}
		active.Earlier = slices.DeleteFunc(slices.Concat(old.Earlier, []string{old.Tree}), func(t string) bool { return t == tree })
	}
	if err := allowDrive(s, was, &active, isNew, found); err != nil {
		d.drv.Release(tree)
		return active, false, err
	}
	now := slices.Clone(was)
	if !found {
		now = slices.Insert(now, i, active)
	}
	now[i] = active
	d.pinTree(s.Key, tree)
	// Write the record first: a tree that no record lists would be swept away under its mount if boxd died in between.
	s.SetDrives(now)
	if err = d.keep(s); err == nil {
		err = d.mountDrive(ctx, s, &active)
	}
	if err != nil { // the tree stays leased: the keeper may have mounted it
		s.SetDrives(was)
		return active, false, errors.Join(err, d.keep(s))
	}
	now = slices.Clone(now)
	now[i] = active
	s.SetDrives(now)
	s.Emit(ctx, events.Event{Type: events.SessionChanged, Detail: "drive " + name + " is mounted"})
	return active, isNew, d.keep(s)
}

// allowDrive limits how many drives a session has, and how many old versions are kept for it.
func allowDrive(s *session.Session, was []policy.ActiveDrive, active *policy.ActiveDrive, isNew, found bool) error {
	n := 0
	for i := range was {
		if !was[i].Gone {
			n++
		}
	}
	switch {
	case isNew && n >= policy.MaxDrives:
		return fault.Errorf(fault.Conflict, "session %s has %d drives, its limit", fault.Show(s.ID), n).WithHint("remove one from it first")
	case len(active.Earlier) > policy.MaxEarlier || !found && len(was) >= policy.MaxDrives+maxGone:
		return fault.Errorf(fault.Conflict, "session %s has used too many versions of drives; they are kept until it ends", fault.Show(s.ID)).WithHint("create a new session")
	}
	return nil
}

// Detach removes a drive from a living session. One in use is refused with a MountBusyError, unless force is set: then open
// files stay open, and no others can be opened.
func (d *Attachments) Detach(ctx context.Context, s *session.Session, name string, force bool) error {
	return d.withChangeLock(ctx, s, func(ctx context.Context) error {
		list := s.Drives()
		i, found := driveAt(list, name)
		if !found || list[i].Gone {
			f := fault.Errorf(fault.NotFound, "session %s has no drive %s", fault.Show(s.ID), fault.Show(name)).WithHint("list its drives: boxctl inspect BOX")
			f.Field, f.Value = "drive", name
			return f
		}
		req := driveRequest(s, &list[i])
		req.Op, req.Force = isolation.MountRemove, force
		done, err := d.boxes.ChangeMount(ctx, req)
		if err != nil {
			return attachFailure(s, "drive", name, err)
		}
		if done.Busy {
			return mountInUse("drive "+name, done.Users)
		}
		tree := list[i].Tree
		list[i].Gone = true
		unused := !force && len(list[i].Earlier) == 0
		if unused {
			list = slices.Delete(list, i, i+1)
		}
		s.SetDrives(list)
		if err := d.keep(s); err != nil {
			return err // the record still lists it, so the next boxd mounts it again
		}
		if unused {
			d.unpinTree(s.Key, tree)
		}
		s.Emit(ctx, events.Event{Type: events.SessionChanged, Detail: "drive " + name + " is no longer mounted"})
		return nil
	})
}

// releaseUnused releases what only running programs of a session could still use, now that its box is gone: removed drives and
// earlier versions. It keeps the current ones for the next start.
func (d *Attachments) releaseUnused(s *session.Session) {
	list := s.Drives()
	for i := range list {
		for _, tree := range list[i].Earlier {
			d.unpinTree(s.Key, tree)
		}
		list[i].Earlier = nil
		if list[i].Gone {
			d.unpinTree(s.Key, list[i].Tree)
		}
	}
	s.SetDrives(slices.DeleteFunc(list, func(k policy.ActiveDrive) bool { return k.Gone }))
}
