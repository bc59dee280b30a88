// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/linux"
	"github.com/boxd-dev/boxd/isolation"
)

// mountProc mounts the box's own procfs. Box users see only their own processes; the in-box gid
// 0, which no program has, sees all of them: PID 1 uses it to look for left-over processes.
func (b *box) mountProc() (string, error) {
	m, err := linux.NewMount("proc", unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC,
		"hidepid", "invisible", "gid", "0")
	if err != nil {
		return "proc", err
	}
	b.proc = m
	return "/proc", linux.AttachMount(m, unix.AT_FDCWD, "/proc")
}

// boundKernelObjects limits what the kernel counts for each user namespace (namespaces(7),
// inotify(7)), through the procfs that is known to be the box's own. No nested user namespaces
// are allowed. The host's own limits also apply, and to this box alone, since its user namespace
// is owned by an id of its own. Everything else of this kind needs a capability that no program
// has.
func (b *box) boundKernelObjects() (string, error) {
	var err error
	if b.limits, err = linux.OpenBeneath(b.proc, "sys/user", unix.O_PATH|unix.O_DIRECTORY); err != nil {
		return "user", err
	}
	for _, limit := range []struct{ name, value string }{
		{maxUserNamespaces, "0"},
		{"max_inotify_instances", "1024"},
		{"max_inotify_watches", "65536"}, // about a KiB each
	} {
		if err := writeFile(b.limits, limit.name, limit.value); err != nil {
			return limit.name, err
		}
	}
	return "", nil
}

const maxUserNamespaces = "max_user_namespaces"

// writeFile writes to a file of a procfs.
func writeFile(dir int, name, text string) error {
	fd, err := linux.OpenBeneath(dir, name, unix.O_WRONLY)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	_, err = unix.Write(fd, []byte(text))
	return err
}

// scratchDirs returns the writable directories of every box: all are parts of one tmpfs of
// limited size.
func (b *box) scratchDirs() []scratchDir {
	home := isolation.Home
	if b.setup.User.Home != "" {
		home = b.setup.User.Home
	}
	return []scratchDir{
		{"tmp", "/tmp", 0o1777, 0},
		{"run", "/run", 0o1777, 0},
		{"shm", "/dev/shm", 0o1777, 0},
		{"home", home, 0o755, isolation.BoxUID},
	}
}

type scratchDir struct {
	name, target string
	mode         uint32
	owner        int
}

// mountScratch mounts the box's one tmpfs and bind-mounts parts of it in their places. Its root is attached only meanwhile, since
// a tree can be cloned only from an attached mount.
func (b *box) mountScratch() (string, error) {
	const staging = "/tmp"
	m, err := linux.NewMount("tmpfs", unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV, "mode", "0755",
		"size", strconv.FormatUint(b.setup.Scratch.Bytes, 10),
		"nr_inodes", strconv.FormatUint(b.setup.Scratch.Inodes, 10))
	if err != nil {
		return "tmpfs", err
	}
	b.scratch = m
	if err := linux.AttachMount(m, unix.AT_FDCWD, staging); err != nil {
		return staging, err
	}
	if err := b.makeHome(); err != nil {
		return b.setup.User.Home, err
	}
	for _, d := range b.scratchDirs() {
		if err := b.makeScratch(d); err != nil {
			return d.target, err
		}
		if d.target == staging {
			continue // covers the root of the tmpfs, so it comes last
		}
		if err := b.showScratch(d); err != nil {
			return d.target, err
		}
	}
	return staging, b.showScratch(b.scratchDirs()[0])
}

// makeHome makes the mount point of a home directory other than the image's. Programs cannot remove or rename it: it belongs to
// PID 1, in a directory that belongs to PID 1 too. Under a read-only root that is a part of the scratch tmpfs, which covers
// /home.
func (b *box) makeHome() error {
	home := b.setup.User.Home
	if home == "" {
		return nil
	}
	fd, err := linux.OpenBeneath(b.root, home[1:], unix.O_PATH|unix.O_DIRECTORY)
	if err == nil {
		unix.Close(fd)
	}
	if !errors.Is(err, unix.ENOENT) {
		return err
	}
	if name, below := strings.CutPrefix(home, "/home/"); below && !b.writable {
		d := scratchDir{"homes", "/home", 0o755, 0}
		if err := b.makeScratch(d); err != nil {
			return err
		}
		if err := unix.Mkdirat(b.scratch, d.name+"/"+name, 0o755); err != nil {
			return err
		}
		return b.showScratch(d)
	}
	return makeDir(b.root, home[1:])
}

