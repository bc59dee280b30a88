// SPDX-License-Identifier: Apache-2.0

package mounts

import (
	"cmp"
	"errors"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation"
)

// List says what mounts there are where a living box is given them, and what there is of a target. Before a change and
// after one that nobody knows the end of, the two tell what that has come to. Nothing else mounts anything in a box. No
// filesystem is asked that is mounted on the target: it may not answer.
func (b *Box) List(target string) (*isolation.Mounted, error) {
	var list []entry
	parents := map[uint64]uint64{} // of all mounts
	err := b.mounts(func(e entry) {
		parents[e.id] = e.parent
		if isGiven(e.path, target) {
			list = append(list, e)
		}
	})
	if err != nil {
		return nil, err
	}
	if len(list) > isolation.MaxLooked {
		return nil, unix.E2BIG
	}
	depth := func(id uint64) (n int) {
		for p, ok := parents[id]; ok && n < len(parents); p, ok = parents[p] {
			n++
		}
		return n
	}
	slices.SortFunc(list, func(a, b entry) int { return cmp.Or(cmp.Compare(depth(b.id), depth(a.id)), cmp.Compare(a.id, b.id)) })
	done := &isolation.Mounted{}
	for _, e := range list {
		done.IDs = append(done.IDs, e.id)
		if e.path == target && done.ID == 0 {
			done.ID, done.Attrs = e.id, flags(e.options)
		}
	}
	if done.ID != 0 {
		return done, nil
	}
	return done, b.enter(func(p *place) error {
		done.Made = p.missing(target)
		return nil
	})
}

// flags are the ST_ flags (statfs(2)) of the options of a mount.
func flags(options string) (list uint64) {
	for o := range strings.SplitSeq(options, ",") {
		switch o {
		case "ro":
			list |= unix.ST_RDONLY
		case "nosuid":
			list |= unix.ST_NOSUID
		case "nodev":
			list |= unix.ST_NODEV
		case "noexec":
			list |= unix.ST_NOEXEC
		case "nosymfollow":
			list |= 0x2000 // ST_NOSYMFOLLOW
		}
	}
	return list
}

// isGiven reports whether what is mounted on a path may be what a living box was given for a target. What covers a bare
// directory of the image stays (see cover).
func isGiven(path, target string) bool {
	return isolation.UnderRoots(path) && (path == target || !slices.Contains(isolation.Roots(), path))
}

// missing is the first directory of a target that is not there, which would be made; "": none.
func (p *place) missing(target string) string {
	for _, dir := range chain(target, "") {
		fd, err := p.open(dir)
		if errors.Is(err, unix.ENOENT) {
			return dir
		}
		if err != nil { // no directory: the change refuses it, and makes none
			break
		}
		unix.Close(fd)
	}
	return ""
}
