// SPDX-License-Identifier: Apache-2.0

package mounts

import (
	"errors"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation"
)

// Opener opens the directories of the host that may be mounted in boxes.
type Opener struct {
	Rules *SourceRules
}

// Change lists or changes the mounts of a live box. The request is valid and is not about a
// skill, and only one change of a box is made at a time. src is what is to be mounted, and idMap
// opens the user namespace that is its id map; both stay the caller's. Change waits for
// filesystems that callers have named: that of the source and that of the target.
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
	tree, err := src.tree(idMap)
	if err != nil {
		return nil, err
	}
	defer unix.Close(tree)
	if req.Op == isolation.MountAdd {
		return b.Add(tree, &req.Mount)
	}
	return b.Replace(tree, &req.Mount, req.IDs[0])
}

// outside does what needs no live box. For MountTidy it removes the directories that were made in
// a directory of the host for mounts of a box that has ended; if that directory is gone too,
// there is nothing to do. Otherwise it returns which directory of a target is missing.
func (l *Opener) outside(req *isolation.ChangeMount) (*isolation.Mounted, error) {
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
		return &isolation.Mounted{}, removeEmptyDirs(src.FD, mount, owner, req.Target, req.Made)
	}
	done := &isolation.Mounted{}
	if done.Source, err = os.Readlink("/proc/self/fd/" + strconv.Itoa(src.FD)); err != nil {
		return nil, err
	}
	done.Made, err = missing(src.FD, mount, owner, req.Target)
	return done, err
}
