// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/cgroup"
)

// holdGroup is the cgroup for the process around which a scope was made: a cgroup with processes
// of its own cannot enable controllers for its children. It is beside those of the box, so that
// the box can be removed and made again while the scope lives.
const holdGroup = "hold"

// makeIn makes the cgroups of a box in one that systemd has made for it, that of a scope. systemd
// sets the limits of that cgroup itself: it reverts what others write there.
func (t *cgroupTree) makeIn(path string, root uint32, limits *cgroup.Limits) (*boxCgroups, error) {
	group, err := openDelegated(path)
	if err != nil {
		return nil, err
	}
	b := &boxCgroups{t: t, name: filepath.Base(path), path: path, scope: true, group: group, work: cgroup.Group{FD: -1}, limits: *limits}
	if err := b.clearTop(); err != nil {
		b.group.Close()
		return nil, fmt.Errorf("cgroup %s: %w", path, err)
	}
	if err := b.fill(root); err != nil {
		return nil, errors.Join(fmt.Errorf("cgroup %s: %w", path, err), b.Remove())
	}
	return b, nil
}

// openDelegated opens a cgroup that systemd has delegated.
func openDelegated(path string) (cgroup.Group, error) {
	g, err := cgroup.Open(path)
	if err != nil {
		return g, fmt.Errorf("cgroup %s: %w", path, err)
	}
	var st unix.Statfs_t
	mark := make([]byte, 8)
	if err = unix.Fstatfs(g.FD, &st); err == nil && st.Type != unix.CGROUP2_SUPER_MAGIC {
		err = errors.New("not in a cgroup v2 hierarchy")
	}
	if err == nil {
		if n, xerr := unix.Fgetxattr(g.FD, delegatedMark, mark); xerr != nil || string(mark[:n]) != "1" {
			err = errors.New("systemd has not delegated it")
		}
	}
	if err != nil {
		g.Close()
		return g, fmt.Errorf("cgroup %s: %w", path, err)
	}
	return g, nil
}

// clearTop moves the processes in the scope's own cgroup into a child, and disables controllers for its children: a start that has
// failed has enabled them, and PID 1 begins in that cgroup.
func (b *boxCgroups) clearTop() error {
	hold, err := b.group.Make(holdGroup)
	if errors.Is(err, fs.ErrExist) {
		hold, err = b.group.Open(holdGroup)
	}
	if err != nil {
		return fmt.Errorf("make %s: %w", holdGroup, err)
	}
	defer hold.Close()
	on, err := b.group.Read("cgroup.subtree_control")
	if err != nil {
		return err
	}
	if len(on) > 0 {
		if err := b.group.Write("cgroup.subtree_control", "-"+strings.Join(strings.Fields(string(on)), " -")); err != nil {
			return err
		}
	}
	pids, err := b.group.Processes()
	if err != nil {
		return err
	}
	for _, pid := range pids {
		if err := hold.Write("cgroup.procs", strconv.Itoa(pid)); err != nil && !errors.Is(err, unix.ESRCH) {
			return err
		}
	}
	return nil
}

// removeFromScope removes what makeIn has made; the scope is left to its maker. It may be gone
// already with everything in it: systemd drops a scope without processes.
func (b *boxCgroups) removeFromScope() error {
	defer b.group.Close()
	if b.work.FD >= 0 {
		b.work.Close()
	}
	err := errors.Join(removeAll(b.group, b.path, "work"), removeAll(b.group, b.path, "init"))
	_ = b.group.Remove(holdGroup) // fails if a process still holds the scope
	if errors.Is(err, unix.ENODEV) {
		return nil
	}
	return err
}
