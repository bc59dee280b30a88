// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/cgroup"
	"github.com/boxd-dev/boxd/internal/linux"
)

// neededControllers returns the controllers that boxes need; io is used if it is available.
func neededControllers() []string { return []string{"cpu", "memory", "pids"} }

const optionalController = "io"

// cgroupTree is the part of the hierarchy that has been delegated to boxd (cgroup-v2.rst, "Delegation"). Only one keeper
// uses it:
//
//	<parent>/                       systemd's, with the anchor's process in a child of its own
//	  owner-<uid>/                  all boxes of one owner, with their limits together; see cgroup.OwnerName
//	    box-<key>/                  root's, or a systemd scope elsewhere: a cap on all of the box, and its share; the
//	                                root of the box's cgroup namespace
//	      init/                     PID 1 of the box, outside what can starve or freeze it
//	      work/                     all programs: memory, swap, processes, processor time, freezing
//	        e1/ e2/ …               one for each program, made and removed by PID 1
//
// work belongs to in-box root as a directory, so that PID 1 can make cgroups in it; its limits, and everything above it,
// belong to root.
type cgroupTree struct {
	path        string
	root        cgroup.Group
	controllers []string
	device      string // "major:minor" of the disk of the state directory

	mu sync.Mutex // no owner's cgroup is removed while a box's is made in it; nothing slow runs under it
}

// openTree takes over the cgroup at a path; io limits apply to the disk that holds state. If keep is
// given, cgroups of boxes for whose keys it returns false are removed with everything in them: a
// dead keeper has left them. Every limit is tested: an error says which one does not work, and
// then nothing has changed.
func openTree(path, state string, keep func(key string) bool) (*cgroupTree, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return nil, fmt.Errorf("cgroup %s: %w", path, err)
	}
	if st.Type != unix.CGROUP2_SUPER_MAGIC {
		return nil, fmt.Errorf("%s is not in a cgroup v2 hierarchy", path)
	}
	root, err := cgroup.Open(path)
	if err != nil {
		return nil, fmt.Errorf("cgroup %s: %w", path, err)
	}
	t := &cgroupTree{path: path, root: root, device: diskOf(state)}
	if err := t.prepare(keep); err != nil {
		root.Close()
		return nil, fmt.Errorf("cgroup %s: %w", path, err)
	}
	return t, nil
}

func (t *cgroupTree) prepare(keep func(key string) bool) error {
	if err := linux.Lock(t.root.FD, linux.StartPatience); err != nil {
		return fmt.Errorf("in use by another boxd: %w", err)
	}
	have, err := t.root.Read("cgroup.controllers")
	if err != nil {
		return err
	}
	for _, c := range append(neededControllers(), optionalController) {
		switch {
		case slices.Contains(strings.Fields(string(have)), c):
			t.controllers = append(t.controllers, c)
		case c != optionalController:
			return fmt.Errorf("controller %s is missing (available: %s)", c, have)
		}
	}
	if err := t.enable(t.root); err != nil {
		if errors.Is(err, unix.EBUSY) {
			return errors.New("it has processes of its own; they must be in a cgroup below it")
		}
		return err
	}
	if keep != nil {
		if err := t.sweep(keep); err != nil {
			return err
		}
	}
	return t.testLimits()
}

// enable enables the controllers for the children of g.
func (t *cgroupTree) enable(g cgroup.Group) error {
	return g.Write("cgroup.subtree_control", "+"+strings.Join(t.controllers, " +"))
}

// Close closes the tree; the cgroups stay.
func (t *cgroupTree) Close() { t.root.Close() }

// Controllers returns those by which boxes can be limited: io only if there is a disk to limit.
func (t *cgroupTree) Controllers() []string {
	if t.device != "" {
		return t.controllers
	}
	return slices.DeleteFunc(slices.Clone(t.controllers), func(c string) bool { return c == optionalController })
}

// Gone reports whether the tree does not exist any more: its anchor may have been stopped. An
// error means that this is not known.
func (t *cgroupTree) Gone() (bool, error) {
	_, err := t.root.Read("cgroup.events")
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV) {
		return true, nil
	}
	return false, err
}

