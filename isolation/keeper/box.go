// SPDX-License-Identifier: Apache-2.0

package keeper

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

	"github.com/boxd-dev/boxd/cgroup/tree"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/zygote"
)

// box is a box from the reservation of its key to its removal. It is watched once it has a pidfd. The first
// fields are guarded by Keeper.mu until then, and do not change any more afterwards.
type box struct {
	pid    int
	pidfd  *os.File
	ids    zygote.IDRange
	groups *tree.Box     // nil: none
	gone   chan struct{} // closed when it and all its processes are dead and released
	handed bool          // boxd knows of it; guarded by Keeper.mu
	image  string        // the tree of its image in the store; "": host

	mounting   sync.Mutex // held while its mounts change
	networking sync.Mutex // held while its network changes, or is looked at
	changing   sync.Mutex // guards the fields below, and is held while limits change
	record     *Record    // what the next keeper will know of it; nil: nothing
	released   bool
}

// end kills a box if it lives, waits until nothing of it is left, and removes its workspace if
// asked. A box that is not known is no error: what is asked for is true.
func (k *Keeper) end(req *isolation.EndBox) error {
	if err := k.killBox(req.Key); err != nil || !req.RemoveWork {
		return err
	}
	return k.work.Remove(req.Key)
}

// keepTree ends a box, and makes its workspace the tree of an image.
func (k *Keeper) keepTree(req *isolation.KeepTree) error {
	if err := k.killBox(req.Key); err != nil {
		return err
	}
	return k.work.Keep(req.Key, req.Tree)
}

// killBox kills a box if it lives, and waits until nothing of it is left but its workspace.
func (k *Keeper) killBox(key string) error {
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
func (k *Keeper) endAll() {
	k.mu.Lock()
	boxes := make([]*box, 0, len(k.boxes))
	for _, b := range k.boxes {
		boxes = append(boxes, b)
	}
	k.mu.Unlock()
	var all sync.WaitGroup
	for _, b := range boxes {
		all.Go(func() {
			if err := b.kill(); err != nil {
				k.cfg.Log.Print(err)
			}
		})
	}
	all.Wait()
}

// kill ends PID 1 of the box, with which the kernel ends every other process in it.
func (b *box) kill() error {
	raw, err := b.pidfd.SyscallConn()
	if err == nil {
		_ = raw.Control(func(fd uintptr) { _ = unix.PidfdSendSignal(int(fd), unix.SIGKILL, nil, 0) })
	}
	timer := time.NewTimer(endPatience)
	defer timer.Stop()
	select {
	case <-b.gone:
		return nil
	case <-timer.C:
		return fmt.Errorf("box of pid %d does not die: %w", b.pid, syscall.EBUSY)
	}
}

// watch waits for the end of a box, whoever caused it, and releases what only the living need.
func (k *Keeper) watch(key string, b *box) {
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
	b.changing.Lock() // a change of limits writes the record
	b.released = true
	k.forget(key)
	b.changing.Unlock()
	k.net.Remove(key)
	k.bounds.Release(key)
	k.mu.Lock()
	delete(k.boxes, key)
	k.mu.Unlock()
	close(b.gone)
	select {
	case k.ended <- struct{}{}:
	default: // Serve has not heard of the last one yet
	}
}

// forget removes what the next keeper would find of a box.
func (k *Keeper) forget(key string) {
	if err := k.records.Remove(key); err != nil {
		k.cfg.Log.Printf("directory of box %s: %v", key, err)
	}
}

// path is where the box's groups are, "" if it has none.
func (b *box) path() string {
	b.changing.Lock()
	defer b.changing.Unlock()
	switch {
	case b.groups != nil:
		return b.groups.Path()
	case b.record != nil:
		return b.record.Group
	}
	return ""
}

// removeGroups removes the groups of a box that is dead.
func (b *box) removeGroups(l *log.Logger) {
	if b.groups == nil {
		return
	}
	if err := b.groups.Remove(); err != nil && !errors.Is(err, fs.ErrNotExist) {
		l.Printf("control groups %s: %v", b.groups.Path(), err)
	}
}
