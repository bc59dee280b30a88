// SPDX-License-Identifier: Apache-2.0

package live

import (
	"errors"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/sources"
)

// Lender knows which directories of the host are lent, as for boxes that are made.
type Lender struct {
	Rules *sources.Rules
	Maps  *sources.UserNamespaces
}

// Change does what a request asks for, which is valid. One change of a box is made at a time.
func (l *Lender) Change(b *Box, req *isolation.ChangeMount) (*isolation.Mounted, error) {
	if req.Skill != (isolation.Skill{}) {
		return l.skill(b, req)
	}
	switch req.Op {
	case isolation.MountLook:
		return b.Look(req.Mount.Target)
	case isolation.MountRemove:
		return b.Remove(req.Mount.Target, req.IDs, req.Made, req.Force)
	default:
	}
	src, err := l.open(req)
	if err != nil {
		return nil, err
	}
	defer unix.Close(src.FD)
	tree, err := src.Tree(func() (int, error) { return l.Maps.Get(src.Owner, b.IDBase) })
	if err != nil {
		return nil, err
	}
	defer unix.Close(tree)
	if req.Op == isolation.MountAdd {
		return b.Add(tree, &req.Mount)
	}
	return b.Replace(tree, &req.Mount, req.IDs[0])
}

// Outside does what needs no box. It removes the directories that were made for the mounts of one that has ended, in a
// directory of the host; one that is gone has none. Or it says which a target lacks.
func (l *Lender) Outside(req *isolation.ChangeMount) (*isolation.Mounted, error) {
	src, err := l.open(req)
	if errors.Is(err, unix.ENOENT) && req.Op == isolation.MountTidy {
		return &isolation.Mounted{}, nil
	}
	if err != nil {
		return nil, err
	}
	defer unix.Close(src.FD)
	mount, owner := req.Mount.Target, src.Owner.UID()
	if req.Op == isolation.MountTidy {
		return &isolation.Mounted{}, tidy(src.FD, mount, owner, req.Target, req.Made)
	}
	done := &isolation.Mounted{}
	if done.Source, err = os.Readlink("/proc/self/fd/" + strconv.Itoa(src.FD)); err != nil {
		return nil, err
	}
	done.Made, err = missing(src.FD, mount, owner, req.Target)
	return done, err
}

// open opens the directory of a request under the rules.
func (l *Lender) open(req *isolation.ChangeMount) (*sources.Source, error) {
	list, err := l.Rules.Open(&isolation.Spec{Caller: req.Caller, Mounts: []isolation.Mount{req.Mount}})
	if err != nil {
		return nil, err
	}
	return &list[0], nil
}
