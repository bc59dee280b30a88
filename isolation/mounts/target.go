// SPDX-License-Identifier: Apache-2.0

package mounts

import (
	"cmp"
	"errors"
	"path"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/linux"
	"github.com/boxd-dev/boxd/isolation"
)

// maxWalk is how much of a path is resolved in one call: a box can nest directories into a longer
// path than the kernel takes.
const maxWalk = 4000

// open opens a directory of the box without following any symbolic link.
func (p *nsThread) open(name string) (int, error) {
	if name == "/" {
		return unix.FcntlInt(uintptr(p.root), unix.F_DUPFD_CLOEXEC, 3)
	}
	dir, name := p.root, name[1:]
	for {
		part, rest := name, ""
		if len(name) > maxWalk {
			i := strings.LastIndexByte(name[:maxWalk], '/')
			if i < 0 {
				return -1, unix.ENAMETOOLONG
			}
			part, rest = name[:i], name[i+1:]
		}
		fd, err := linux.OpenBeneath(dir, part, unix.O_PATH|unix.O_DIRECTORY)
		if dir != p.root {
			unix.Close(dir)
		}
		if err != nil || rest == "" {
			return fd, err
		}
		dir, name = fd, rest
	}
}

// makeTarget makes the missing directories of a target as the box user, who owns what else is
// there. It returns the first one that it has made. After an error it has removed them again.
func (p *nsThread) makeTarget(target string) (created string, err error) {
	fd, err := p.open(target)
	if err == nil {
		return "", unix.Close(fd)
	}
	if !errors.Is(err, unix.ENOENT) {
		return "", err
	}
	if err := p.cover(target); err != nil {
		return "", err
	}
	restore, err := actAs(p.uid)
	if err != nil {
		return "", err
	}
	defer restore()
	for _, dir := range chain(target, "") {
		isNew, err := p.makeDir(dir)
		if err != nil {
			restore()
			if created != "" {
				p.removeMade(dir, created)
			}
			return "", err
		}
		if isNew && created == "" {
			created = dir
		}
	}
	return created, nil
}

// chain lists target and the directories between it and dir, the shortest path first; dir itself
// is not in the list.
func chain(target, dir string) []string {
	var list []string
	for i := len(dir) + 1; i <= len(target); i++ {
		if i == len(target) || target[i] == '/' {
			list = append(list, target[:i])
		}
	}
	return list
}

func (p *nsThread) makeDir(name string) (isNew bool, err error) {
	parent, err := p.open(path.Dir(name))
	if err != nil {
		return false, err
	}
	defer unix.Close(parent)
	err = unix.Mkdirat(parent, path.Base(name), 0o755)
	if err == nil {
		return true, nil
	}
	// For a directory that exists, a read-only filesystem may return EROFS instead of EEXIST
	// (mkdir(2)).
	if fd, oerr := linux.OpenBeneath(parent, path.Base(name), unix.O_PATH|unix.O_DIRECTORY); oerr == nil {
		return false, unix.Close(fd)
	}
	return false, err
}

// removeMade removes the empty directories from a target up to created, which was the first one
// made. It does so as the box user, who could do the same.
func (p *nsThread) removeMade(target, created string) {
	restore, err := actAs(p.uid)
	if err != nil {
		return
	}
	defer restore()
	for dir := target; ; dir = path.Dir(dir) {
		parent, err := p.open(path.Dir(dir))
		if err == nil {
			err = unix.Unlinkat(parent, path.Base(dir), unix.AT_REMOVEDIR)
			unix.Close(parent)
		}
		// ENOENT: it was never made, or an earlier call has removed it and stopped further up.
		if err != nil && !errors.Is(err, unix.ENOENT) || dir == created {
			return
		}
	}
}

// Size of the tmpfs that covers a bare directory of the image. It holds nothing but mount points.
const (
	coverSize   = "1m"
	coverInodes = "256"
)

