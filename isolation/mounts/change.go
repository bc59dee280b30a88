// SPDX-License-Identifier: Apache-2.0

package mounts

import (
	"errors"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation"
)

// Lender knows which directories of the host are lent, as for boxes that are made.
type Lender struct {
	Rules *SourceRules
}

// Change does what a request asks for, which is valid and about no skill. One change of a box is made at a time. src is
// what is added, with its id map, a user namespace; both stay the caller's. It waits for filesystems that callers have
// named: what is mounted, and what the target is in.
func Change(b *Box, req *isolation.ChangeMount, src *Source, idMap func() (int, error)) (*isolation.Mounted, error) {
	switch req.Op {
	case isolation.MountLook:
		return b.List(req.Mount.Target)
	case isolation.MountRemove:
		return b.Remove(req.Mount.Target, req.IDs, req.Made, req.Force)
	case isolation.MountAdd, isolation.MountReplace:
	default:
		return nil, unix.EINVAL
	}
	tree, err := src.Tree(idMap)
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
	src, err := l.Rules.Open(req.Caller, req.Mount)
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
