// SPDX-License-Identifier: Apache-2.0

package overlay

import (
	"errors"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/linux"
	"github.com/boxd-dev/boxd/isolation"
)

// A root made of the host's own programs consists of several overlays: one for the part of the read-only root that is boxd's own,
// including /etc, and one for each tree of the host, above all /usr. The files of a tree belong to root of the host. The id map
// of its mount makes them the box user's, or no program could change them; but then the box user could read what only root may
// read. So between the tree and the box there is another, read-only overlay, whose mounter has no right over any file: overlayfs
// checks for each file whether its mounter may read it as well (overlayfs.rst of the kernel, "permission model"). So only
// world-readable files of the host are visible there, and can be copied up to be changed.
//
// The box reaches the tree only through that overlay.

// More places in the tree that PID 1 starts in.
const (
	treePlace   = "data" // the tree of the host, mapped to the box user: only the kernel reads it
	nobodyPlace = "app"  // its overlay that shows only world-readable files
	emptyPlace  = "opt"  // its lowest layer, since overlayfs needs two
)

// rootName is the directory, among the changes of the box, of the part of a root that is no tree
// of the host.
const rootName = "root"

// tree is a tree of the host.
type tree struct {
	name   string // at the top of the root
	mount  int
	nobody int // overlay that shows its world-readable files
	top    int // overlay of that which the box can write to
}

// part returns the directory of a tree among the changes of the box.
func (t *tree) part() string { return upperPlace + "/" + Upper + "/" + t.name }

// host is a root that is being made.
type host struct {
	layers
	trees []tree
}

// isTree reports whether a mount of a Setup is for a tree of the host.
func isTree(target string) bool {
	return target != "" && slices.Contains(isolation.HostDirs(), target[1:])
}

// enterHost does what Enter does, for the host's own programs.
func enterHost(s *isolation.Setup, mounts *[]int, root *int, proc int) (item string, err error) {
	if len(s.Mounts) < 2 || s.Mounts[1].Target != Target {
		return Target, unix.EINVAL
	}
	n := 2
	h := &host{layers: layers{image: (*mounts)[1], changes: (*mounts)[0], old: *root, proc: proc}}
	for ; n < len(s.Mounts) && isTree(s.Mounts[n].Target); n++ {
		h.trees = append(h.trees, tree{name: s.Mounts[n].Target[1:], mount: (*mounts)[n], nobody: -1, top: -1})
	}
	*root, item, err = h.enter()
	for _, t := range h.trees {
		closeAll(t.nobody, t.top)
	}
	closeAll((*mounts)[:n]...)
	closeAll(h.old)
	s.Mounts, *mounts = s.Mounts[n:], (*mounts)[n:]
	return item, err
}

