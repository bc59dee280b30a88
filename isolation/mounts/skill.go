// SPDX-License-Identifier: Apache-2.0

package mounts

import (
	"errors"
	"path"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation"
)

// Skill mounts or unmounts a skill of a box. No caller names any of the paths. The directories
// made for its target belong to root, in a directory that no program of the box can write to:
// nothing there can be moved or replaced.
func (l *Opener) Skill(b *Box, req *isolation.ChangeMount) (*isolation.Mounted, error) {
	skillBox := &Box{PID: b.PID, IDBase: b.IDBase, Alive: b.Alive, closed: true}
	target := req.Mount.Target
	stack, err := skillBox.stack(target)
	if err != nil {
		return nil, err
	}
	if req.Op == isolation.MountRemove {
		created := target
		if req.Skill.Drive != "" {
			created = path.Dir(target) // DrivesDir too, unless other drives are in it
		}
		return skillBox.Remove(target, stack, created, req.Force)
	}
	src, err := l.Rules.skill(&req.Skill, target)
	if err != nil {
		return nil, err
	}
	defer unix.Close(src.FD)
	tree, err := src.tree(nil)
	if err != nil {
		return nil, err
	}
	defer unix.Close(tree)
	if len(stack) == 0 {
		return skillBox.Add(tree, &src.Mount)
	}
	done, same, err := skillBox.same(src.FD, &src.Mount)
	if err != nil || same {
		return done, err
	}
	done, err = skillBox.Replace(tree, &src.Mount, stack[0])
	if errors.Is(err, errNotBeneath) {
		return skillBox.swap(tree, &src.Mount, len(stack))
	}
	return done, err
}

// swap replaces a skill on kernels that cannot attach a mount beneath another. It does not cover
// the old version, as the store soon removes that, and what is mounted on a directory is
// unmounted when the directory is removed, in whatever namespace (rmdir of a mount point, since
// Linux 3.18). So the old version goes first, and the directory is bare for a moment.
func (b *Box) swap(tree int, m *isolation.Mount, stacked int) (*isolation.Mounted, error) {
	done := &isolation.Mounted{}
	return done, b.enter(func(p *nsThread) error {
		for range stacked {
			if err := p.unmountTop(m.Target); err != nil {
				return err
			}
		}
		return p.add(tree, m, done)
	})
}

// unmountTop unmounts the uppermost mount of a target.
func (p *nsThread) unmountTop(target string) error {
	fd, err := p.open(target)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return p.detach(fd)
}

// stack returns the ids of the mounts on a target, the uppermost first. It reads them from the
// box's mount table, so that nothing has to be remembered.
func (b *Box) stack(target string) ([]uint64, error) {
	var list []entry
	err := b.mounts(func(e entry) {
		if e.path == target {
			list = append(list, e)
		}
	})
	return inOrder(list), err
}

// inOrder sorts mounts that are stacked on each other, the uppermost first, and returns their
// ids.
func inOrder(list []entry) (ids []uint64) {
	on := map[uint64]uint64{} // ids by the parent they are mounted on
	for _, e := range list {
		on[e.parent] = e.id
	}
	for _, e := range list {
		if slices.ContainsFunc(list, func(o entry) bool { return o.id == e.parent }) {
			continue // not the lowest
		}
		for id := e.id; id != 0 && len(ids) < len(list); id = on[id] {
			ids = append(ids, id)
		}
	}
	slices.Reverse(ids)
	return ids
}

// same reports whether a directory is already mounted on the target with the attributes it should
// have.
func (b *Box) same(dir int, m *isolation.Mount) (*isolation.Mounted, bool, error) {
	var want, is unix.Stat_t
	if err := unix.Fstat(dir, &want); err != nil {
		return nil, false, err
	}
	done, same := &isolation.Mounted{}, false
	err := b.enter(func(p *nsThread) error {
		fd, err := p.open(m.Target)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if err := unix.Fstat(fd, &is); err != nil || is.Dev != want.Dev || is.Ino != want.Ino {
			return err
		}
		if done.ID, err = mountID(fd, ""); err == nil {
			done.Attrs, err = verify(fd, m)
		}
		same = err == nil
		return err
	})
	return done, same, err
}
