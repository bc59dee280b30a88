// SPDX-License-Identifier: Apache-2.0

// Package overlay makes the writable root of a box. It runs in PID 1 of the box, in the
// namespaces of the box: programs write there with the box's ids and rights, so that the disk
// quota counts it, and the host trusts nothing in it.
package overlay

import (
	"errors"
	"path"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/linux"
	"github.com/boxd-dev/boxd/isolation"
)

// Target is the target of the two layers of a root, as mounts of a Setup: the image, read-only,
// and the directory for the changes, writable. If the changes come first the root is of the host's own programs: instead of an
// image there is a base, a copy of the host's /etc, and trees of the host follow, each with its own target (host.go).
const Target = "/"

// Names in the directory for the changes.
const (
	Upper = "upper" // upper layer: what differs from the image
	Work  = "work"  // work directory of overlayfs
)

// Places in the tree that PID 1 starts in, which are empty directories there.
const (
	imagePlace = "mnt"
	upperPlace = "media"
	rootPlace  = "srv"
)

// layers is what a root is made of.
type layers struct {
	image, changes int // descriptors of mounts
	old, proc      int // the tree that PID 1 has started in, and its procfs, which moves to the new root
}

// Enter makes the root for which a Setup has layers, and makes it the root of the process;
// without layers it does nothing. It removes the layers from the Setup and from the mounts that
// came with it. root is open for paths (O_PATH), before and after. item says what an error is
// about.
func Enter(s *isolation.Setup, mounts *[]int, root *int, proc int) (mounted bool, item string, err error) {
	switch {
	case len(s.Mounts) == 0 || s.Mounts[0].Target != Target:
		return false, "", nil
	case s.Mounts[0].Writable:
		item, err = enterHost(s, mounts, root, proc)
		return true, item, err
	case len(s.Mounts) < 2:
		return false, Target, unix.EINVAL
	}
	l := layers{image: (*mounts)[0], changes: (*mounts)[1], old: *root, proc: proc}
	*root, item, err = l.enter()
	for _, fd := range []int{l.image, l.changes, l.old} {
		unix.Close(fd)
	}
	s.Mounts, *mounts = s.Mounts[2:], (*mounts)[2:]
	return true, item, err
}

func (l *layers) enter() (root int, item string, err error) {
	m, item, err := l.mount()
	if err != nil {
		return -1, item, err
	}
	defer unix.Close(m)
	if item, err := l.populate(m, upperPlace+"/"+Upper); err != nil {
		return -1, item, err
	}
	if err := SwitchRoot(m); err != nil {
		return -1, "pivot_root", err
	}
	root, err = unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	return root, "/", err
}

// mount makes the overlay. userxattr: overlayfs keeps its metadata in extended attributes that an
// unprivileged mounter may write, and that programs cannot set through the overlay (overlayfs.rst
// of the kernel); redirections are off then.
func (l *layers) mount() (m int, item string, err error) {
	if err := linux.AttachMount(l.image, l.old, imagePlace); err != nil {
		return -1, "image", err
	}
	if err := linux.AttachMount(l.changes, l.old, upperPlace); err != nil {
		return -1, "changes", err
	}
	upper, err := linux.OpenBeneath(l.old, upperPlace+"/"+Upper, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return -1, Upper, err
	}
	defer unix.Close(upper)
	if item, err := Skeleton(upper); err != nil {
		return -1, item, err
	}
	m, err = stack("/"+imagePlace, upperPlace+"/"+Upper, upperPlace+"/"+Work)
	if err != nil {
		return -1, "overlay", err
	}
	keepSpare(l.old)
	if err := linux.AttachMount(m, l.old, rootPlace); err != nil {
		unix.Close(m)
		return -1, rootPlace, err
	}
	return m, "", nil
}

// stack makes a writable overlay.
func stack(lower, upper, work string) (int, error) {
	return linux.NewMount("overlay", unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV, "lowerdir", lower, "upperdir", "/"+upper, "workdir", "/"+work, "userxattr", "", "volatile", "")
}