func closeAll(fds ...int) {
	for _, fd := range fds {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

func (h *host) enter() (root int, item string, err error) {
	m, item, err := h.mount()
	if err != nil {
		return -1, item, err
	}
	defer unix.Close(m)
	if item, err := h.populate(m, upperPlace+"/"+Upper+"/"+rootName); err != nil {
		return -1, item, err
	}
	for i := range h.trees {
		if err := h.place(&h.trees[i], m); err != nil {
			return -1, h.trees[i].name, err
		}
	}
	if item, err := h.below(m); err != nil {
		return -1, item, err
	}
	if err := SwitchRoot(m); err != nil {
		return -1, "pivot_root", err
	}
	root, err = unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	return root, "/", err
}

// mount makes the overlays, and returns that of the root.
func (h *host) mount() (m int, item string, err error) {
	if err := linux.AttachMount(h.changes, h.old, upperPlace); err != nil {
		return -1, "changes", err
	}
	if err := linux.AttachMount(h.image, h.old, imagePlace); err != nil {
		return -1, "base", err
	}
	for i := range h.trees {
		if err := h.cover(&h.trees[i]); err != nil {
			return -1, "overlay of /" + h.trees[i].name, err
		}
	}
	whole := tree{name: rootName}
	upper, err := h.parts(&whole, 0)
	if err != nil {
		return -1, rootName, err
	}
	defer unix.Close(upper)
	dirs := []directory{{".", sticky}}
	for _, t := range h.trees { // the changes of each tree are shown there
		dirs = append(dirs, directory{t.name, 0o755})
	}
	for _, d := range dirs {
		if err := makeDir(upper, d); err != nil {
			return -1, d.path, err
		}
	}
	m, err = stack("/"+imagePlace, whole.part(), upperPlace+"/"+Work+"/"+rootName)
	if err != nil {
		return -1, "overlay", err
	}
	if item, err := Skeleton(m); err != nil { // it is in the base: nothing is made but what a stopped session's changes hide
		unix.Close(m)
		return -1, item, err
	}
	keepSpare(h.old)
	if err := linux.AttachMount(m, h.old, rootPlace); err != nil {
		unix.Close(m)
		return -1, rootPlace, err
	}
	return m, "", nil
}

// parts makes the two directories of an overlay, the upper one for its owner, and opens the upper
// one.
func (h *host) parts(t *tree, owner int) (upper int, err error) {
	if err := unix.Mkdirat(h.old, upperPlace+"/"+Work+"/"+t.name, 0o700); err != nil {
		return -1, err
	}
	if err := unix.Mkdirat(h.old, t.part(), 0o755); err != nil && !errors.Is(err, unix.EEXIST) { // in a directory that only PID 1 can write to
		return -1, err
	}
	upper, err = linux.OpenBeneath(h.old, t.part(), unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return -1, err
	}
	if err := unix.Fchownat(upper, "", owner, owner, unix.AT_EMPTY_PATH); err != nil {
		unix.Close(upper)
		return -1, err
	}
	return upper, nil
}

// cover makes the two overlays of a tree of the host.
func (h *host) cover(t *tree) error {
	if err := linux.AttachMount(t.mount, h.old, treePlace); err != nil {
		return err
	}
	err := asNobody(func() (err error) {
		t.nobody, err = linux.NewMount("overlay", unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV, "lowerdir", "/"+treePlace+":/"+emptyPlace, "userxattr", "")
		return err
	})
	if err != nil {
		return err
	}
	if err := unix.Unmount("/"+treePlace, unix.MNT_DETACH); err != nil { // make room for the next tree
		return err
	}
	if err := linux.AttachMount(t.nobody, h.old, nobodyPlace); err != nil {
		return err
	}
	upper, err := h.parts(t, isolation.BoxUID)
	if err != nil {
		return err
	}
	defer unix.Close(upper)
	var st unix.Stat_t
	if err := unix.Fstat(t.nobody, &st); err != nil {
		return err
	}
	if err := unix.Fchmodat(h.old, t.part(), st.Mode&0o777, 0); err != nil {
		return err
	}
	t.top, err = stack("/"+nobodyPlace, t.part(), upperPlace+"/"+Work+"/"+t.name)
	return err
}

// asNobody calls f with no effective capability but the one to mount: the mounter of an overlay
// that f makes then has no right over files that are not its own, and none in a tree of the host
// belongs to in-box root (mounts.HostOwner).
func asNobody(f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var all [2]unix.CapUserData
	if err := unix.Capget(&header, &all[0]); err != nil {
		return err
	}
	one := all
	one[0].Effective, one[1].Effective = 1<<unix.CAP_SYS_ADMIN, 0
	if err := unix.Capset(&header, &one[0]); err != nil {
		return err
	}
	err := f()
	return errors.Join(err, unix.Capset(&header, &all[0]))
}

// place moves the overlays of a tree to where programs see them.
func (h *host) place(t *tree, root int) error {
	if err := linux.AttachMount(t.top, root, t.name); err != nil {
		return err
	}
	if err := linux.AttachMount(t.nobody, root, isolation.RootImage[1:]+"/"+t.name); err != nil { // moved, not cloned
		return err
	}
	return shown{t.part(), isolation.RootChanged + "/" + t.name, false, changedAttr}.in(h.old, root)
}

// below shows what the host has mounted below its trees, read-only as before: overlays do not
// include that. Mounts in places that programs cannot reach are left out.
func (h *host) below(root int) (item string, err error) {
	fd, err := linux.OpenBeneath(h.proc, "1/mountinfo", unix.O_RDONLY)
	if err != nil {
		return "mountinfo", err
	}
	defer unix.Close(fd)
	var buf []byte
	for n := 1; n > 0; {
		buf = slices.Grow(buf, 16<<10)
		n, err = unix.Read(fd, buf[len(buf):cap(buf)])
		if err != nil {
			return "mountinfo", err
		}
		buf = buf[:len(buf)+n]
	}
	for _, at := range mountedBelow(string(buf), h.trees) {
		for _, to := range []string{at, isolation.RootImage + at} {
			err := shown{at[1:], to, true, 0}.in(h.old, root)
			if err != nil && !errors.Is(err, unix.EACCES) && !errors.Is(err, unix.ENOENT) {
				return at, err
			}
		}
	}
	return "", nil
}

// mountedBelow lists the uppermost mounts below trees, from mountinfo (proc_pid_mountinfo(5)).
func mountedBelow(mountinfo string, all []tree) []string {
	var list []string
	for line := range strings.Lines(mountinfo) {
		fields := strings.Fields(line)
		if len(fields) < 5 {
			continue
		}
		at := unescaped(fields[4])
		in := func(dir string) bool { return strings.HasPrefix(at, dir+"/") }
		if slices.ContainsFunc(all, func(t tree) bool { return in("/" + t.name) }) {
			list = append(list, at)
		}
	}
	slices.Sort(list)
	list = slices.Compact(list)
	return slices.DeleteFunc(slices.Clone(list), func(at string) bool {
		return slices.ContainsFunc(list, func(above string) bool { return strings.HasPrefix(at, above+"/") })
	})
}

// unescaped returns a path of mountinfo, in which space, tab, newline and backslash are written
// as three octal digits.
func unescaped(path string) string {
	var b strings.Builder
	for i := 0; i < len(path); i++ {
		if path[i] == '\\' && i+3 < len(path) {
			if c, err := strconv.ParseUint(path[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(c))
				i += 3
				continue
			}
		}
		b.WriteByte(path[i])
	}
	return b.String()
}
