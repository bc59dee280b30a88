// SPDX-License-Identifier: Apache-2.0

// Skills, drives and images are attached to sessions: mounted read-only, and leased in their store meanwhile. The record of a
// session lists them, so that the next boxd leases them too.

package supervisor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/client"
	"github.com/boxd-dev/boxd/isolation/statedir"

	"github.com/boxd-dev/boxd/supervisor/driver"
	"github.com/boxd-dev/boxd/supervisor/events"
	"github.com/boxd-dev/boxd/supervisor/images"
	"github.com/boxd-dev/boxd/supervisor/policy"
	"github.com/boxd-dev/boxd/supervisor/volumes"

	"github.com/boxd-dev/boxd/skills"
	"github.com/boxd-dev/boxd/supervisor/session"
)

// Attachments gives skills, drives and images to sessions. It is safe for concurrent use.
type Attachments struct {
	boxes *driver.Driver
	store *skills.Store
	drv   *volumes.Drives
	imgs  *images.Store
	keep  func(*session.Session) error // writes the record of a session
	log   *slog.Logger

	mu          sync.Mutex // guards the fields below
	skillLeases map[string]map[string]*skills.Lease
	driveTrees  map[string][]string // trees of drives, by session key
}

// AttachmentStores are the stores that Attachments uses. They remain the caller's.
type AttachmentStores struct {
	Skills *skills.Store
	Drives *volumes.Drives
	Images *images.Store // nil: only the image "host"
}

// newAttachments returns the attachments of sessions, taken from these stores.
func newAttachments(boxes *driver.Driver, in AttachmentStores, keep func(*session.Session) error, log *slog.Logger) *Attachments {
	return &Attachments{boxes: boxes, store: in.Skills, drv: in.Drives, imgs: in.Images, keep: keep, log: log, skillLeases: map[string]map[string]*skills.Lease{}, driveTrees: map[string][]string{}}
}

// Root returns the root of an image for a new session; nil: it is that of the image "host".
func (d *Attachments) Root(image string) (*policy.ImageRoot, error) {
	if d.imgs == nil {
		return nil, nil //nolint:nilnil // there are no others
	}
	return d.imgs.Root(image)
}

// Ended removes the trees of images that only a box without a session used, which has ended.
func (d *Attachments) Ended() {
	if d.imgs != nil {
		d.imgs.Restore()
	}
}

// attachTimeout bounds one change. A change that has begun is not abandoned half done when its caller hangs up.
const attachTimeout = time.Minute

// Begin leases the skills that a session is created with, before its record is written. Missing ones are only listed as such: a
// session that could do without them must not fail for them. A missing image is an error.
func (d *Attachments) Begin(s *session.Session) error {
	if d.imgs != nil {
		if err := d.imgs.Take(s.Key, s.Settings.Root); err != nil {
			return err
		}
	}
	var list []policy.ActiveSkill
	for _, name := range s.Current().Skills {
		k, l := d.lease(s, "", name)
		d.set(s.Key, name, l)
		list = append(list, k)
	}
	s.SetSkills(list)
	return d.beginDrives(s)
}

// lease leases the current version of a skill; nil: it does not exist. The skill is the session owner's, or, if of is set, that
// owner's: then no built-in skill stands in for it.
func (d *Attachments) lease(s *session.Session, owner, name string) (policy.ActiveSkill, *skills.Lease) {
	k := policy.ActiveSkill{Name: name, Since: time.Now(), Of: owner}
	l, missing := d.store.Lease(cmp.Or(owner, s.Owner.Name), []string{name})
	if len(missing) == 0 && owner != "" && strings.HasPrefix(l.Skills[0].Tree, statedir.BuiltInOwner+"/") {
		l.Release()
		missing = []string{name}
	}
	if len(missing) > 0 {
		k.Missing = true
		return k, nil
	}
	k.Digest, k.Tree = l.Skills[0].Digest, l.Skills[0].Tree
	return k, l
}

// set replaces the lease of a skill and releases the old one; nil: there is no new one.
func (d *Attachments) set(key, name string, l *skills.Lease) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.skillLeases[key] == nil {
		d.skillLeases[key] = map[string]*skills.Lease{}
	}
	if old := d.skillLeases[key][name]; old != nil {
		old.Release()
	}
	d.skillLeases[key][name] = l
	if l == nil {
		delete(d.skillLeases[key], name)
	}
	if len(d.skillLeases[key]) == 0 {
		delete(d.skillLeases, key)
	}
}

