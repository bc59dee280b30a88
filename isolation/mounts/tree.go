// SPDX-License-Identifier: Apache-2.0

package mounts

import (
	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/linux"
	"github.com/boxd-dev/boxd/isolation"
)

// tree returns a detached mount of the source with the attributes it has in the box; the
// descriptor is the caller's. idMap opens the user namespace that is its id map, if it needs one.
// The attributes are read back from the kernel; EPERM: they are not what was asked for.
func (s *Source) tree(idMap func() (int, error)) (int, error) {
	attr := unix.MountAttr{
		Attr_set:    unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV,
		Propagation: unix.MS_PRIVATE, // otherwise a mount made in a box would show up on the host
	}
	if !s.Mount.Writable {
		attr.Attr_set |= unix.MOUNT_ATTR_RDONLY
	}
	if s.Mount.NoSymlinks {
		attr.Attr_set |= unix.MOUNT_ATTR_NOSYMFOLLOW
	}
	if s.Owner.Mapped {
		ns, err := idMap()
		if err != nil {
			return -1, err
		}
		defer unix.Close(ns)
		attr.Attr_set |= unix.MOUNT_ATTR_IDMAP
		attr.Userns_fd = uint64(ns)
	}
	tree, err := linux.CloneMount(s.FD, "", false)
	if err != nil {
		return -1, err
	}
	err = linux.RestrictMount(tree, &attr)
	if err == nil {
		_, err = verify(tree, &s.Mount)
	}
	if err != nil {
		unix.Close(tree)
		return -1, err
	}
	return tree, nil
}

// stNoSymfollow is ST_NOSYMFOLLOW of statfs(2).
const stNoSymfollow = 0x2000

// verify reads back the attributes of a mount, as ST_ flags of statfs(2), and returns EPERM if
// one is missing.
func verify(tree int, m *isolation.Mount) (uint64, error) {
	want := uint64(unix.ST_NOSUID | unix.ST_NODEV)
	if !m.Writable {
		want |= unix.ST_RDONLY
	}
	if m.NoSymlinks {
		want |= stNoSymfollow
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(tree, &fs); err != nil {
		return 0, err
	}
	have := uint64(fs.Flags) //nolint:gosec,unconvert // its type differs between machines
	if have&want != want {
		return have, unix.EPERM
	}
	return have, nil
}