func (b *box) makeScratch(d scratchDir) error {
	if err := unix.Mkdirat(b.scratch, d.name, 0o700); err != nil {
		return err
	}
	if err := unix.Fchownat(b.scratch, d.name, d.owner, d.owner, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	return unix.Fchmodat(b.scratch, d.name, d.mode, 0)
}

func (b *box) showScratch(d scratchDir) error {
	tree, err := linux.CloneMount(b.scratch, d.name, false)
	if err != nil {
		return err
	}
	defer unix.Close(tree)
	target, err := linux.OpenBeneath(b.root, d.target[1:], unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer unix.Close(target)
	return linux.AttachMount(tree, target, "")
}

// maxTerminals is how many pseudo-terminals one box can have, of the few thousand that the host
// has.
const maxTerminals = "64"

func (b *box) mountDevpts() (string, error) {
	m, err := linux.NewMount("devpts", unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC, "ptmxmode", "0666", "mode", "0620", "max", maxTerminals)
	if err != nil {
		return "devpts", err
	}
	defer unix.Close(m)
	return "/dev/pts", linux.AttachMount(m, unix.AT_FDCWD, "/dev/pts")
}

// These entries of /proc are hidden or shown read-only because their own modes do not protect
// them. Everything that only root of the host may open or write is closed to the box user
// already, who is nobody there. See proc(5).
func hiddenFiles() []string {
	return []string{
		"kcore", "keys", "kallsyms", "timer_list", "sched_debug", "latency_stats",
		"interrupts", // shows the timing of other boxes' input
		"locks",      // lists the locked files of the whole host, with ids of other boxes
	}
}
func hiddenDirs() []string    { return []string{"acpi", "asound", "scsi"} }
func readOnlyPaths() []string { return []string{"sys", "sysrq-trigger"} }

func (b *box) maskProc() (string, error) {
	for _, name := range hiddenFiles() {
		if err := b.coverProc(name, unix.AT_FDCWD, "/dev/null", 0); err != nil {
			return name, err
		}
	}
	for _, name := range hiddenDirs() {
		// /media of the image is empty and read-only.
		if err := b.coverProc(name, b.root, "media", 0); err != nil {
			return name, err
		}
	}
	for _, name := range readOnlyPaths() {
		if err := b.coverProc(name, b.proc, name, unix.MOUNT_ATTR_RDONLY); err != nil {
			return name, err
		}
	}
	return "", nil
}

// coverProc mounts a clone of source over an entry of /proc, if this kernel has that entry.
func (b *box) coverProc(name string, dir int, source string, attrs uint64) error {
	target, err := linux.OpenBeneath(b.proc, name, unix.O_PATH)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(target)
	tree, err := linux.CloneMount(dir, source, false)
	if err != nil {
		return err
	}
	defer unix.Close(tree)
	if attrs != 0 {
		if err := linux.RestrictMount(tree, &unix.MountAttr{Attr_set: attrs}); err != nil {
			return err
		}
	}
	return linux.AttachMount(tree, target, "")
}

// attachMounts attaches the box's mounts, parents before children (the keeper has sorted them),
// and reads back the attributes that the kernel has given to each.
func (b *box) attachMounts() (string, error) {
	for i, m := range b.setup.Mounts {
		if err := b.attachMount(b.trees[i], m); err != nil {
			return m.Target, err
		}
		unix.Close(b.trees[i])
	}
	return "covers", b.closeCovers()
}

func (b *box) attachMount(tree int, m isolation.SetupMount) error {
	target, err := b.mountPoint(m.Target)
	if err != nil {
		return err
	}
	defer unix.Close(target)
	if err := linux.AttachMount(tree, target, ""); err != nil {
		return err
	}
	want := int64(unix.ST_NOSUID | unix.ST_NODEV)
	if !m.Writable {
		want |= unix.ST_RDONLY
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(tree, &fs); err != nil {
		return err
	}
	if fs.Flags&want != want {
		return stepError(isolation.StepVerifyMount, m.Target, unix.EPERM)
	}
	return nil
}

// makeDir makes the last directory of a path whose parents exist. It follows no symbolic link.
func makeDir(root int, path string) error {
	parent, name := "", path
	if i := strings.LastIndexByte(path, '/'); i >= 0 {
		parent, name = path[:i], path[i+1:]
	}
	dir := root
	if parent != "" {
		fd, err := linux.OpenBeneath(root, parent, unix.O_PATH|unix.O_DIRECTORY)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		dir = fd
	}
	if err := unix.Mkdirat(dir, name, 0o755); err != nil && !errors.Is(err, unix.EEXIST) && !errors.Is(err, unix.EROFS) {
		return err
	}
	return nil
}

// asBoxUser gives this thread the file access rights of the box user until the returned function
// is called. The owner of an id-mapped mount exists only as that user: even in-box root cannot
// write there.
func asBoxUser() func() {
	setfs(isolation.BoxUID, isolation.BoxGID)
	return func() { setfs(0, 0) }
}

// asUser does the same for a user who has programs; asBoxUser has been called, and undoes it.
func asUser(root bool) {
	if root {
		setfs(isolation.RootID, isolation.RootID)
		return
	}
	setfs(isolation.BoxUID, isolation.BoxGID)
}

func setfs(uid, gid uintptr) {
	// Raw system calls: the wrappers would change every thread.
	_, _, _ = syscall.RawSyscall(unix.SYS_SETFSGID, gid, 0, 0)
	_, _, _ = syscall.RawSyscall(unix.SYS_SETFSUID, uid, 0, 0)
}
