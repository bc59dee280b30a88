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

// A root of the host's own programs is several overlays: one for what of the read-only root is boxd's own, /etc with it,
// and one for each tree of the host, /usr above all. The files of a tree belong to root of the host, whom the map of its
// mount makes the box user, or nobody could change them; then that user could read what only root may read. So between
// the tree and the box is another overlay, a read-only one, whose mounter has no right over any file: overlayfs asks for
// each file whether its mounter may read it as well (overlayfs.rst of the kernel, "permission model"). What is shown
// there, and copied from there to be changed, is what everybody may read on the host.
//
// Nothing of the tree is in the box but through that one.

// More places of the tree that PID 1 starts in.
const (
	treePlace   = "data" // the tree of the host, as the box user's: nobody but the kernel looks at it
	nobodyPlace = "app"  // the same as everybody may read it
	emptyPlace  = "opt"  // the lowest layer of that, since overlayfs wants two
)

// rootName is the part of a root that is no tree of the host, as a directory of what the box changes.
const rootName = "root"

// Bounds of what is copied of the read-only root: it is /etc.
const (
	baseSize   = "64m"
	baseInodes = "32768"
	baseDepth  = 16
)

// tree is one of the host.
type tree struct {
	name   string // at the top
	mount  int
	nobody int // overlay of it that is as everybody may read it
	top    int // overlay of that which the box can write to
}

// part is the directory of a tree in what the box changes.
func (t *tree) part() string { return upperPlace + "/" + Upper + "/" + t.name }

// host is a root in the making.
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
	n := 1
	h := &host{layers: layers{image: -1, changes: (*mounts)[0], old: *root, proc: proc}}
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
	if err := enter(m); err != nil {
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
	if item, err := h.base(); err != nil {
		return -1, item, err
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
	if item, err := skeleton(upper); err != nil {
		return -1, item, err
	}
	for _, t := range h.trees { // what was changed of it is shown there
		if err := unix.Mkdirat(upper, t.name, 0o755); err != nil {
			return -1, t.name, err
		}
	}
	m, err = stack("/"+imagePlace, whole.part(), upperPlace+"/"+Work+"/"+rootName)
	if err != nil {
		return -1, "overlay", err
	}
	if err := linux.AttachMount(m, h.old, rootPlace); err != nil {
		unix.Close(m)
		return -1, rootPlace, err
	}
	return m, "", nil
}

// parts makes the two directories of an overlay, the upper one for its owner, and opens that.
func (h *host) parts(t *tree, owner int) (upper int, err error) {
	if err := unix.Mkdirat(h.old, upperPlace+"/"+Work+"/"+t.name, 0o700); err != nil {
		return -1, err
	}
	if err := unix.Mkdirat(h.old, t.part(), 0o755); err != nil {
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
	if err := unix.Unmount("/"+treePlace, unix.MNT_DETACH); err != nil { // for the next one
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

// asNobody does something with no capability in force but the one to mount: what this thread makes a mounter of then has
// no right over files that are not its own, and in no tree of the host is one that is in-box root's (sources.HostOwner).
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

// place puts the overlays of a tree where they are seen.
func (h *host) place(t *tree, root int) error {
	if err := linux.AttachMount(t.top, root, t.name); err != nil {
		return err
	}
	if err := linux.AttachMount(t.nobody, root, isolation.RootImage[1:]+"/"+t.name); err != nil { // moved
		return err
	}
	return shown{t.part(), isolation.RootChanged + "/" + t.name, false, changedAttr}.in(h.old, root)
}

// below shows what the host has mounted below its trees, read-only as before: overlays have none of it. What is at a place that
// programs cannot come to is left out.
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

// mountedBelow lists the uppermost mounts below trees, by mountinfo of proc(5).
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

// unescaped is a path of mountinfo, which has space, tab, newline and backslash as three octal digits.
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