// spareFiles is how many empty files a root keeps beside its work directory. They go with that when its box is started again, so that there is
// room for what overlayfs makes for a moment while it is mounted, however full the quota is. Linux 6.12 needs one.
const spareFiles = 2

// keepSpare makes them, as far as there is room.
func keepSpare(old int) {
	for i := range spareFiles {
		if fd, err := unix.Openat(old, upperPlace+"/"+Work+"/.spare"+strconv.Itoa(i), unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o600); err == nil {
			unix.Close(fd)
		}
	}
}

// directory is a directory of the skeleton.
type directory struct {
	path string
	mode uint32
}

// Modes of directories that the box user and programs of root, who have its group, may create entries in. Others may not: where everybody
// may, with the sticky bit, the two could not follow each other's symbolic links (fs.protected_symlinks in sysctl/fs.rst of the kernel).
const (
	sticky = 0o1775 // programs cannot remove or rename what PID 1 has there
	shared = 0o775  // they can
)

// etc is not sticky, or fs.protected_regular, which systemd sets to 2, would keep root from opening the box user's files in it with O_CREAT.
// PID 1 has only links there, which nothing depends on, and gives them to the box user.
const etc = "etc"

// Skeleton makes what every box has, whatever the image has there: its directories are merged with those of the image, and hide anything
// else. It belongs to PID 1, in directories with the sticky bit: so no program can replace a mount point, or the program that serves files.
// It is in the upper layer of an image, and in the base of the host's programs. What is there already is left as it is. Links of /etc that
// programs have removed are made again.
func Skeleton(upper int) (item string, err error) {
	dirs := []directory{{isolation.SkillsDir[1:], 0o755}, {isolation.DrivesDir[1:], 0o755}, {"var/lib", sticky}, {"var/lib/boxd", 0o755}, {isolation.RootImage[1:], 0o755}, {isolation.RootChanged[1:], 0o755}}
	for _, d := range isolation.Roots() {
		dirs = append(dirs, directory{d[1:], sticky})
	}
	for _, d := range isolation.RootDirs() {
		mode := uint32(sticky)
		if d == etc {
			mode = shared
		}
		dirs = append([]directory{{d, mode}}, dirs...) // parents first
	}
	for _, d := range append(dirs, directory{".", sticky}) {
		if err := makeDir(upper, d); err != nil {
			return d.path, err
		}
	}
	for name, target := range isolation.RootLinks() {
		if err := makeLink(upper, name, target); err != nil {
			return name, err
		}
	}
	file := isolation.FilesProgram[1:]
	fd, err := unix.Openat(upper, file, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o600)
	if errors.Is(err, unix.EEXIST) {
		return file, ownEntry(upper, file, unix.S_IFREG)
	}
	if err != nil {
		return file, err
	}
	return file, unix.Close(fd)
}

