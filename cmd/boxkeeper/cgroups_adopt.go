// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/cgroup"
)

// sweep removes what a dead keeper has left behind, except for the boxes to keep.
func (t *cgroupTree) sweep(keep func(key string) bool) error {
	owners, err := os.ReadDir(t.path)
	if err != nil {
		return err
	}
	for _, o := range owners {
		if !o.IsDir() || !strings.HasPrefix(o.Name(), ownerPrefix) {
			continue
		}
		if err := t.sweepOwner(o.Name(), keep); err != nil {
			return fmt.Errorf("remove %s: %w", o.Name(), err)
		}
	}
	return nil
}

func (t *cgroupTree) sweepOwner(name string, keep func(key string) bool) error {
	path := filepath.Join(t.path, name)
	boxes, err := os.ReadDir(path)
	if err != nil {
		return err
	}
	living := func(e os.DirEntry) bool {
		key, ok := strings.CutPrefix(e.Name(), boxPrefix)
		return ok && e.IsDir() && keep(key)
	}
	if !slices.ContainsFunc(boxes, living) {
		return removeAll(t.root, t.path, name)
	}
	home, err := t.root.Open(name)
	if err != nil {
		return err
	}
	defer home.Close()
	for _, e := range boxes {
		if !e.IsDir() || living(e) {
			continue
		}
		if err := removeAll(home, path, e.Name()); err != nil {
			return err
		}
	}
	return nil
}

// Find opens the cgroups that Make made for a box in an earlier keeper.
func (t *cgroupTree) Find(owner, key string, limits *cgroup.Limits) (*boxCgroups, error) {
	b := &boxCgroups{t: t, owner: ownerPrefix + owner, name: boxPrefix + key, limits: *limits}
	b.path = filepath.Join(t.path, b.owner, b.name)
	home, err := t.root.Open(b.owner)
	if err != nil {
		return nil, fmt.Errorf("cgroup %s: %w", b.path, err)
	}
	defer home.Close()
	if b.group, err = home.Open(b.name); err != nil {
		return nil, fmt.Errorf("cgroup %s: %w", b.path, err)
	}
	return b.openWork()
}

// findIn opens the cgroups that makeIn made for a box in an earlier keeper.
func (t *cgroupTree) findIn(path string, limits *cgroup.Limits) (*boxCgroups, error) {
	group, err := openDelegated(path)
	if err != nil {
		return nil, err
	}
	b := &boxCgroups{t: t, name: filepath.Base(path), path: path, scope: true, group: group, limits: *limits}
	return b.openWork()
}

// openWork opens the cgroup of the programs. The limits of the box stay as they are. A dead box may
// have lost that cgroup already; the rest can only be removed.
func (b *boxCgroups) openWork() (*boxCgroups, error) {
	work, err := b.group.Open("work")
	if errors.Is(err, unix.ENOENT) {
		work, err = cgroup.Group{FD: -1}, nil
	}
	if err != nil {
		b.group.Close()
		return nil, fmt.Errorf("cgroup %s: %w", b.path, err)
	}
	b.work = work
	return b, nil
}

// Close closes the descriptors of a box's cgroups, which stay.
func (b *boxCgroups) Close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.removed {
		return
	}
	b.removed = true
	if b.work.FD >= 0 {
		b.work.Close()
	}
	b.group.Close()
}
