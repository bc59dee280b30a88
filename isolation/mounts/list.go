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

// List returns the mounts that a live box was given, and which directory of a target is missing.
// Compared before and after a change whose outcome is unknown, it tells what the change has done,
// since nothing else mounts anything in a box. It does not ask the filesystem that is mounted on
// the target: that may never answer.
func (b *Box) List(target string) (*isolation.Mounted, error) {
	var list []entry
	parents := map[uint64]uint64{} // parent ids of all mounts, by id
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
	return done, b.enter(func(p *nsThread) error {
		done.Made = p.missing(target)
		return nil
	})
}

// flags returns the ST_ flags (statfs(2)) for the options of a mount.
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

// isGiven reports whether a mount at this path may have been added to a live box for a target.
// The tmpfs that covers a bare directory of the image stays (see cover).
func isGiven(path, target string) bool {
	return isolation.UnderRoots(path) && (path == target || !slices.Contains(isolation.Roots(), path))
}

// missing returns the first directory of a target that does not exist and would be made, or "" if
// none is missing.
func (p *nsThread) missing(target string) string {
	for _, dir := range chain(target, "") {
		fd, err := p.open(dir)
		if errors.Is(err, unix.ENOENT) {
			return dir
		}
		if err != nil { // not a directory: the change refuses it, and makes nothing
			break
		}
		unix.Close(fd)
	}
	return ""
}
