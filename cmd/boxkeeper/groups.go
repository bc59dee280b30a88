// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/cgroup"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/disk"
)

// groups is the keeper's part of the cgroup hierarchy. It is opened when it is first needed, and
// again after it has gone: the service that holds it, the anchor, may start later than the keeper
// and may be stopped.
type groups struct {
	mu    sync.Mutex // guards the fields below
	tree  *cgroupTree
	keep  map[string]bool // keys of boxes of an earlier keeper, whose cgroups stay, until the rest is removed
	swept bool            // what an earlier keeper has left behind is removed
}

// open returns the cgroup tree of the boxes.
func (g *groups) open(k *keeper) (*cgroupTree, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if k.cfg.Group == "" {
		return nil, errors.New("cgroups.parent is empty")
	}
	if g.tree != nil {
		gone, err := g.tree.Gone()
		if err != nil {
			return nil, err
		}
		if !gone {
			return g.tree, nil
		}
		// Its boxes are dead, but maybe not all removed yet: they keep open what they need of it.
		g.tree = nil
	}
	keep := func(key string) bool { return g.keep[key] }
	if g.swept {
		keep = nil
	}
	t, err := openTree(k.cfg.Group, k.cfg.StateDir, keep)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &noAnchorError{k.cfg.Group, err}
	}
	if err != nil {
		return nil, err
	}
	g.tree, g.keep, g.swept = t, nil, true
	return t, nil
}

// noAnchorError means that no service holds the cgroup of the boxes.
type noAnchorError struct {
	path string
	err  error
}

func (e *noAnchorError) Error() string {
	return e.path + " does not exist: its unit is not running"
}

func (e *noAnchorError) Unwrap() error { return e.err }

// probe returns which limits can be enforced on boxes.
func (g *groups) probe(k *keeper) *isolation.Host {
	t, err := g.open(k)
	if err != nil {
		return &isolation.Host{NoGroups: err.Error()}
	}
	return &isolation.Host{Controllers: t.Controllers()}
}

// make makes the cgroups of a box, in its scope or else below that of its owner.
func (g *groups) make(k *keeper, spec *isolation.Spec, root uint32) (*boxCgroups, error) {
	t, err := g.open(k)
	if err != nil {
		return nil, err
	}
	if spec.Scope != "" {
		return t.makeIn(spec.Scope, root, &spec.Limits)
	}
	owner := spec.Owner
	owner.Name = cgroup.OwnerName(spec.Caller.UID, owner.Name)
	return t.Make(&owner, spec.Key, root, &spec.Limits)
}

// scopeOf refuses a cgroup that is not the scope of this box: everything in a scope is killed
// when its box ends.
func scopeOf(key, path string) error {
	if filepath.Base(path) != isolation.ScopeOf(key) {
		return fmt.Errorf("%w: %s is not the scope of box %s", unix.EINVAL, path, key)
	}
	return nil
}

// find opens the cgroups of a box that an earlier keeper has started.
func (g *groups) find(k *keeper, r *record) (*boxCgroups, error) {
	t, err := g.open(k)
	if err != nil {
		return nil, err
	}
	if r.Scope {
		if err := scopeOf(r.Key, r.Group); err != nil {
			return nil, err
		}
		return t.findIn(r.Group, &r.Limits)
	}
	b, err := t.Find(ownerName(r), r.Key, &r.Limits)
	if err == nil && b.Path() != r.Group {
		b.Close()
		return nil, fmt.Errorf("cgroup %s: its record says %s", b.Path(), r.Group)
	}
	return b, err
}

// ownerName returns the owner that the cgroups of a record are under: its user, or another owner
// of the same id.
func ownerName(r *record) string {
	user := cgroup.OwnerName(r.Owner, "")
	name := ownerOf(r.Group)
	if other, ok := strings.CutPrefix(name, user+"-"); ok && cgroup.ValidOther(other) {
		return name
	}
	return user
}

// setOwner changes the limits for all boxes of an owner together.
func (g *groups) setOwner(k *keeper, owner *cgroup.Owner) error {
	t, err := g.open(k)
	if err != nil {
		return err
	}
	err = t.SetOwner(owner)
	if used, ok := errors.AsType[*inUseError](err); ok {
		return inUse(used.Limit, used.Asked, used.Used)
	}
	return err
}

// validOwner reports whether a name has the form that cgroup.OwnerName returns.
func validOwner(name string) bool {
	user, other, _ := strings.Cut(name, "-")
	uid, err := strconv.ParseUint(user, 10, 32)
	return err == nil && cgroup.ValidOther(other) && cgroup.OwnerName(uint32(uid), other) == name
}

func (g *groups) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closeLocked()
}

func (g *groups) closeLocked() {
	if g.tree != nil {
		g.tree.Close()
		g.tree = nil
	}
}

// setLimits changes the limits of a live box.
func (k *keeper) setLimits(req *isolation.SetLimits) error {
	k.mu.Lock()
	b := k.boxes[req.Key]
	k.mu.Unlock()
	if b == nil {
		return syscall.ESRCH
	}
	b.changeMu.Lock()
	defer b.changeMu.Unlock()
	if b.record == nil {
		return syscall.ESRCH // it is starting or has ended
	}
	undo := func() error { return nil }
	if req.Work != (isolation.Quota{}) {
		var err error
		if undo, err = k.work.SetQuota(req.Key, req.Work); err != nil {
			return overUsed(err)
		}
	}
	if b.groups == nil && b.record.Group == "" {
		return nil
	}
	err := error(errNoGroups)
	if b.groups != nil {
		err = b.groups.SetLimits(&req.Limits)
	}
	if err == nil {
		b.record.Limits = req.Limits
		if werr := k.records.Write(b.record); werr != nil {
			k.cfg.Log.Printf("cannot record the limits of box %s: %v", req.Key, werr) // this only means that a later keeper whose change fails restores older limits
		}
		if verr := k.show(b, &req.Limits); verr != nil {
			k.cfg.Log.Printf("cannot show box %s its new limits: %v", req.Key, verr)
		}
		return nil
	}
	err = errors.Join(err, undo())
	if used, ok := errors.AsType[*inUseError](err); ok {
		return inUse(used.Limit, used.Asked, used.Used)
	}
	return err
}

// overUsed makes a refusal of the error about a quota that is below what is used, and leaves others as they are.
func overUsed(err error) error {
	used, ok := errors.AsType[*disk.UsedError](err)
	switch {
	case !ok:
		return err
	case used.Usage.Inodes > used.Want.Inodes:
		return inUse("workspace_inodes", used.Want.Inodes, used.Usage.Inodes)
	}
	return inUse("workspace_quota", used.Want.Bytes, used.Usage.Bytes)
}

// errNoGroups means that the cgroups of a live box could not be opened again.
var errNoGroups = errors.New("the cgroups of the box are lost")

// inUse refuses a limit below what is in use.
func inUse(field string, requested, used uint64) error {
	return &isolation.StepError{Step: isolation.StepGroup, Item: field, Errno: unix.EBUSY, Refused: &isolation.Refusal{
		Field: field, Value: strconv.FormatUint(requested, 10), Allowed: "at least the usage, " + strconv.FormatUint(used, 10),
	}}
}