// ownEntry refuses an entry that the upper layer already has, unless an earlier PID 1 of the same session made it
// (isolation.Spec.Resume): it belongs to PID 1 and has that type. Programs cannot make such an entry, nor remove or replace one.
func ownEntry(upper int, name string, kind uint32) error {
	var st unix.Stat_t
	if err := unix.Fstatat(upper, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	if st.Uid != 0 || st.Mode&unix.S_IFMT != kind {
		return unix.EEXIST
	}
	return nil
}

// makeLink makes a symbolic link in a directory of the skeleton.
func makeLink(upper int, name, target string) error {
	if path.Dir(name) == etc {
		return makeLinkOfEtc(upper, name, target)
	}
	err := unix.Symlinkat(target, upper, name)
	if errors.Is(err, unix.EEXIST) {
		return sameLink(upper, name, target)
	}
	return err
}

// makeLinkOfEtc makes a link of the box user, as far as there is room: programs that remove one can use up their quota, and their box starts
// again without it.
func makeLinkOfEtc(upper int, name, target string) error {
	var st unix.Stat_t
	_ = unix.Fstatat(upper, name, &st, unix.AT_SYMLINK_NOFOLLOW) // if nothing is there it stays empty
	kind := st.Mode & unix.S_IFMT
	switch {
	case kind == unix.S_IFCHR: // a whiteout: programs have removed the link, and the image has such a file
		_ = unix.Unlinkat(upper, name, 0)
	case kind != 0 && (kind != unix.S_IFLNK || st.Uid != 0):
		return nil // programs have put it there, or an earlier PID 1
	}
	var err error
	if kind != unix.S_IFLNK { // otherwise an earlier version has kept the link for itself
		err = unix.Symlinkat(target, upper, name)
	}
	switch {
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return nil
	case err != nil:
		return err
	}
	return unix.Fchownat(upper, name, isolation.BoxUID, isolation.BoxGID, unix.AT_SYMLINK_NOFOLLOW)
}

// sameLink refuses another symbolic link than an earlier PID 1 has made.
func sameLink(upper int, name, target string) error {
	if err := ownEntry(upper, name, unix.S_IFLNK); err != nil {
		return err
	}
	buf := make([]byte, len(target)+1)
	n, err := unix.Readlinkat(upper, name, buf)
	if err == nil && string(buf[:n]) != target {
		err = unix.EEXIST
	}
	return err
}

func makeDir(upper int, d directory) error {
	if d.path != "." {
		err := unix.Mkdirat(upper, d.path, 0o755)
		if errors.Is(err, unix.EEXIST) {
			err = ownEntry(upper, d.path, unix.S_IFDIR)
		}
		if err != nil {
			return err
		}
	}
	if d.mode == 0o755 {
		return nil
	}
	var st unix.Stat_t
	if err := unix.Fstatat(upper, d.path, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil || st.Mode&0o7777 == d.mode && st.Gid == isolation.BoxGID {
		return err // unchanged it is not copied up
	}
	if err := unix.Fchownat(upper, d.path, 0, isolation.BoxGID, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	return unix.Fchmodat(upper, d.path, d.mode, 0)
}

// shown is something of the old tree that the new one has too.
type shown struct {
	from, to  string
	recursive bool
	attr      uint64
}

// populate moves or clones what is mounted in the old tree into the new one, and shows the
// layers; upper is the path of the changes.
func (l *layers) populate(root int, upper string) (item string, err error) {
	// The procfs has mounts below it that cover parts of it, and was mounted in this namespace:
	// it can be moved.
	if err := linux.AttachMount(l.proc, root, "proc"); err != nil {
		return "/proc", err
	}
	for _, c := range []shown{
		{"dev", "/dev", true, 0}, // locked mounts in it stay as they are
		{isolation.FilesProgram[1:], isolation.FilesProgram, false, 0},
		{imagePlace, isolation.RootImage, false, unix.MOUNT_ATTR_RDONLY},
		{upper, isolation.RootChanged, false, changedAttr},
	} {
		if err := c.in(l.old, root); err != nil {
			return c.to, err
		}
	}
	return "", nil
}

// changedAttr are the mount flags with which a box sees the upper layer.
const changedAttr = unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOEXEC

func (c shown) in(old, root int) error {
	tree, err := linux.CloneMount(old, c.from, c.recursive)
	if err != nil {
		return err
	}
	defer unix.Close(tree)
	if c.attr != 0 {
		if err := linux.RestrictMount(tree, &unix.MountAttr{Attr_set: c.attr}); err != nil {
			return err
		}
	}
	return linux.AttachMount(tree, root, c.to[1:])
}

// SwitchRoot makes a mount the root, and unmounts the old one.
func SwitchRoot(root int) error {
	if err := unix.Fchdir(root); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return err
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return err
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(root, &fs); err != nil {
		return err
	}
	if want := int64(unix.ST_NOSUID | unix.ST_NODEV); fs.Flags&want != want {
		return unix.EPERM
	}
	return nil
}
