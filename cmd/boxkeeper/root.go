// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation"

	"github.com/boxd-dev/boxd/isolation/mounts"
	"github.com/boxd-dev/boxd/isolation/overlay"
)

// mapRoot makes the layers of a writable root, which come before all other mounts. An image and
// the layer for changes are id-mapped as the workspace is, by the box's own user namespace: the
// box user owns everything in the image, and PID 1 has a part of its own in the layer for
// changes. The host's trees have an id map of their own (mounts.HostOwner).
func (l *launching) mapRoot() (string, error) {
	if !l.spec.Writable {
		return "", nil
	}
	changes := layer{overlay.Target, func() (int, error) { return l.k.work.OpenPath(l.spec.Key) }, true, mounts.WorkOwner()}
	list := []layer{{overlay.Target, func() (int, error) { return l.k.work.TreeTop(l.spec.Image) }, false, mounts.WorkOwner()}, changes}
	if l.spec.Image == "" {
		list = []layer{changes, {overlay.Target, l.takeBase, false, mounts.WorkOwner()}}
		for _, name := range isolation.HostDirs() {
			open := func() (int, error) {
				return unix.Open("/"+name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
			}
			list = append(list, layer{"/" + name, open, false, mounts.HostOwner()})
		}
	}
	for _, part := range list {
		dir, err := part.open()
		if part.target != overlay.Target && (errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR)) { // ENOTDIR: it is a symbolic link
			continue
		}
		if err != nil {
			return part.target, err
		}
		err = l.mapMount(mounts.Source{FD: dir, Mount: isolation.Mount{Target: part.target, Writable: part.writable}, Owner: part.owner})
		unix.Close(dir)
		if err != nil {
			return part.target, err
		}
	}
	return "", nil
}

// takeBase opens the base of a root of the host's programs, which the box has until it ends.
func (l *launching) takeBase() (int, error) {
	l.undo = append(l.undo, func() { l.k.bases.Release(l.spec.Key) }) // watch does it too, but may have done it by now
	return l.k.bases.take(l.spec.Key)
}

// layer is one layer of a root.
type layer struct {
	target   string
	open     func() (int, error)
	writable bool
	owner    mounts.Owner
}
