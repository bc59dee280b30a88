// SPDX-License-Identifier: Apache-2.0

// Mount points that the image does not have. Its tree is read-only and shared by all boxes. Only an overlay of the whole tree
// could add a directory to it, but overlayfs takes no layer with locked mounts below it, which the tree is full of. So a
// directory that lacks a mount point is covered with a tmpfs that has the same entries, each bind-mounted from the covered one.
// Only a box that asks for such a mount pays for that.

package main

import (
	"errors"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/linux"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/overlay"
)

// Bounds of a cover. Besides mount points it holds links, and empty files that others are mounted on.
const (
	coverSize    = "4m"
	coverInodes  = "4096"
	coverEntries = 2048 // in the directory that is covered
)

// coverPlace is where a new root is mounted while it is made: a directory of every tree that is empty until showLimits.
const coverPlace = "sys"

// mountPoint opens the directory that a mount goes to, without following a symbolic link, and makes missing ones.
func (b *box) mountPoint(target string) (int, error) {
	fd, err := b.open(target, unix.O_PATH)
	if !errors.Is(err, unix.ENOENT) {
		return fd, err
	}
	existing, err := b.deepestExisting(target)
	if err != nil {
		return -1, err
	}
	byPID1, err := b.makeWritable(existing)
	if err != nil {
		return -1, err
	}
	restore := func() {}
	if !byPID1 {
		restore = asBoxUser()
	}
	err = makeMountDirs(b.root, existing, target)
	restore()
	if err != nil {
		return -1, err
	}
	return b.open(target, unix.O_PATH)
}

// open opens a directory by its absolute path.
func (b *box) open(dir string, flags uint64) (int, error) {
	return linux.OpenBeneath(b.root, path.Join(".", dir), flags|unix.O_DIRECTORY)
}

// deepestExisting returns the longest existing directory on the path to a missing one.
func (b *box) deepestExisting(target string) (string, error) {
	for dir := path.Dir(target); ; dir = path.Dir(dir) { // ends at "/"
		fd, err := b.open(dir, unix.O_PATH)
		if err == nil {
			unix.Close(fd)
			return dir, nil
		}
		if !errors.Is(err, unix.ENOENT) {
			return "", err
		}
	}
}

// makeMountDirs makes the directories from an existing one down to a target.
func makeMountDirs(root int, existing, target string) error {
	for end := len(strings.TrimSuffix(existing, "/")); end < len(target); {
		next := strings.IndexByte(target[end+1:], '/')
		if next < 0 {
			next = len(target) - end - 1
		}
		end += 1 + next
		if err := makeDir(root, target[1:end]); err != nil {
			return err
		}
	}
	return nil
}

// makeWritable makes an existing directory ready for new directories in it. byPID1: PID 1 makes them, in a cover; otherwise the box
// user, who owns what is mounted there, or a writable root. An empty directory at the top becomes a part of the scratch tmpfs
// that belongs to the box user, since a live box can get mounts there.
func (b *box) makeWritable(dir string) (byPID1 bool, err error) {
	if b.writable {
		return false, nil
	}
	id, err := b.mountID(dir)
	if err != nil {
		return false, err
	}
	if byPID1, covered := b.covers[id]; covered {
		return byPID1, nil
	}
	if b.belongsToUser(dir) {
		return false, nil
	}
	list, err := b.entries(dir)
	if err != nil {
		return false, err
	}
	byPID1 = len(list) > 0 || path.Dir(dir) != "/" || !isolation.UnderRoots(dir)
	if byPID1 {
		err = b.cover(dir, list)
	} else {
		d := scratchDir{"root-" + dir[1:], dir, 0o755, isolation.BoxUID}
		if err = b.makeScratch(d); err == nil {
			err = b.showScratch(d)
		}
	}
	if err != nil {
		return false, err
	}
	return byPID1, b.recordCover(dir, byPID1)
}

// belongsToUser reports whether a directory belongs to the box user: a part of the scratch tmpfs, or of an attached mount.
func (b *box) belongsToUser(dir string) bool {
	return slices.ContainsFunc(b.scratchDirs(), func(d scratchDir) bool { return isolation.Within(dir, d.target) }) ||
		// What is at or above a target that is being attached has a shorter one.
		slices.ContainsFunc(b.setup.Mounts, func(m isolation.SetupMount) bool { return isolation.Within(dir, m.Target) })
}

// recordCover records what is mounted on a directory.
func (b *box) recordCover(dir string, byPID1 bool) error {
	id, err := b.mountID(dir)
	if b.covers == nil {
		b.covers = map[uint64]bool{}
	}
	b.covers[id] = byPID1
	return err
}

func (b *box) mountID(dir string) (uint64, error) {
	var st unix.Statx_t
	err := unix.Statx(b.root, path.Join(".", dir), unix.AT_SYMLINK_NOFOLLOW, unix.STATX_MNT_ID, &st)
	return st.Mnt_id, err
}

