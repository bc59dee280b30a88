// SPDX-License-Identifier: Apache-2.0

package inside

import (
	"errors"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/linux"
	"github.com/boxd-dev/boxd/isolation"
)

// mountProc mounts the box's own procfs. Box users see only their own processes; the in-box gid 0,
// which no program has, sees all: PID 1 looks for leftovers there.
func (b *box) mountProc() (string, error) {
	m, err := linux.NewMount("proc", unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC,
		"hidepid", "invisible", "gid", "0")
	if err != nil {
		return "proc", err
	}
	b.proc = m
	return "/proc", linux.AttachMount(m, unix.AT_FDCWD, "/proc")
}

// boundKernelObjects bounds what the kernel counts for each user namespace, through the procfs that is known to be ours:
// see namespaces(7) and inotify(7). Nested user namespaces there are none. The host's own limits hold too, for the box
// alone, since it is owned by an id of its own. All else of this kind needs a capability that no program has.
func (b *box) boundKernelObjects() (string, error) {
	for _, limit := range []struct{ name, value string }{
		{"sys/user/max_user_namespaces", "0"},
		{"sys/user/max_inotify_instances", "1024"},
		{"sys/user/max_inotify_watches", "65536"}, // a KiB or so each
	} {
		fd, err := linux.OpenBeneath(b.proc, limit.name, unix.O_WRONLY)
		if err != nil {
			return limit.name, err
		}
		_, err = unix.Write(fd, []byte(limit.value))
		unix.Close(fd)
		if err != nil {
			return limit.name, err
		}
	}
	return "", nil
}

// scratchDirs are the writable directories of every box: all parts of one bounded tmpfs.
func scratchDirs() []scratchDir {
	return []scratchDir{
		{"tmp", "/tmp", 0o1777, 0},
		{"run", "/run", 0o1777, 0},
		{"shm", "/dev/shm", 0o1777, 0},
		{"home", isolation.Home, 0o755, isolation.BoxUID},
	}
}

type scratchDir struct {
	name, target string
	mode         uint32
	owner        int
}

// mountScratch mounts the session's one tmpfs and shows parts of it at their places. The root of it
// is attached only while that is done, since a tree can be cloned only from an attached mount.
func (b *box) mountScratch() (string, error) {
	const staging = "/tmp"
	m, err := linux.NewMount("tmpfs", unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV, "mode", "0755",
		"size", strconv.FormatUint(b.setup.Scratch.Bytes, 10),
		"nr_inodes", strconv.FormatUint(b.setup.Scratch.Inodes, 10))
	if err != nil {
		return "tmpfs", err
	}
	b.work = m
	if err := linux.AttachMount(m, unix.AT_FDCWD, staging); err != nil {
		return staging, err
	}
	for _, d := range scratchDirs() {
		if err := b.makeScratch(d); err != nil {
			return d.target, err
		}
		if d.target == staging {
			continue // covers the root of the tmpfs: last
		}
		if err := b.showScratch(d); err != nil {
			return d.target, err
		}
	}
	return staging, b.showScratch(scratchDirs()[0])
}

