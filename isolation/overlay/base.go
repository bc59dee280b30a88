// SPDX-License-Identifier: Apache-2.0

package overlay

import (
	"errors"
	"path"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/linux"
	"github.com/boxd-dev/boxd/isolation"
)

// base makes the lower layer for everything outside the trees of the host: a copy of /etc and of the symbolic links at the top of
// the read-only root that PID 1 starts in, as files of the box user. It is made as that user, who has no rights on the host, so
// that it contains nothing that programs could not read there.
//
// It is a single overlay for some hundred small files. The parts of /etc that are directories of
// the host would need two overlays each, and each of those costs more than all the copies.
func (h *host) base() (item string, err error) {
	id := strconv.Itoa(isolation.BoxUID)
	m, err := linux.NewMount("tmpfs", unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV, "mode", "0755", "uid", id, "gid", id, "size", baseSize, "nr_inodes", baseInodes)
	if err != nil {
		return "tmpfs", err
	}
	defer unix.Close(m)
	if err := linux.AttachMount(m, h.old, imagePlace); err != nil {
		return imagePlace, err
	}
	restore := asBoxUser()
	defer restore()
	top, err := unix.Openat(h.old, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "/", err
	}
	defer unix.Close(top)
	list, err := entries(top)
	if err != nil {
		return "/", err
	}
	for _, name := range list {
		if err := copyLink(top, m, name); err != nil && !errors.Is(err, unix.EINVAL) { // EINVAL: it is not a symbolic link
			return "/" + name, err
		}
	}
	for _, t := range h.trees {
		if err := unix.Mkdirat(m, t.name, 0o755); err != nil {
			return t.name, err
		}
	}
	// The home of root, which programs expect; the host's is not to be seen in boxes.
	if err := unix.Mkdirat(m, "root", 0o700); err != nil && !errors.Is(err, unix.EEXIST) {
		return "/root", err
	}
	return copyDir(top, m, "etc", "/etc", baseDepth)
}

// asBoxUser gives this thread the file access rights of the box user until the returned function
// is called.
func asBoxUser() (restore func()) {
	runtime.LockOSThread()
	setfs(isolation.BoxUID, isolation.BoxGID)
	return func() {
		setfs(0, 0)
		runtime.UnlockOSThread()
	}
}

func setfs(uid, gid uintptr) {
	// Raw system calls: the wrappers would change every thread.
	_, _, _ = syscall.RawSyscall(unix.SYS_SETFSGID, gid, 0, 0)
	_, _, _ = syscall.RawSyscall(unix.SYS_SETFSUID, uid, 0, 0)
}

// copyDir copies a directory and what is in it, without what cannot be read.
func copyDir(from, to int, name, at string, depth int) (item string, err error) {
	in, err := unix.Openat(from, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.EACCES) || depth < baseDepth && (errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP)) {
		return "", nil // it is unreadable, or has just been replaced
	}
	if err != nil {
		return at, err
	}
	defer unix.Close(in)
	if depth == 0 {
		return at, unix.ENAMETOOLONG
	}
	if err := unix.Mkdirat(to, name, 0o755); err != nil {
		return at, err
	}
	out, err := unix.Openat(to, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return at, err
	}
	defer unix.Close(out)
	list, err := entries(in)
	if err != nil {
		return at, err
	}
	for _, e := range list {
		var st unix.Stat_t
		if err := unix.Fstatat(in, e, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EACCES) { // removed meanwhile, or in a directory that may be listed but not searched
				continue
			}
			return path.Join(at, e), err
		}
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFDIR:
			if item, err := copyDir(in, out, e, path.Join(at, e), depth-1); err != nil {
				return item, err
			}
			continue
		case unix.S_IFLNK:
			err = copyLink(in, out, e)
		case unix.S_IFREG:
			err = copyFile(in, out, e, st.Mode&0o777)
		default:
			continue
		}
		if err != nil && !errors.Is(err, unix.EACCES) && !errors.Is(err, unix.ENOENT) {
			return path.Join(at, e), err
		}
	}
	return "", nil
}

func copyLink(from, to int, name string) error {
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(from, name, buf)
	if err != nil {
		return err
	}
	return unix.Symlinkat(string(buf[:n]), to, name)
}

func copyFile(from, to int, name string, mode uint32) error {
	in, err := unix.Openat(from, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(in)
	out, err := unix.Openat(to, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, mode)
	if err != nil {
		return err
	}
	defer unix.Close(out)
	for {
		n, err := unix.Sendfile(out, in, nil, 1<<20)
		if err != nil || n == 0 {
			return err
		}
	}
}

// entries returns the names in a directory.
func entries(dir int) (list []string, err error) {
	buf := make([]byte, 16<<10)
	for {
		n, err := unix.ReadDirent(dir, buf)
		if err != nil || n == 0 {
			return list, err
		}
		_, _, list = unix.ParseDirent(buf[:n], -1, list)
	}
}