// cover makes a bare, read-only top-level directory of the image writable by mounting a tmpfs on
// it, as PID 1 does for the mounts that a box starts with. Where something is mounted already,
// nothing changes. ENOTEMPTY: the image has something there, which programs would lose.
func (p *nsThread) cover(target string) error {
	top, _, deeper := strings.Cut(target[1:], "/")
	topID, err := mountID(p.root, top)
	if err != nil {
		return err
	}
	root, err := mountID(p.root, "")
	if err != nil || topID != root || !deeper || "/"+top == "/home" {
		return err
	}
	// If the box user can write to the root, directories are made there directly.
	var fs unix.Statfs_t
	if err := unix.Fstatfs(p.root, &fs); err != nil || p.uid != 0 && fs.Flags&unix.ST_RDONLY == 0 {
		return err
	}
	if empty, err := linux.IsEmpty(p.root, top); err != nil || !empty && p.uid != 0 {
		return cmp.Or(err, error(unix.ENOTEMPTY))
	}
	id := strconv.FormatUint(uint64(p.uid), 10)
	m, err := linux.NewMount("tmpfs", unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV, "mode", "0755", "uid", id, "gid", id,
		"size", coverSize, "nr_inodes", coverInodes)
	if err != nil {
		return err
	}
	defer unix.Close(m)
	if err := linux.RestrictMount(m, &unix.MountAttr{Propagation: unix.MS_PRIVATE}); err != nil {
		return err
	}
	return linux.AttachMount(m, p.root, top)
}

// actAs gives this thread the file access rights of a user, and of the group of the same number,
// until the returned function is called. Leaving uid 0 also drops the capabilities that override
// permissions (setfsuid(2)).
func actAs(id uint32) (restore func(), err error) {
	if _, _, errno := syscall.RawSyscall(unix.SYS_SETGROUPS, 0, 0, 0); errno != 0 {
		return nil, errno
	}
	setfs(id)
	now, _, _ := syscall.RawSyscall(unix.SYS_SETFSUID, ^uintptr(0), 0, 0) // an invalid id makes it return the one in force
	if uint32(now) != id {
		setfs(0)
		return nil, unix.EPERM
	}
	return func() { setfs(0) }, nil
}

func setfs(id uint32) {
	// Raw system calls: the wrappers would change every thread.
	_, _, _ = syscall.RawSyscall(unix.SYS_SETFSGID, uintptr(id), 0, 0)
	_, _, _ = syscall.RawSyscall(unix.SYS_SETFSUID, uintptr(id), 0, 0)
}

// outside calls f with a directory of the host as the root, and with its owner as the user to act
// as. That directory was mounted at mount in the box; f gets paths below it with mount cut off.
func outside(dir int, mount string, owner uint32, paths []string, f func(p *nsThread) error) error {
	for _, path := range paths {
		if mount == "/" || owner == 0 || !isolation.Within(path, mount) || path == mount {
			return unix.EINVAL
		}
	}
	return onOwnThread(func() error { return f(&nsThread{root: dir, uid: owner}) })
}

// removeEmptyDirs removes the empty directories that were made in a directory of the host, as the owner of
// that. The directory was mounted at mount in the box.
func removeEmptyDirs(dir int, mount string, owner uint32, target, created string) error {
	if !isolation.Within(target, created) {
		return unix.EINVAL
	}
	return outside(dir, mount, owner, []string{target, created}, func(p *nsThread) error {
		p.removeMade(target[len(mount):], created[len(mount):])
		return nil
	})
}

// missing returns the first directory that does not exist of a target below a directory of the
// host, or "" if none is missing.
func missing(dir int, mount string, owner uint32, target string) (created string, err error) {
	err = outside(dir, mount, owner, []string{target}, func(p *nsThread) error {
		restore, err := actAs(p.uid)
		if err != nil {
			return err
		}
		defer restore()
		if created = p.missing(target[len(mount):]); created != "" {
			created = mount + created
		}
		return nil
	})
	return created, err
}
