// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"cmp"
	"context"
	"errors"
	"log/slog"

	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/supervisor/session"

	"github.com/boxd-dev/boxd/supervisor/policy"
)

// mountPointCleanup removes the directories that were created for mounts in host directories, except those on which another
// session has a mount.
type mountPointCleanup struct {
	Boxes  mounter
	Points *mountPoints
	Keep   func(key string) error // writes the record of a session
	Log    *slog.Logger
}

// mounter changes mounts, and the directories created for them.
type mounter interface {
	ChangeMount(ctx context.Context, req *isolation.ChangeMount) (*isolation.Mounted, error)
}

// mountAt returns the mount of a host directory, writable or not, that contains target: removing the target there detaches the
// session's mount.
func mountAt(mounts []policy.Mount, target string) (mount policy.Mount, found bool) {
	for _, m := range mounts {
		if m.Target != target && isolation.Within(target, m.Target) && len(m.Target) > len(mount.Target) {
			mount, found = m, true
		}
	}
	return mount, found
}

// makesPlaces reports whether targets can be created in a host directory mounted like this.
func makesPlaces(mount *policy.Mount) bool { return mount.Mode == policy.MountReadWrite }

// targetsOf lists the targets of the mounts that a session is created with.
func targetsOf(settings *policy.Settings) (list []string) {
	for _, m := range settings.Mounts {
		list = append(list, m.Target)
	}
	for _, in := range settings.Inputs {
		list = append(list, in.Target)
	}
	return list
}

// Begin finds out, before a session gets its box, which directories will be created in host directories for its mounts. It
// reports whether the record must be written before that.
func (d *mountPointCleanup) Begin(ctx context.Context, s *session.Session) (bool, error) {
	d.Points.Begin(s.Key)
	settings := s.Current()
	for _, target := range targetsOf(&settings) {
		mount, below := mountAt(settings.Mounts, target)
		if !below {
			continue
		}
		err := d.enter(ctx, s, target)
		found := &isolation.Mounted{}
		if err == nil && makesPlaces(&mount) {
			found, err = d.resolve(ctx, s, &mount, target)
		}
		if step, ok := errors.AsType[*isolation.StepError](err); ok && step.Step == isolation.StepMountSource {
			continue // creating the box is refused for the same, with a better message
		}
		if err != nil {
			return false, err
		}
		if found.Made != "" {
			d.Points.Own(s.Key, d.mountPoint(s.Key, s.Caller(), &mount, found.Made, target))
		}
	}
	return d.Points.Of(s.Key) != nil, nil
}

// enter notes that a session is about to mount on target, if that lies in a host directory.
func (d *mountPointCleanup) enter(ctx context.Context, s *session.Session, target string) error {
	mount, below := mountAt(s.Current().Mounts, target)
	if !below {
		return nil
	}
	real := d.Points.Real(s.Key, mount.Source)
	if real == "" {
		real = mount.Source
		found, err := d.real(ctx, s, &mount, target)
		if err == nil {
			real = found
		} else if _, answered := errors.AsType[*isolation.StepError](err); !answered { // otherwise the directory is no longer allowed
			return err
		}
	}
	return d.Points.Enter(ctx, s.Key, mount.Source, real, real+target[len(mount.Target):])
}

// real asks the keeper for the resolved path of a host directory that contains target.
func (d *mountPointCleanup) real(ctx context.Context, s *session.Session, mount *policy.Mount, target string) (string, error) {
	if !makesPlaces(mount) { // the keeper answers nothing about targets where the owner may not write
		at, err := d.Boxes.ChangeMount(ctx, &isolation.ChangeMount{Op: isolation.MountFollow, Caller: s.Caller(), Mount: isolation.Mount{Source: mount.Source}})
		if err != nil {
			return "", err
		}
		return at.Made, nil
	}
	found, err := d.resolve(ctx, s, mount, target)
	if err != nil {
		return "", err
	}
	return found.Source, nil
}

// resolve asks the keeper what part of a target below a host directory is missing.
func (d *mountPointCleanup) resolve(ctx context.Context, s *session.Session, mount *policy.Mount, target string) (*isolation.Mounted, error) {
	return d.Boxes.ChangeMount(ctx, hostRequest(isolation.MountMissing, s.Key, d.mountPoint(s.Key, s.Caller(), mount, target, target)))
}

// mountPoint describes what was created of a target below a host directory. A session of an earlier boxd has not asked for the
// resolved path; then it is the source.
func (d *mountPointCleanup) mountPoint(key string, caller isolation.Caller, mount *policy.Mount, created, target string) *mountPoint {
	return &mountPoint{
		UID: caller.UID, GID: caller.GID, Groups: caller.Groups, Source: mount.Source, Owner: mount.Owner, At: mount.Target,
		Real: cmp.Or(d.Points.Real(key, mount.Source), mount.Source), Made: created, Target: target,
	}
}

