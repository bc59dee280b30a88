// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"io"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// open opens a directory of the tree. Symbolic links on the path are resolved as within the image.
func (t *layerTree) open(dir string) (int, error) {
	fd, err := openat2(t.root, dir, unix.O_PATH|unix.O_DIRECTORY, unix.RESOLVE_BENEATH|unix.RESOLVE_NO_SYMLINKS)
	if !errors.Is(err, unix.ELOOP) {
		return fd, err
	}
	fd, err = openat2(t.root, dir, unix.O_PATH|unix.O_DIRECTORY, unix.RESOLVE_IN_ROOT|unix.RESOLVE_NO_MAGICLINKS)
	if err != nil {
		return -1, err
	}
	// Through links a tree may become too deep to be removed again.
	at, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
	if err == nil && strings.Count(at, "/") > maxDepth {
		err = unix.ENAMETOOLONG
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

func openat2(dir int, name string, flags, resolve uint64) (int, error) {
	for {
		fd, err := unix.Openat2(dir, name, &unix.OpenHow{Flags: flags | unix.O_CLOEXEC, Resolve: resolve})
		if !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EAGAIN) {
			return fd, err
		}
	}
}

// directory opens a directory of the tree, and makes it if it is missing: an archive need not
// list parents.
func (t *layerTree) directory(dir string) (int, error) {
	fd, err := t.open(dir)
	if !errors.Is(err, unix.ENOENT) || dir == "." {
		return fd, err
	}
	above, name := path.Split(dir)
	parent, err := t.directory(path.Clean(above))
	if err != nil {
		return -1, err
	}
	defer unix.Close(parent)
	if t.totals.Entries++; t.totals.Entries > 2*t.limits.Entries {
		return -1, &layerRefusal{Entry: dir, Why: "more directories than the archive has entries"}
	}
	if err := unix.Mkdirat(parent, name, 0o755); err != nil {
		return -1, err // EEXIST: a dangling symbolic link
	}
	return t.open(dir)
}

// removeEntry removes an entry of a directory with everything below it. It is no error if it does not
// exist.
func removeEntry(dir int, name string) error {
	err := unix.Unlinkat(dir, name, 0)
	switch {
	case err == nil || errors.Is(err, unix.ENOENT):
		return nil
	case !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EPERM):
		return err
	}
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	err = emptyDir(fd)
	unix.Close(fd)
	if err != nil {
		return err
	}
	return unix.Unlinkat(dir, name, unix.AT_REMOVEDIR)
}

// emptyDir removes everything in a directory.
func emptyDir(dir int) error {
	for {
		fd, err := unix.Openat(dir, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		f := os.NewFile(uintptr(fd), ".")
		names, err := f.Readdirnames(1024)
		f.Close()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		for _, name := range names {
			if err := removeEntry(dir, name); err != nil {
				return err
			}
		}
	}
}

// Users of a box. An image need not know the box user.
const (
	boxUID    = "1000"
	boxUser   = "box:x:1000:1000:box:/home/box:/bin/sh\n"
	boxGroup  = "box:x:1000:root\n" // as boxinit gives it to programs that run as root
	rootUser  = "root:x:0:0:root:/root:/bin/sh\n"
	rootGroup = "root:x:0:\n"
	maxLookup = 1 << 20
)

// finish adds what an image may lack: the directory in which its programs start, and the box user
// in its list of users.
func (t *layerTree) finish(dir string) error {
	if name, err := cleanEntry(strings.Trim(dir, "/")); err == nil {
		if fd, err := t.directory(name); err == nil { // if this fails, programs fail to start and report why
			unix.Close(fd)
		}
	}
	etc, err := openat2(t.root, "etc", unix.O_PATH|unix.O_DIRECTORY, unix.RESOLVE_BENEATH|unix.RESOLVE_NO_SYMLINKS)
	if errors.Is(err, unix.ENOENT) {
		etc, err = t.directory("etc")
	}
	if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOTDIR) {
		return nil // it is something else, which boxes hide
	}
	if err != nil {
		return err
	}
	defer unix.Close(etc)
	return errors.Join(addLine(etc, "passwd", rootUser, boxUser), addLine(etc, "group", rootGroup, boxGroup))
}

// addLine adds a line to passwd or group if it has no entry with that number (withLine). Anything but a regular file is left alone.
func addLine(etc int, name, first, line string) error {
	fd, err := openat2(etc, name, unix.O_RDONLY|unix.O_NONBLOCK, unix.RESOLVE_BENEATH|unix.RESOLVE_NO_SYMLINKS)
	old := []byte(first)
	switch {
	case errors.Is(err, unix.ENOENT):
	case errors.Is(err, unix.ELOOP):
		return nil
	case err != nil:
		return err
	default:
		f := os.NewFile(uintptr(fd), name)
		old, err = io.ReadAll(io.LimitReader(f, maxLookup+1))
		f.Close()
		if err != nil || len(old) > maxLookup {
			return nil //nolint:nilerr // a directory, or of no use for looking up users
		}
	}
	text := withLine(string(old), name == "group", line)
	if text == "" {
		return nil
	}
	if err := removeEntry(etc, name); err != nil {
		return err
	}
	if fd, err = unix.Openat(etc, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o644); err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), name)
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// withLine returns a text of passwd(5) or group(5) with an entry that has the box user's number; empty: it has one already. To a group with
// that number it adds root, as line has it: programs of root may lose the group otherwise, for instance by su.
func withLine(text string, group bool, line string) string {
	var b strings.Builder
	for l := range strings.Lines(text) {
		l = strings.TrimSuffix(l, "\n")
		if parts := strings.Split(strings.TrimSpace(l), ":"); len(parts) > 2 && parts[2] == boxUID {
			if !group || len(parts) != 4 || slices.Contains(strings.Split(parts[3], ","), "root") {
				return ""
			}
			parts[3] = strings.TrimPrefix(parts[3]+",root", ",")
			l, line = strings.Join(parts, ":"), ""
		}
		b.WriteString(l + "\n")
	}
	return b.String() + line
}