// Mount mounts the skills of Begin in the box of a session that no other caller can use yet.
func (d *Attachments) Mount(ctx context.Context, s *session.Session, box *client.Box) error {
	found, err := d.mountDrives(ctx, s)
	if err != nil {
		return err
	}
	list := s.Skills()
	for i := range list {
		k := &list[i]
		if k.Missing {
			continue
		}
		err := d.mount(ctx, s, k)
		if errors.Is(err, errVanished) {
			d.log.Warn("a skill of the store is missing on disk", "skill", k.Name, "owner", s.Owner.Name)
			d.set(s.Key, k.Name, nil)
			*k, err = policy.ActiveSkill{Name: k.Name, Since: k.Since, Of: k.Of, Missing: true}, nil
		}
		if err != nil {
			return err
		}
		found = true
	}
	if !found {
		return nil
	}
	s.SetSkills(list)
	return d.keep(s)
}

// restore leases what a session of an earlier boxd has, until Release. The store must not be swept before.
func (d *Attachments) restore(key string, image *policy.ImageRoot, list []policy.ActiveSkill) {
	if d.imgs != nil {
		d.imgs.Hold(key, image)
	}
	for _, k := range list {
		if !k.Missing {
			d.set(key, k.Name, d.store.Restore([]skills.Leased{{Name: k.Name, Digest: k.Digest, Tree: k.Tree}}))
		}
	}
}

// adopted mounts what a session's record lists and its box may lack: the earlier boxd may have died in between.
func (d *Attachments) adopted(ctx context.Context, s *session.Session) {
	d.adoptedDrives(ctx, s)
	for _, k := range s.Skills() {
		if k.Missing {
			continue
		}
		if err := d.mount(ctx, s, &k); err != nil {
			d.log.Warn("cannot restore a skill of a session", "session", s.ID, "skill", k.Name, "error", err)
		}
	}
}

// Release releases everything a session has attached. Its box has ended or never existed.
func (d *Attachments) Release(key string) {
	if d.imgs != nil {
		d.imgs.Release(key)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, l := range d.skillLeases[key] {
		l.Release()
	}
	delete(d.skillLeases, key)
	d.drv.Release(d.driveTrees[key]...)
	delete(d.driveTrees, key)
}

// withChangeLock calls do while a session lives and nothing else changes it.
func (d *Attachments) withChangeLock(ctx context.Context, s *session.Session, do func(context.Context) error) error {
	if err := s.Await(ctx); err != nil {
		return err
	}
	return s.Exclusive(func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), attachTimeout)
		defer cancel()
		if err := s.Await(ctx); err != nil {
			return err
		}
		return do(ctx)
	})
}

// Activate gives a living session the current version of a skill, or returns the one it has if that is the same; isNew tells
// whether it had none of that name. It replaces an older version so that a program always finds one of the two.
func (d *Attachments) Activate(ctx context.Context, s *session.Session, name string) (active policy.ActiveSkill, isNew bool, err error) {
	err = d.withChangeLock(ctx, s, func(ctx context.Context) error {
		active, isNew, err = d.activate(ctx, s, "", name)
		return err
	})
	return active, isNew, err
}

func (d *Attachments) activate(ctx context.Context, s *session.Session, owner, name string) (active policy.ActiveSkill, isNew bool, err error) {
	was := s.Skills()
	i, found := attachPosition(was, name)
	if !found && len(was) >= policy.MaxSkills {
		return active, false, fault.Errorf(fault.Conflict, "session %s has %d skills, its limit", fault.Show(s.ID), len(was)).WithHint("deactivate one first")
	}
	active, l := d.lease(s, owner, name)
	if l == nil {
		return active, false, skills.NotFound(name)
	}
	if found && was[i].Tree == active.Tree && was[i].Of == owner {
		l.Release()
		return was[i], false, nil
	}
	now := slices.Clone(was)
	if !found {
		now = slices.Insert(now, i, active)
	}
	now[i] = active
	// Write the record first: a tree that no record lists would be swept away under its mount if boxd died in between.
	s.SetSkills(now)
	if err = d.keep(s); err == nil {
		err = d.mount(ctx, s, &active)
	}
	if err != nil {
		s.SetSkills(was)
		err = errors.Join(err, d.keep(s))
		l.Release()
		return active, false, err
	}
	now = slices.Clone(now)
	now[i] = active
	s.SetSkills(now)
	d.set(s.Key, name, l)
	s.Emit(ctx, events.Event{Type: events.SessionChanged, Detail: "skill " + name + " is active"})
	return active, !found || was[i].Missing, d.keep(s)
}

