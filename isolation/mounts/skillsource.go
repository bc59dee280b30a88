// SPDX-License-Identifier: Apache-2.0

package mounts

import (
	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/linux"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/statedir"
)

// skill opens the tree of a skill at its place in the store, and nothing that a symbolic link
// leads to. Only boxd can change that place, so the caller's rights do not matter. The files
// belong to boxd's user and anyone may read them; the box user owns none of them.
func (r *SourceRules) skill(k *isolation.Skill, target string) (*Source, error) {
	state, err := unix.Open(r.State, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, failed(statedir.SkillPath(k), err)
	}
	defer unix.Close(state)
	fd, err := linux.OpenBeneath(state, statedir.SkillPath(k), unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return nil, failed(statedir.SkillPath(k), err)
	}
	return &Source{FD: fd, Mount: isolation.Mount{Target: target, NoSymlinks: true}}, nil
}