func (b *box) makeScratch(d scratchDir) error {
	if err := unix.Mkdirat(b.work, d.name, 0o700); err != nil {
		return err
	}
	if err := unix.Fchownat(b.work, d.name, d.owner, d.owner, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	return unix.Fchmodat(b.work, d.name, d.mode, 0)
}

func (b *box) showScratch(d scratchDir) error {
	tree, err := linux.CloneMount(b.work, d.name, false)
	if err != nil {
		return err
	}
	defer unix.Close(tree)
	return linux.AttachMount(tree, unix.AT_FDCWD, d.target)
}

// maxTerminals is how many of the host's terminals, of which it has some thousands, one box can have.
const maxTerminals = "64"

func (b *box) mountDevpts() (string, error) {
	m, err := linux.NewMount("devpts", unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC, "ptmxmode", "0666", "mode", "0620", "max", maxTerminals)
	if err != nil {
		return "devpts", err
	}
	defer unix.Close(m)
	return "/dev/pts", linux.AttachMount(m, unix.AT_FDCWD, "/dev/pts")
}

// What of /proc is hidden, and what is shown read-only, as far as its own modes do not see to it: all
// in it that only root of the host may open or write is closed to the box user, who is nobody there.
// See proc(5).
func hiddenFiles() []string {
	return []string{
		"kcore", "keys", "kallsyms", "timer_list", "sched_debug", "latency_stats",
		"interrupts", // the timing of other boxes' input
		"locks",      // of all files of the host, with ids of other boxes
	}
}
func hiddenDirs() []string    { return []string{"acpi", "asound", "scsi"} }
func readOnlyPaths() []string { return []string{"sys", "sysrq-trigger"} }

func (b *box) maskProc() (string, error) {
	for _, name := range hiddenFiles() {
		if err := b.cover(name, unix.AT_FDCWD, "/dev/null", 0); err != nil {
			return name, err
		}
	}
	for _, name := range hiddenDirs() {
		// Nothing is in /media of the template, which is read-only.
		if err := b.cover(name, b.root, "media", 0); err != nil {
			return name, err
		}
	}
	for _, name := range readOnlyPaths() {
		if err := b.cover(name, b.proc, name, unix.MOUNT_ATTR_RDONLY); err != nil {
			return name, err
		}
	}
	return "", nil
}

// cover mounts a clone of source over an entry of /proc, if this kernel has it.
func (b *box) cover(name string, dir int, source string, attrs uint64) error {
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

// attachMounts puts the session's mounts in place, parents before children (the keeper sorted
// them), and reads back what the kernel made of each.
func (b *box) attachMounts() (string, error) {
	for i, m := range b.setup.Mounts {
		if err := b.attachMount(b.trees[i], m); err != nil {
			return m.Target, err
		}
		unix.Close(b.trees[i])
	}
	return "", nil
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

// mountPoint opens the directory a mount goes to, without following a symbolic link, and makes what
// is missing. Below a mounted directory that is done as the box user, who owns it; below the bare
// image a part of the scratch tmpfs goes in between, since the image is read-only.
func (b *box) mountPoint(path string) (int, error) {
	fd, err := linux.OpenBeneath(b.root, path[1:], unix.O_PATH|unix.O_DIRECTORY)
	if !errors.Is(err, unix.ENOENT) {
		return fd, err
	}
	top, _, _ := strings.Cut(path[1:], "/")
	if err := b.makeWritable(top); err != nil {
		return -1, err
	}
	restore := asBoxUser()
	defer restore()
	for end := 1; ; end++ {
		next := strings.IndexByte(path[end:], '/')
		if next < 0 {
			end = len(path)
		} else {
			end += next
		}
		if err := makeDir(b.root, path[1:end]); err != nil {
			return -1, err
		}
		if end == len(path) {
			return linux.OpenBeneath(b.root, path[1:], unix.O_PATH|unix.O_DIRECTORY)
		}
	}
}

// makeWritable covers a bare top-level directory of the image with a writable part of the scratch
// tmpfs, unless something is mounted on it already.
func (b *box) makeWritable(top string) error {
	var here, root unix.Statx_t
	if err := unix.Statx(b.root, top, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_MNT_ID, &here); err != nil {
		return err
	}
	if err := unix.Statx(b.root, "", unix.AT_EMPTY_PATH, unix.STATX_MNT_ID, &root); err != nil {
		return err
	}
	if here.Mnt_id != root.Mnt_id || b.writable || "/"+top == "/home" {
		return nil
	}
	d := scratchDir{"root-" + top, "/" + top, 0o755, isolation.BoxUID}
	if err := b.makeScratch(d); err != nil {
		return err
	}
	return b.showScratch(d)
}

// makeDir makes the last directory of a path whose parents exist, following no link.
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

// asBoxUser makes file accesses of this thread those of the box user, until the returned function
// is called. A mapped owner of files exists only as that user: even in-box root cannot write there.
func asBoxUser() func() {
	setfs(isolation.BoxUID, isolation.BoxGID)
	return func() { setfs(0, 0) }
}

func setfs(uid, gid uintptr) {
	// Raw calls: the wrappers would change every thread.
	_, _, _ = syscall.RawSyscall(unix.SYS_SETFSGID, gid, 0, 0)
	_, _, _ = syscall.RawSyscall(unix.SYS_SETFSUID, uid, 0, 0)
}
