// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/linux"
)

// copyTree copies the content of a directory, and its own attributes, to an empty one. Files share their blocks with the copy;
// owners, modes, times, extended attributes, hard links and special files are as in the original. It looks up only names in
// directories that it has opened, follows no symbolic link and enters no mount. links is an empty directory on the same
// filesystem; its content afterwards is of no use. Nothing may change the tree meanwhile. A *reachError: it is too large.
//
// It returns the size of the tree; with to = -1 that is all it does.
func copyTree(ctx context.Context, from, to, links int) (Limits, error) {
	fd, err := unix.Openat(from, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return Limits{}, &walkError{".", err}
	}
	top := os.NewFile(uintptr(fd), ".")
	defer top.Close()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return Limits{}, &walkError{".", err}
	}
	c := &treeCopy{Reach: defaultReach(), dev: st.Dev, links: links, seen: map[uint64]bool{}}
	c.add(&st)
	err = c.content(ctx, top, to, 1)
	if err == nil && to >= 0 {
		err = copyAttributes(named{fd, "."}, named{to, "."}, &st)
	}
	return c.size, err
}

// treeCopy is the state of a copy.
type treeCopy struct {
	Reach
	dev     uint64 // of the filesystem that the tree is on
	entries int
	size    Limits
	links   int             // has the first name of each inode with several
	seen    map[uint64]bool // inodes of which one name was met
}

// named is a name in an open directory.
type named struct {
	dir  int
	name string
}

// path is for calls that take no descriptor; they must not follow a symbolic link at the end.
func (n named) path() string { return "/proc/self/fd/" + strconv.Itoa(n.dir) + "/" + n.name }

func (c *treeCopy) add(st *unix.Stat_t) {
	c.size.Bytes += uint64(st.Blocks) * 512 // the unit of stat(2)
	c.size.Inodes++
}

// content copies the content of a directory at this depth.
func (c *treeCopy) content(ctx context.Context, dir *os.File, to, depth int) error {
	if depth > c.Depth {
		return &reachError{dir.Name(), strconv.Itoa(c.Depth) + " nested directories"}
	}
	for {
		names, err := dir.Readdirnames(batch)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return &walkError{dir.Name(), err}
		}
		for _, name := range names {
			at := path.Join(dir.Name(), name)
			if c.entries++; c.entries > c.Entries {
				return &reachError{at, strconv.Itoa(c.Entries) + " entries"}
			}
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			err := c.one(ctx, named{int(dir.Fd()), name}, named{to, name}, at, depth)
			if _, is := errors.AsType[*walkError](err); err != nil && !is && !errors.As(err, new(*reachError)) && ctx.Err() == nil {
				err = &walkError{at, err}
			}
			if err != nil {
				return err
			}
		}
	}
}

// one copies an entry of a directory.
func (c *treeCopy) one(ctx context.Context, from, to named, at string, depth int) error {
	var st unix.Stat_t
	if err := unix.Fstatat(from.dir, from.name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	if st.Dev != c.dev {
		return unix.EXDEV
	}
	directory := st.Mode&unix.S_IFMT == unix.S_IFDIR
	several, inode := !directory && st.Nlink > 1, strconv.FormatUint(st.Ino, 10)
	if several && c.seen[st.Ino] {
		if to.dir < 0 {
			return nil
		}
		return unix.Linkat(c.links, inode, to.dir, to.name, 0)
	}
	c.add(&st)
	if several {
		c.seen[st.Ino] = true
	}
	var err error
	switch {
	case directory:
		err = c.directory(ctx, from, to, at, depth)
	case to.dir >= 0:
		err = copyEntry(from, to, &st)
	}
	if err != nil || to.dir < 0 {
		return err
	}
	if err := copyAttributes(from, to, &st); err != nil || !several {
		return err
	}
	return unix.Linkat(to.dir, to.name, c.links, inode, 0)
}

func (c *treeCopy) directory(ctx context.Context, from, to named, at string, depth int) error {
	fd, err := openPlain(from, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	dir := os.NewFile(uintptr(fd), at)
	defer dir.Close()
	if to.dir < 0 {
		return c.content(ctx, dir, -1, depth+1)
	}
	if err := unix.Mkdirat(to.dir, to.name, 0o700); err != nil {
		return err
	}
	dst, err := openPlain(to, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer unix.Close(dst)
	return c.content(ctx, dir, dst, depth+1)
}

// openPlain opens an entry that is a directory or a regular file.
func openPlain(n named, flags uint64) (int, error) {
	return linux.Openat2(n.dir, n.name, &unix.OpenHow{
		Flags:   flags | unix.O_NOFOLLOW | unix.O_NOATIME | unix.O_NONBLOCK | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
	})
}

// copyEntry creates an entry other than a directory, without its attributes.
func copyEntry(from, to named, st *unix.Stat_t) error {
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return cloneFile(from, to)
	case unix.S_IFLNK:
		target := make([]byte, unix.PathMax)
		n, err := unix.Readlinkat(from.dir, from.name, target)
		if err != nil {
			return err
		}
		return unix.Symlinkat(string(target[:n]), to.dir, to.name)
	}
	return unix.Mknodat(to.dir, to.name, st.Mode&unix.S_IFMT|0o600, int(st.Rdev))
}

func cloneFile(from, to named) error {
	src, err := openPlain(from, unix.O_RDONLY)
	if err != nil {
		return err
	}
	defer unix.Close(src)
	dst, err := unix.Openat(to.dir, to.name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	defer unix.Close(dst)
	return unix.IoctlFileClone(dst, src)
}

// copyAttributes copies owner, extended attributes, mode and times, in this order: a change of owner clears bits of the mode and
// attributes, and all of them change times.
func copyAttributes(from, to named, st *unix.Stat_t) error {
	if err := unix.Fchownat(to.dir, to.name, int(st.Uid), int(st.Gid), unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	if err := copyXattrs(from.path(), to.path()); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFLNK {
		if err := unix.Fchmodat(to.dir, to.name, st.Mode&0o7777, 0); err != nil {
			return err
		}
	}
	return unix.UtimesNanoAt(to.dir, to.name, []unix.Timespec{st.Atim, st.Mtim}, unix.AT_SYMLINK_NOFOLLOW)
}

// maxXattrs is the largest list of names and the largest value of extended attributes, XATTR_LIST_MAX and XATTR_SIZE_MAX.
const maxXattrs = 64 << 10

func copyXattrs(from, to string) error {
	n, err := unix.Llistxattr(from, nil)
	if n == 0 || errors.Is(err, unix.EOPNOTSUPP) {
		return nil
	}
	list := make([]byte, maxXattrs)
	if n, err = unix.Llistxattr(from, list); err != nil {
		return err
	}
	value, has := make([]byte, maxXattrs), make([]byte, maxXattrs)
	for name := range bytes.SplitSeq(bytes.TrimSuffix(list[:n], []byte{0}), []byte{0}) {
		n, err := unix.Lgetxattr(from, string(name), value)
		if err != nil {
			return err
		}
		if m, err := unix.Lgetxattr(to, string(name), has); err == nil && bytes.Equal(has[:m], value[:n]) {
			continue // the SELinux label, which not every process may set
		}
		if err := unix.Lsetxattr(to, string(name), value[:n], 0); err != nil {
			return err
		}
	}
	return nil
}
