// SPDX-License-Identifier: Apache-2.0

// Mounts and paths as descriptors, so that nothing is looked up twice. Every descriptor is
// close-on-exec and the caller's.

package linux

import (
	"errors"

	"golang.org/x/sys/unix"
)

// NewMount makes a detached mount of a new filesystem, with MOUNT_ATTR_ attributes. Options are
// name, value pairs, with an empty value for a flag (fsopen(2), fsconfig(2), fsmount(2)).
func NewMount(fstype string, attrs int, options ...string) (int, error) {
	fs, err := unix.Fsopen(fstype, unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, err
	}
	defer unix.Close(fs)
	// The first column of /proc/mounts, which would be "none".
	if err := unix.FsconfigSetString(fs, "source", fstype); err != nil {
		return -1, err
	}
	for i := 0; i < len(options); i += 2 {
		if options[i+1] == "" {
			err = unix.FsconfigSetFlag(fs, options[i])
		} else {
			err = unix.FsconfigSetString(fs, options[i], options[i+1])
		}
		if err != nil {
			return -1, err
		}
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return -1, err
	}
	return unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, attrs)
}

// CloneMount returns a detached copy of the mount at path below dir, or of dir itself if path is
// empty. It does not follow a symbolic link at the end of path (open_tree(2)). With recursive,
// mounts below are copied too.
func CloneMount(dir int, path string, recursive bool) (int, error) {
	flags := uint(unix.OPEN_TREE_CLONE | unix.OPEN_TREE_CLOEXEC | unix.AT_SYMLINK_NOFOLLOW)
	if path == "" {
		flags |= unix.AT_EMPTY_PATH
	}
	if recursive {
		flags |= unix.AT_RECURSIVE
	}
	return unix.OpenTree(dir, path, flags)
}

// AttachMount attaches a detached mount at path below dir, or on dir itself if path is empty
// (move_mount(2)).
func AttachMount(tree, dir int, path string) error {
	flags := unix.MOVE_MOUNT_F_EMPTY_PATH
	if path == "" {
		flags |= unix.MOVE_MOUNT_T_EMPTY_PATH
	}
	return unix.MoveMount(tree, "", dir, path, flags)
}

// RestrictMount sets attributes of a detached mount and of all mounts in it (mount_setattr(2)).
func RestrictMount(tree int, attr *unix.MountAttr) error {
	return unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, attr)
}

// OpenBeneath opens a relative path below dir without following any symbolic link.
func OpenBeneath(dir int, path string, flags uint64) (int, error) {
	return Openat2(dir, path, &unix.OpenHow{
		Flags:   flags | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
}

// IsEmpty reports whether the directory of a relative path is empty, without following any symbolic link.
func IsEmpty(dir int, path string) (bool, error) {
	fd, err := OpenBeneath(dir, path, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return false, err
	}
	defer unix.Close(fd)
	buf := make([]byte, 4096) // a name is at most 255 bytes, so the first read returns one if there is any
	n, err := unix.ReadDirent(fd, buf)
	if err != nil {
		return false, err
	}
	_, _, names := unix.ParseDirent(buf[:n], 1, nil)
	return len(names) == 0, nil
}

// Openat2 is openat2(2), repeated where the kernel asks for it: after a signal, and when something
// was renamed during the look-up so that ".." could not be checked (EAGAIN).
func Openat2(dir int, path string, how *unix.OpenHow) (int, error) {
	for {
		fd, err := unix.Openat2(dir, path, how)
		if !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EAGAIN) {
			return fd, err
		}
	}
}