// hostRequest is a keeper request about host directories, without a box. What is removed is where it was created: a symbolic
// link may lead elsewhere by then.
func hostRequest(op isolation.MountOp, key string, g *mountPoint) *isolation.ChangeMount {
	source := g.Source
	if op == isolation.MountTidy {
		source = cmp.Or(g.Real, g.Source)
	}
	return &isolation.ChangeMount{
		Key: key, Op: op, Caller: isolation.Caller{UID: g.UID, GID: g.GID, Groups: g.Groups}, Made: g.Made, Target: g.Target,
		Mount: isolation.Mount{Source: source, Target: g.At, Writable: true, Owner: g.Owner},
	}
}

// createdPoint describes what was created for a mount, nil if that is not in a host directory.
func (d *mountPointCleanup) createdPoint(key string, caller isolation.Caller, mounts []policy.Mount, target, created string) *mountPoint {
	l, below := mountAt(mounts, target)
	if !below || !makesPlaces(&l) || created == "" || created == l.Target || !isolation.Within(created, l.Target) {
		return nil
	}
	return d.mountPoint(key, caller, &l, created, target)
}

// Ending notes that a session is ending; live are the mounts that it has, or may have, besides those it was created with. It
// reports whether there are directories to remove after its box.
func (d *mountPointCleanup) Ending(key string, caller isolation.Caller, settings *policy.Settings, live []policy.LiveMount) bool {
	var list []mountPoint
	for _, m := range live {
		if g := d.createdPoint(key, caller, settings.Mounts, m.Target, m.Made); g != nil {
			list = append(list, *g)
		}
	}
	return d.Points.Ending(key, list)
}

// End removes what was created for the mounts of a session that is Ending and whose box is gone, and forgets it. What cannot be
// removed is left and logged. An error means that there was no answer and it is still to be removed: the record stays, for the
// next boxd or the next session of its key.
func (d *mountPointCleanup) End(ctx context.Context, key string) error {
	_, err := d.sweep(ctx, key)
	if err == nil {
		d.Points.Forget(key)
	}
	return err
}

// sweep removes what a session has to remove and no longer needs, and reports whether there was anything. An error means that
// there was no answer.
func (d *mountPointCleanup) sweep(ctx context.Context, key string) (bool, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), mountTimeout)
	defer cancel()
	found, err := d.Points.Sweep(ctx, key, func(r *removal) error {
		d.record(r)
		if r.MountPoint.Made == "" {
			return nil
		}
		_, err := d.Boxes.ChangeMount(ctx, hostRequest(isolation.MountTidy, key, &r.MountPoint))
		if err != nil && (session.Transient(err) || ctx.Err() != nil) {
			return err
		}
		if err != nil {
			d.Log.Warn("cannot remove directories made for mounts", "key", key, "error", err)
		}
		return nil
	})
	if err != nil {
		d.Log.Warn("cannot remove directories made for mounts yet", "key", key, "error", err)
	}
	return found, err
}

// record writes the record of the session that a removal has handed directories to.
func (d *mountPointCleanup) record(r *removal) {
	if r.Successor == "" {
		return
	}
	if err := d.Keep(r.Successor); err != nil {
		d.Log.Error("cannot write record", "key", r.Successor, "error", err)
	}
}

// enter notes that the session is about to mount on a target.
func (c *MountChanger) enter(ctx context.Context, m *policy.Mount) error {
	if err := c.Session.Await(ctx); err != nil { // nothing would drop the entry again
		return err
	}
	if err := c.MountPoints.enter(ctx, c.Session, m.Target); err != nil {
		return c.failure(m, err)
	}
	return nil
}

// take removes mounts of the session, and what was created for them and no other session needs. What is not empty because
// another mount of the session is there is removed by a later sweep, or when the session ends.
func (c *MountChanger) take(ctx context.Context, req *isolation.ChangeMount) (*isolation.Mounted, error) {
	d, s := c.MountPoints, c.Session
	if g := d.createdPoint(s.Key, s.Caller(), s.Current().Mounts, req.Mount.Target, req.Made); g != nil {
		d.Points.Own(s.Key, g)
		r, err := d.Points.Leave(ctx, s.Key, g)
		if err != nil {
			return nil, err
		}
		defer d.Points.Done(r)
		d.record(r)
		req.Made = r.MountPoint.Made
	}
	return c.Boxes.ChangeMount(ctx, req)
}

// only drops the session's entries but for the mounts that exist now or may exist.
func (c *MountChanger) only() {
	settings := c.Session.Current()
	targets := targetsOf(&settings)
	live, change := c.Session.Mounting()
	for _, m := range change.Leftovers(live) {
		targets = append(targets, m.Target)
	}
	var places []string
	for _, t := range targets {
		if l, below := mountAt(settings.Mounts, t); below {
			if real := c.MountPoints.Points.Real(c.Session.Key, l.Source); real != "" {
				places = append(places, real+t[len(l.Target):])
			}
		}
	}
	c.MountPoints.Points.Only(c.Session.Key, places)
}

// sweep removes what the session had been handed to remove and no longer needs.
func (c *MountChanger) sweep(ctx context.Context) error {
	if found, _ := c.MountPoints.sweep(ctx, c.Session.Key); !found { // without an answer, the session still has it to remove
		return nil
	}
	return c.Keep()
}