// testLimits makes the cgroups of a box, reads every limit back, and removes them.
func (t *cgroupTree) testLimits() error {
	limits := cgroup.Limits{
		Memory: 64 << 20, MemoryHigh: 48 << 20, CPU: cgroup.CPUPeriod, CPUWeight: 50, Pids: 100, IOWeight: 50,
	}
	owner := cgroup.Owner{Name: "try", Memory: 128 << 20, CPU: 2 * cgroup.CPUPeriod}
	b, err := t.Make(&owner, "try", 0, &limits)
	if err != nil {
		return err
	}
	home, err := t.root.Open(b.owner)
	if err == nil {
		err = b.enable()
	}
	if err == nil {
		err = errors.Join(verifyLimits(b.work, limits.Programs("")), verifyLimits(b.group, limits.Box()), verifyLimits(home, owner.Settings()))
		home.Close()
	}
	return errors.Join(err, b.Remove())
}

// verifyLimits returns which limits do not read back as they were written.
func verifyLimits(g cgroup.Group, settings []cgroup.Setting) error {
	for _, s := range settings {
		got, err := g.Read(s.File)
		if cgroup.Optional(s.File) && errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil || string(got) != s.Text {
			return fmt.Errorf("%s is %q after %q was written: %w", s.File, got, s.Text, err)
		}
	}
	return nil
}

// ownerPrefix and boxPrefix begin the names of our cgroups; nothing else below the parent is
// touched.
const (
	ownerPrefix = cgroup.OwnerPrefix
	boxPrefix   = "box-"
)

// killTimeout bounds the wait for killed processes to die.
const killTimeout = 30 * time.Second

// removeAll kills everything in a cgroup, and removes it with all cgroups below it.
func removeAll(parent cgroup.Group, path, name string) error {
	g, err := parent.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer g.Close()
	if populated, err := g.Populated(); err == nil && populated {
		if err := g.Kill(); err != nil {
			return err
		}
		if empty, err := g.Await("populated", 0, killTimeout); err != nil || !empty {
			return errors.Join(err, unix.EBUSY)
		}
	}
	return removeBelow(parent, g, filepath.Join(path, name), name)
}

