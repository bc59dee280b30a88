// SPDX-License-Identifier: Apache-2.0

package mounts

import (
	"errors"
	"path"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation"
)

// Skill adds or removes a skill of a box: nothing here is of a caller's naming. What is made for its target is root's, in a directory that no program of the
// box can write to: nobody there moves a skill, or has something else in its place.
func (l *Lender) Skill(b *Box, req *isolation.ChangeMount) (*isolation.Mounted, error) {
	own := &Box{PID: b.PID, IDBase: b.IDBase, Alive: b.Alive, closed: true}
	target := req.Mount.Target
	stack, err := own.stack(target)
	if err != nil {
		return nil, err
	}
	if req.Op == isolation.MountRemove {
		made := target
		if req.Skill.Drive != "" {
			made = path.Dir(target) // it is for one drive or for several
		}
		return own.Remove(target, stack, made, req.Force)
	}
	src, err := l.Rules.Skill(&req.Skill, target)
	if err != nil {
		return nil, err
	}
	defer unix.Close(src.FD)
	tree, err := src.Tree(nil)
	if err != nil {
		return nil, err
	}
	defer unix.Close(tree)
	if len(stack) == 0 {
		return own.Add(tree, &src.Mount)
	}
	done, same, err := own.same(src.FD, &src.Mount)
	if err != nil || same {
		return done, err
	}
	done, err = own.Replace(tree, &src.Mount, stack[0])
	if errors.Is(err, errNotBeneath) {
		return own.swap(tree, &src.Mount, len(stack))
	}
	return done, err
}

// swap is for kernels that cannot put a mount below another. The old version is not covered, as it is soon removed:
// what is mounted on a directory ends with that, whoever removes it in another namespace (rmdir of a mount point, since
// Linux 3.18). So it goes first, and for a moment the directory is bare.
func (b *Box) swap(tree int, m *isolation.Mount, stacked int) (*isolation.Mounted, error) {
	done := &isolation.Mounted{}
	return done, b.enter(func(p *place) error {
		for range stacked {
			if err := p.bare(m.Target); err != nil {
				return err
			}
		}
		return p.add(tree, m, done)
	})
}

// bare takes off the uppermost mount of a target.
func (p *place) bare(target string) error {
	fd, err := p.open(target)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return p.detach(fd)
}

// stack lists the mounts on a target, the uppermost first. They are looked for in the box's table, so that there is
// nothing to remember of them.
func (b *Box) stack(target string) ([]uint64, error) {
	var list []entry
	err := b.mounts(func(e entry) {
		if e.path == target {
			list = append(list, e)
		}
	})
	return inOrder(list), err
}

// inOrder lists mounts that are on each other, the uppermost first.
func inOrder(list []entry) (ids []uint64) {
	on := map[uint64]uint64{} // by what they are on
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

// same reports whether a directory is what is mounted on a target already, and as it is to be.
func (b *Box) same(dir int, m *isolation.Mount) (*isolation.Mounted, bool, error) {
	var want, is unix.Stat_t
	if err := unix.Fstat(dir, &want); err != nil {
		return nil, false, err
	}
	done, same := &isolation.Mounted{}, false
	err := b.enter(func(p *place) error {
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