// Deactivate removes a skill from a living session. One in use is refused with a MountBusyError, unless force is set: then open
// files stay open, and no others can be opened.
func (d *Attachments) Deactivate(ctx context.Context, s *session.Session, name string, force bool) error {
	return d.withChangeLock(ctx, s, func(ctx context.Context) error { return d.deactivate(ctx, s, name, force) })
}

func (d *Attachments) deactivate(ctx context.Context, s *session.Session, name string, force bool) error {
	list := s.Skills()
	i, found := attachPosition(list, name)
	if !found {
		f := fault.Errorf(fault.NotFound, "skill %s is not active in session %s", fault.Show(name), fault.Show(s.ID)).WithHint("list active skills: boxctl inspect BOX")
		f.Field, f.Value = "skill", name
		return f
	}
	if k := &list[i]; !k.Missing {
		req := attachRequest(s, k)
		req.Op, req.Force = isolation.MountRemove, force
		done, err := d.boxes.ChangeMount(ctx, req)
		if err != nil {
			return attachFailure(s, "skill", k.Name, err)
		}
		if done.Busy {
			return mountInUse("skill "+fault.Show(name), done.Users)
		}
	}
	s.SetSkills(slices.Delete(list, i, i+1))
	if err := d.keep(s); err != nil {
		return err // the record still lists it, so the next boxd mounts it again
	}
	d.set(s.Key, name, nil)
	s.Emit(ctx, events.Event{Type: events.SessionChanged, Detail: "skill " + name + " is no longer active"})
	return nil
}

func attachPosition(list []policy.ActiveSkill, name string) (int, bool) {
	return slices.BinarySearchFunc(list, name, func(k policy.ActiveSkill, n string) int { return cmp.Compare(k.Name, n) })
}

// mount mounts a skill, if it is not mounted yet, and notes the mount attributes that it got.
func (d *Attachments) mount(ctx context.Context, s *session.Session, k *policy.ActiveSkill) error {
	done, err := d.boxes.ChangeMount(ctx, attachRequest(s, k))
	if err != nil {
		return attachFailure(s, "skill", k.Name, err)
	}
	k.Attrs = mountAttributes(done.Attrs)
	return nil
}

// attachRequest is the keeper request to mount a skill.
func attachRequest(s *session.Session, k *policy.ActiveSkill) *isolation.ChangeMount {
	space, tree, _ := strings.Cut(k.Tree, "/"+statedir.StoreTrees+"/")
	return &isolation.ChangeMount{
		Key: s.BoxKey(), Op: isolation.MountAdd, Caller: s.Caller(), Mount: isolation.Mount{Target: SkillTarget(k.Name)},
		Skill: isolation.Skill{Owner: cmp.Or(k.Of, s.Owner.Name), BuiltIn: space == statedir.BuiltInOwner, Tree: tree},
	}
}

// SkillTarget is the path of a skill in a box.
func SkillTarget(name string) string { return path.Join(isolation.SkillsDir, name) }

// errVanished means that the files of a skill or drive are not where the store has them.
var errVanished = errors.New("its files are missing")

// attachFailure translates a keeper error of a change to a skill or drive.
func attachFailure(s *session.Session, kind, name string, err error) error {
	step, ok := errors.AsType[*isolation.StepError](err)
	switch {
	case errors.Is(err, client.ErrNoKeeper), errors.Is(err, client.ErrKeeperGone):
		return fault.Errorf(fault.Unavailable, "cannot change the %ss of session %s now: %w", kind, fault.Show(s.ID), err).
			WithHint("try again: boxd is starting a new keeper")
	case errors.Is(err, unix.ESRCH):
		return session.NotFoundError(s.ID)
	case ok && step.Step == isolation.StepMountSource && step.Errno == unix.ENOENT:
		return fmt.Errorf("%s %q of %s: %w", kind, name, s.Owner.Name, errVanished)
	case ok && step.Refused != nil:
		f := fault.Field(kind, step.Refused.Value, step.Refused.Allowed).Of(fault.Conflict)
		return f.WithHint("remove it from the session, and add it again")
	case ok && step.Errno == unix.ENOENT:
		return fault.Errorf(fault.Conflict, "session %s was made by an older boxd, and cannot have a %s", fault.Show(s.ID), kind).
			WithHint("create a new session")
	}
	return fmt.Errorf("%s %q in session %q: %w", kind, name, s.ID, err)
}
