// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation"

	"github.com/boxd-dev/boxd/isolation/mounts"
)

// setHostname gives a preforked box the hostname of its session.
func (k *keeper) setHostname(req *isolation.SetHostname) error {
	if err := req.Validate(); err != nil {
		return err
	}
	b, err := k.boxByKey(req.Key)
	if err != nil {
		return err
	}
	return setBoxHostname(b.pid, b.lives, req.Hostname)
}

// boxByKey returns a living box by its key. ESRCH: there is none.
func (k *keeper) boxByKey(key string) (*box, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	b := k.boxes[key]
	if b == nil || !b.handedOver {
		return nil, unix.ESRCH
	}
	return b, nil
}

// changeMount changes a mount of a live box, removes what was made for one of a box that has
// ended, or returns where a path leads.
func (k *keeper) changeMount(ctx context.Context, req *isolation.ChangeMount) (*isolation.Mounted, error) {
	if mounts.NeedsNoBox(req.Op) {
		return k.sources.Outside(ctx, req)
	}
	if err := req.Validate(); err != nil {
		return nil, err
	}
	b, err := k.boxByKey(req.Key)
	if err != nil {
		return nil, err
	}
	b.mountMu.Lock()
	defer b.mountMu.Unlock()
	if req.Skill != (isolation.Skill{}) {
		opener := mounts.Opener{Rules: &mounts.SourceRules{State: k.state}}
		return opener.Skill(&mounts.Box{PID: b.pid, IDBase: b.ids.Base, Alive: b.lives}, req)
	}
	process, err := b.processFD()
	if err != nil {
		return nil, err
	}
	defer unix.Close(process)
	return k.sources.Change(ctx, &mounts.Place{PID: b.pid, PIDFD: process, IDBase: b.ids.Base}, req)
}

// lives reports whether PID 1 of the box has not ended yet.
func (b *box) lives() bool {
	select {
	case <-b.done:
		return false
	default:
	}
	raw, err := b.pidfd.SyscallConn() // an error means that watch has closed it, after the end
	lives := false
	if err == nil {
		err = raw.Control(func(fd uintptr) { lives = mounts.Alive(int(fd)) })
	}
	return lives && err == nil
}

// removeTree removes the tree of an image that no box uses.
func (k *keeper) removeTree(tree string) error {
	k.mu.Lock()
	used := len(k.damaged) > 0 // damaged records do not tell what their boxes use
	for _, b := range k.boxes {
		used = used || b.image == tree
	}
	if used || !isolation.ValidTree(tree) {
		k.mu.Unlock()
		return unix.EBUSY
	}
	remove, err := k.work.Drop(tree)
	if err == nil {
		k.zygotes.Drop(tree)
	}
	k.mu.Unlock()
	if err != nil {
		return err
	}
	return remove()
}

// changeSnapshots changes or lists the snapshots of a box. While one is made or restored the key is reserved, so that no box
// starts on files that are being read or replaced. EBUSY: there is a box.
func (k *keeper) changeSnapshots(ctx context.Context, req *isolation.ChangeSnapshots) (*isolation.Snapshots, error) {
	if req.Op == isolation.SnapshotMake || req.Op == isolation.SnapshotRestore {
		k.mu.Lock()
		inUse := k.boxes[req.Key] != nil || k.damaged[req.Key]
		if !inUse {
			k.boxes[req.Key] = &box{done: make(chan struct{})}
		}
		k.mu.Unlock()
		if inUse {
			return nil, unix.EBUSY
		}
		defer func() {
			k.mu.Lock()
			defer k.mu.Unlock()
			delete(k.boxes, req.Key)
		}()
	}
	return k.work.ChangeSnapshots(ctx, req)
}

// reclaim takes back memory that the programs of a box do not need.
func (k *keeper) reclaim(key string) error {
	b, err := k.boxByKey(key)
	if err != nil {
		return err
	}
	if b.groups == nil {
		return unix.EOPNOTSUPP
	}
	return b.groups.Reclaim()
}
