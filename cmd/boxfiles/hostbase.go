// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"path"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/overlay"
)

// Bounds on what is copied of the read-only root, which is /etc.
const (
	baseSize   = 64 << 20 // bytes
	baseInodes = 32768
	baseDepth  = 16
)

// runBase does what isolation.BaseCommand says. It reads as a user who owns nothing, so that it copies nothing that programs could
// not read where /etc is not a copy, and writes as the box user's own number.
func runBase(args []string, stdout io.Writer) int {
	answer := isolation.BaseDone
	c := copier{bytes: baseSize, inodes: baseInodes}
	var err error
	if c.reader, err = strconv.Atoi(strings.Join(args, " ")); err == nil {
		err = skeleton(isolation.BaseFrom, isolation.BaseTo)
	}
	if err == nil {
		err = c.dropRoot()
	}
	if err != nil {
		answer = err.Error()
	} else if item, err := c.fill(isolation.BaseFrom, isolation.BaseTo); err != nil {
		answer = fmt.Sprintf("%s: %v", item, err)
	}
	if _, err := io.WriteString(stdout, answer); err != nil || answer != isolation.BaseDone {
		return 1
	}
	return 0
}

// skeleton makes what belongs to PID 1 of boxes, as root: on the disk it has their number.
func skeleton(root, to int) error {
	syscall.Umask(0o022)
	if item, err := overlay.Skeleton(to); err != nil {
		return fmt.Errorf("%s: %w", item, err)
	}
	for _, name := range isolation.HostDirs() { // where the trees of the host are mounted
		var st unix.Stat_t
		if unix.Fstatat(root, name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR {
			continue
		}
		if err := unix.Mkdirat(to, name, 0o755); err != nil {
			return fmt.Errorf("/%s: %w", name, err)
		}
	}
	return nil
}

// dropRoot gives up all capabilities for good: what is left are the two ids, and the box user's own number on the host, which a person
// may have, is the effective one alone, so that this person can send it no signal (kill(2)).
func (c *copier) dropRoot() error {
	runtime.LockOSThread()
	err := syscall.Setgroups(nil)
	if err == nil {
		err = syscall.Setresgid(c.reader, isolation.BoxGID, c.reader)
	}
	if err == nil {
		err = syscall.Setresuid(c.reader, isolation.BoxUID, c.reader) // the last id that was 0 takes all capabilities along (capabilities(7))
	}
	c.as(c.reader)
	return err
}

// copier copies files with the rights of one user, as files of the box user. Its thread must be locked.
type copier struct {
	reader        int
	bytes, inodes int64 // how much it may copy still
}

// as gives this thread the file access rights of a user that is one of its own, or of any if it is privileged (setfsuid(2)).
func (*copier) as(id int) {
	// Raw system calls: the wrappers would change every thread.
	_, _, _ = syscall.RawSyscall(unix.SYS_SETFSGID, uintptr(id), 0, 0)
	_, _, _ = syscall.RawSyscall(unix.SYS_SETFSUID, uintptr(id), 0, 0)
}

// make calls f, which makes an entry, with the rights of the box user.
func (c *copier) make(f func() error) error {
	if c.inodes--; c.inodes < 0 {
		return unix.ENOSPC
	}
	c.as(isolation.BoxUID)
	defer c.as(c.reader)
	return f()
}

// fill makes a base from the root of boxes that are not written to.
func (c *copier) fill(root, to int) (item string, err error) {
	top, err := unix.Openat(root, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "/", err
	}
	defer unix.Close(top)
	list, err := entryNames(top)
	if err != nil {
		return "/", err
	}
	for _, name := range list {
		if err := c.link(top, to, name); err != nil && !errors.Is(err, unix.EINVAL) { // EINVAL: it is not a symbolic link
			return "/" + name, err
		}
	}
	// The home of root, which programs expect; the host's is not to be seen in boxes.
	if err := c.make(func() error { return unix.Mkdirat(to, "root", 0o700) }); err != nil {
		return "/root", err
	}
	return c.dir(top, to, "etc", "/etc", baseDepth)
}

// dir copies a directory and what is in it, without what cannot be read.
func (c *copier) dir(from, to int, name, at string, depth int) (item string, err error) {
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
	if err := c.make(func() error { return unix.Mkdirat(to, name, 0o755) }); err != nil && !errors.Is(err, unix.EEXIST) { // EEXIST: of the skeleton
		return at, err
	}
	out, err := unix.Openat(to, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return at, err
	}
	defer unix.Close(out)
	list, err := entryNames(in)
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
			if item, err := c.dir(in, out, e, path.Join(at, e), depth-1); err != nil {
				return item, err
			}
			continue
		case unix.S_IFLNK:
			err = c.link(in, out, e)
		case unix.S_IFREG:
			err = c.file(in, out, e, st.Mode&0o777)
		default:
			continue
		}
		if err != nil && !errors.Is(err, unix.EACCES) && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EEXIST) {
			return path.Join(at, e), err
		}
	}
	return "", nil
}

func (c *copier) link(from, to int, name string) error {
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(from, name, buf)
	if err != nil {
		return err
	}
	return c.make(func() error { return unix.Symlinkat(string(buf[:n]), to, name) })
}

func (c *copier) file(from, to int, name string, mode uint32) error {
	in, err := unix.Openat(from, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(in)
	var st unix.Stat_t
	if err := unix.Fstat(in, &st); err != nil {
		return err
	}
	out := -1
	err = c.make(func() (err error) {
		out, err = unix.Openat(to, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, mode)
		return err
	})
	if err != nil {
		return err
	}
	defer unix.Close(out)
	for {
		n, err := unix.Sendfile(out, in, nil, 1<<20)
		if err != nil {
			return err
		}
		if n == 0 { // by its time a file that a box has restored is still as in the next copy
			c.as(isolation.BoxUID)
			defer c.as(c.reader)
			return unix.UtimesNanoAt(to, name, []unix.Timespec{{Nsec: unix.UTIME_OMIT}, st.Mtim}, unix.AT_SYMLINK_NOFOLLOW)
		}
		if c.bytes -= int64(n); c.bytes < 0 {
			return unix.ENOSPC
		}
	}
}

// entryNames returns the names in a directory.
func entryNames(dir int) (list []string, err error) {
	buf := make([]byte, 16<<10)
	for {
		n, err := unix.ReadDirent(dir, buf)
		if err != nil || n == 0 {
			return list, err
		}
		_, _, list = unix.ParseDirent(buf[:n], -1, list)
	}
}