// entries lists a directory.
func (b *box) entries(dir string) (list []string, err error) {
	fd, err := b.open(dir, unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	buf := make([]byte, 16<<10)
	for {
		n, err := unix.ReadDirent(fd, buf)
		if err != nil || n == 0 {
			return list, err
		}
		if _, _, list = unix.ParseDirent(buf[:n], -1, list); len(list) > coverEntries {
			return nil, unix.E2BIG
		}
	}
}

// cover covers a directory with a tmpfs that has the same entries.
func (b *box) cover(dir string, list []string) error {
	from, err := b.open(dir, unix.O_PATH)
	if err != nil {
		return err
	}
	defer unix.Close(from)
	to, err := newCover()
	if err != nil {
		return err
	}
	b.openCovers = append(b.openCovers, to)
	if err := linux.AttachMount(to, from, ""); err != nil {
		return err
	}
	for _, name := range list {
		if err := showEntry(from, to, name); err != nil {
			return err
		}
	}
	return nil
}

func newCover() (int, error) {
	return linux.NewMount("tmpfs", unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC, "mode", "0755", "size", coverSize, "nr_inodes", coverInodes)
}

// closeCovers makes covers read-only, as the covered directories are, once all mount points are made.
func (b *box) closeCovers() error {
	var errs error
	for _, fd := range b.openCovers {
		errs = errors.Join(errs, closeCover(fd), unix.Close(fd))
	}
	b.openCovers = nil
	return errs
}

func closeCover(fd int) error { // without AT_RECURSIVE: this mount only
	return unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY})
}

// showEntry shows an entry of one directory in another, with everything mounted there.
func showEntry(from, to int, name string) error {
	var st unix.Stat_t
	if err := unix.Fstatat(from, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		buf := make([]byte, unix.PathMax)
		n, err := unix.Readlinkat(from, name, buf)
		if err != nil {
			return err
		}
		return unix.Symlinkat(string(buf[:n]), to, name)
	case unix.S_IFDIR:
		if err := unix.Mkdirat(to, name, 0o755); err != nil {
			return err
		}
	default:
		if err := unix.Mknodat(to, name, unix.S_IFREG|0o644, 0); err != nil {
			return err
		}
	}
	tree, err := linux.CloneMount(from, name, true)
	if err != nil {
		return err
	}
	defer unix.Close(tree)
	return linux.AttachMount(tree, to, name)
}

// coverRoot gives the box a root of its own if one of its mounts is in a top-level directory that the image lacks: then the whole
// tree has to be covered. It runs before anything of the box's own is mounted, so that the root can still be replaced.
func (b *box) coverRoot() (item string, err error) {
	var missing []string
	for _, m := range b.setup.Mounts {
		switch existing, err := b.deepestExisting(m.Target); {
		case err != nil:
			return m.Target, err
		case existing == "/" && !b.exists(m.Target):
			missing = append(missing, m.Target)
		}
	}
	if len(missing) == 0 {
		return "", nil
	}
	list, err := b.entries("/")
	if err != nil {
		return "/", err
	}
	to, err := newCover()
	if err != nil {
		return "/", err
	}
	defer unix.Close(to)
	if err := linux.AttachMount(to, b.root, coverPlace); err != nil {
		return coverPlace, err
	}
	for _, name := range list {
		if err := b.showAtTop(to, name); err != nil {
			return "/" + name, err
		}
	}
	for _, target := range missing {
		if err := makeMountDirs(to, "/", target); err != nil {
			return target, err
		}
	}
	if err := closeCover(to); err != nil {
		return "/", err
	}
	if err := overlay.SwitchRoot(to); err != nil {
		return "pivot_root", err
	}
	unix.Close(b.root)
	b.root, err = unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	return "/", err
}

// exists reports whether a directory exists.
func (b *box) exists(dir string) bool {
	fd, err := b.open(dir, unix.O_PATH)
	if err == nil {
		unix.Close(fd)
	}
	return err == nil
}

// showAtTop shows an entry of the old root in a new one.
func (b *box) showAtTop(to int, name string) error {
	dir := "/" + name
	switch {
	case name == "proc": // was mounted in this namespace: it can be moved, and what is below it comes along
		if err := unix.Mkdirat(to, name, 0o755); err != nil {
			return err
		}
		return linux.AttachMount(b.proc, to, name)
	case name == coverPlace:
		return unix.Mkdirat(to, name, 0o755)
	case isolation.UnderRoots(dir): // an empty one stays a bare directory, as makeWritable and a live box look for
		if list, err := b.entries(dir); err == nil && len(list) == 0 {
			return unix.Mkdirat(to, name, 0o755)
		}
	}
	return showEntry(b.root, to, name)
}
