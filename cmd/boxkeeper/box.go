// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"log"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation"
)

// box is a box from the reservation of its key to its removal. It is watched once it has a pidfd; until then the first fields are
// guarded by keeper.mu, and after that they do not change any more.
type box struct {
	pid        int
	pidfd      *os.File
	ids        idRange
	groups     *boxCgroups   // nil: it has no cgroups
	done       chan struct{} // closed when all its processes are dead and everything is released
	handedOver bool          // boxd knows the box; guarded by keeper.mu
	image      string        // tree of its image in the store; "": the image host

	mountMu   sync.Mutex // held while its mounts are changed
	networkMu sync.Mutex // held while its network is changed or read
	changeMu  sync.Mutex // guards the fields below, and is held while limits are changed
	record    *record    // what the next keeper gets to know; nil: nothing yet
	released  bool
}

// end kills a box if it is alive, waits until everything of it is released, and removes its files on disk if asked. Otherwise
// they are synced, and survive a power failure after this. It is no error if the box is not known: then there is nothing to end.
func (k *keeper) end(req *isolation.EndBox) error {
	if err := k.killBox(req.Key); err != nil {
		return err
	}
	if req.RemoveWork {
		return k.work.Remove(req.Key)
	}
	return k.work.Sync(req.Key)
}

// keepTree ends a box, removes its snapshots, and turns its workspace into the tree of an image.
func (k *keeper) keepTree(req *isolation.KeepTree) error {
	if err := k.killBox(req.Key); err != nil {
		return err
	}
	if err := k.work.DropSnapshots(req.Key); err != nil {
		return err
	}
	return k.work.Keep(req.Key, req.Tree)
}

// killBox kills a box if it is alive, and waits until nothing of it is left but its workspace.
func (k *keeper) killBox(key string) error {
	k.mu.Lock()
	b := k.boxes[key]
	starting := b != nil && b.pidfd == nil
	k.mu.Unlock()
	if starting {
		return fmt.Errorf("box %s is still starting: %w", key, syscall.EBUSY)
	}
	if k.damaged[key] {
		return fmt.Errorf("box %s has a damaged record: %w", key, syscall.EUCLEAN)
	}
	if b == nil {
		return nil
	}
	return b.kill()
}

// endAll ends all boxes.
func (k *keeper) endAll() {
	k.mu.Lock()
	boxes := make([]*box, 0, len(k.boxes))
	for _, b := range k.boxes {
		boxes = append(boxes, b)
	}
	k.mu.Unlock()
	var wg sync.WaitGroup
	for _, b := range boxes {
		wg.Go(func() {
			if err := b.kill(); err != nil {
				k.cfg.Log.Printf("cannot end a box: %v", err)
			}
		})
	}
	wg.Wait()
}

// kill kills PID 1 of the box, and the kernel kills every other process of the box with it.
func (b *box) kill() error {
	b.signalKill()
	timer := time.NewTimer(endTimeout)
	defer timer.Stop()
	select {
	case <-b.done:
		return nil
	case <-timer.C:
		return fmt.Errorf("box of pid %d does not die: %w", b.pid, syscall.EBUSY)
	}
}

// signalKill is kill without the wait.
func (b *box) signalKill() {
	if raw, err := b.pidfd.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { _ = unix.PidfdSendSignal(int(fd), unix.SIGKILL, nil, 0) })
	}
}

// watch waits for the end of a box, however it comes about, and releases what only a living box
// needs.
func (k *keeper) watch(key string, b *box) {
	if raw, err := b.pidfd.SyscallConn(); err == nil {
		// A pidfd is readable once the process is dead (pidfd_open(2)); PID 1 dies after all others.
		_ = raw.Read(func(fd uintptr) bool {
			poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
			n, err := unix.Poll(poll, 0)
			return n > 0 || err != nil && !errors.Is(err, unix.EINTR)
		})
	}
	b.pidfd.Close()
	b.removeGroups(k.cfg.Log)
	k.ids.Release(b.ids)
	b.changeMu.Lock() // a change of limits writes the record, so wait for it
	b.released = true
	k.removeRecord(key)
	b.changeMu.Unlock()
	k.net.detach(key)
	k.hostQuotas.Release(key)
	k.bases.Release(key)
	k.mu.Lock()
	delete(k.boxes, key)
	k.mu.Unlock()
	close(b.done)
	select {
	case k.ended <- struct{}{}:
	default: // serve has not received the last one yet
	}
}

// removeRecord removes the record by which the next keeper would find a box.
func (k *keeper) removeRecord(key string) {
	if err := k.records.Remove(key); err != nil {
		k.cfg.Log.Printf("cannot remove the record of box %s: %v", key, err)
	}
}

// path returns the path of the box's cgroup, "" if it has none.
func (b *box) path() string {
	b.changeMu.Lock()
	defer b.changeMu.Unlock()
	switch {
	case b.groups != nil:
		return b.groups.Path()
	case b.record != nil:
		return b.record.Group
	}
	return ""
}

// removeGroups removes the cgroups of a dead box.
func (b *box) removeGroups(l *log.Logger) {
	if b.groups == nil {
		return
	}
	if err := b.groups.Remove(); err != nil && !errors.Is(err, fs.ErrNotExist) {
		l.Printf("control groups %s: %v", b.groups.Path(), err)
	}
}