func removeBelow(parent, g cgroup.Group, path, name string) error {
	list, err := os.ReadDir(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, e := range list { // at most three levels: cgroup.max.depth
		if !e.IsDir() {
			continue
		}
		child, err := g.Open(e.Name())
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		err = removeBelow(g, child, filepath.Join(path, e.Name()), e.Name())
		child.Close()
		if err != nil {
			return err
		}
	}
	if err := parent.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// boxCgroups is the cgroups of one box.
type boxCgroups struct {
	t           *cgroupTree
	owner, name string
	path        string
	group, work cgroup.Group
	scope       bool // group is that of a systemd scope

	mu      sync.Mutex // guards the fields below, and is held while limits change
	limits  cgroup.Limits
	removed bool // the descriptors are closed
}

// Make makes the cgroups of a box, without limits on its programs: settle must follow. The owner's limits are written if this is
// the owner's first box: see SetOwner. root is the host id of in-box root, which work will belong to.
func (t *cgroupTree) Make(owner *cgroup.Owner, key string, root uint32, limits *cgroup.Limits) (*boxCgroups, error) {
	b := &boxCgroups{t: t, owner: ownerPrefix + owner.Name, name: boxPrefix + key, limits: *limits}
	b.path = filepath.Join(t.path, b.owner, b.name)
	if err := b.make(owner); err != nil {
		return nil, err
	}
	b.work = cgroup.Group{FD: -1}
	if err := b.fill(root); err != nil {
		return nil, errors.Join(err, b.Remove())
	}
	return b, nil
}

// make makes the cgroup of the box, and that of its owner if this is the owner's first box.
func (b *boxCgroups) make(owner *cgroup.Owner) error {
	b.t.mu.Lock()
	defer b.t.mu.Unlock()
	home, err := b.t.openOwner(owner)
	if err != nil {
		return err
	}
	defer home.Close()
	b.group, err = home.Make(b.name)
	if errors.Is(err, fs.ErrExist) { // an earlier box of that key is dead, and something kept its cgroups from being removed
		if err = removeAll(home, filepath.Join(b.t.path, b.owner), b.name); err == nil {
			b.group, err = home.Make(b.name)
		}
	}
	if err != nil {
		_ = b.t.root.Remove(b.owner) // fails if the owner has other boxes
		return fmt.Errorf("make %s: %w", b.name, err)
	}
	return nil
}

// fill makes the contents of a box's cgroup. No controller is enabled for them yet: PID 1 makes its cgroup namespace in the box's own
// cgroup, which can hold no process once one is enabled (cgroup-v2.rst, "No Internal Process Constraint").
//
// To clone into a child of work, PID 1 must be able to
// write the cgroup.procs of that child and of the nearest common ancestor of its own cgroup and
// that, and nothing else.
func (b *boxCgroups) fill(root uint32) error {
	initGroup, err := b.group.Make("init")
	if err != nil {
		return fmt.Errorf("make init: %w", err)
	}
	initGroup.Close()
	if b.work, err = b.group.Make("work"); err != nil {
		return fmt.Errorf("make work: %w", err)
	}
	if err := b.group.Apply(b.box(&b.limits)); err != nil {
		return err
	}
	for _, f := range []struct {
		g    cgroup.Group
		file string
	}{{b.group, "cgroup.procs"}, {b.work, "cgroup.freeze"}, {b.work, "."}} {
		if err := unix.Fchownat(f.g.FD, f.file, int(root), int(root), unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return fmt.Errorf("chown %s: %w", f.file, err)
		}
	}
	return nil
}

// enable sets the limits of the programs.
func (b *boxCgroups) enable() error {
	if err := b.t.enable(b.group); err != nil {
		return err
	}
	if err := b.t.enable(b.work); err != nil {
		return err
	}
	return b.work.Apply(b.limits.Programs(b.ioDevice()))
}

func (b *boxCgroups) ioDevice() string {
	if !slices.Contains(b.t.controllers, optionalController) {
		return ""
	}
	return b.t.device
}

// Path returns the path of the box's cgroup.
func (b *boxCgroups) Path() string { return b.path }

// Work returns the cgroup in which PID 1 makes those of its programs. It stays the box's.
func (b *boxCgroups) Work() cgroup.Group { return b.work }

// Top opens the box's own cgroup, to clone PID 1 there.
func (b *boxCgroups) Top() (cgroup.Group, error) { return b.group.Open(".") }

// Enter moves PID 1 into the box's own cgroup.
func (b *boxCgroups) Enter(pid int) error {
	return b.group.Write("cgroup.procs", strconv.Itoa(pid))
}

// settle moves PID 1, which has its cgroup namespace, from the box's own cgroup into init, and sets the limits of the programs.
func (b *boxCgroups) settle(pid int) error {
	if err := b.group.Write("init/cgroup.procs", strconv.Itoa(pid)); err != nil {
		return err
	}
	return b.enable()
}

// Remove removes the cgroups of a dead box.
func (b *boxCgroups) Remove() error {
	b.mu.Lock() // wait for a change of limits, which uses descriptors that may be reused afterwards
	defer b.mu.Unlock()
	if b.removed {
		return nil
	}
	b.removed = true
	if b.scope {
		return b.removeFromScope()
	}
	if b.work.FD >= 0 {
		b.work.Close()
	}
	b.group.Close()
	home, err := b.t.root.Open(b.owner)
	if err != nil {
		return err
	}
	defer home.Close()
	err = removeAll(home, filepath.Join(b.t.path, b.owner), b.name)
	b.t.mu.Lock()
	defer b.t.mu.Unlock()
	if err := b.t.root.Remove(b.owner); err != nil && !errors.Is(err, unix.EBUSY) && !errors.Is(err, unix.ENOTEMPTY) {
		return err
	}
	return err
}
