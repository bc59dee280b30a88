// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation"
)

// makeDirectory makes the box's directory in the run directory, which holds what the next keeper
// has to know of the box.
func (l *launching) makeDirectory() (string, error) {
	var err error
	if l.socket, err = l.k.records.Make(l.spec.Key); err != nil {
		return "directory", err
	}
	l.undo = append(l.undo, func() {
		l.dropPreforked()
		if !l.watched { // otherwise watch has removed it
			l.k.removeRecord(l.spec.Key)
		}
	})
	return "", nil
}

// writeRecord makes the box known to the next keeper: once it has its Setup it may outlive this
// one.
func (l *launching) writeRecord() error {
	r := &record{
		Key: l.spec.Key, IDBase: l.base(), Owner: l.spec.Caller.UID, Group: l.box.path(), Scope: l.spec.Scope != "", Limits: l.spec.Limits, Image: l.spec.Image,
	}
	if err := r.identify(l.preforked.pid, l.k.records.boot); err != nil {
		return err
	}
	l.box.changeMu.Lock()
	defer l.box.changeMu.Unlock()
	if l.box.released {
		return unix.ESRCH
	}
	l.box.record = r
	return l.k.records.Write(r)
}

// adoptBoxes restores what an earlier keeper has left: it adopts living boxes, and removes what is
// left of dead ones. A box whose record cannot be read is not touched, since it may be alive.
func (k *keeper) adoptBoxes() error {
	keys, err := k.records.Keys()
	if err != nil {
		return err
	}
	lacks := []error{unix.EMFILE, unix.ENFILE, unix.ENOMEM} // errors that do not mean a damaged record
	living := map[string]int{}                              // pidfds by key
	known := map[string]*record{}
	alive := map[string]bool{} // alive, or not known to be dead
	k.groups.keep = alive
	for _, key := range keys {
		r, pidfd, err := k.readRecord(key)
		switch {
		case r == nil && errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ESRCH):
		case slices.ContainsFunc(lacks, func(lack error) bool { return errors.Is(err, lack) }):
			return fmt.Errorf("box %s: %w", key, err) // the next keeper may have the resources
		case err != nil:
			k.cfg.Log.Printf("DAMAGED RECORD: %v: the box is left alone; end it, then remove its directory", err)
			k.damaged[key] = true
			alive[key] = true
			continue
		default:
			living[key] = pidfd
			alive[key] = true
		}
		known[key] = r
	}
	// Only now, as opening a tree of cgroups removes all those that are not in keep.
	for _, key := range keys {
		pidfd, lives := living[key]
		switch {
		case k.damaged[key]:
		case lives:
			err = errors.Join(err, k.register(known[key], pidfd))
		default:
			k.removeDead(key, known[key])
		}
	}
	k.hostQuotas.Reconcile(func(key string) bool { return alive[key] })
	k.net.adopt()
	for key, b := range maps.Clone(k.boxes) { // only now: a box that ends removes its network link, which must be known by then
		go k.watch(key, b)
	}
	return err
}

// readRecord reads the record of a box and opens a pidfd of its PID 1. ErrNotExist: its start was
// interrupted before PID 1 had its Setup, without which PID 1 exits. ESRCH: it is dead.
func (k *keeper) readRecord(key string) (*record, int, error) {
	if !isolation.ValidKey(key) {
		return nil, -1, fmt.Errorf("%q is not a box", key)
	}
	r, err := k.records.Read(key)
	if err != nil {
		return nil, -1, err
	}
	pidfd, err := r.Living(k.records.boot)
	if err != nil {
		return r, -1, fmt.Errorf("box %s: %w", key, err)
	}
	return r, pidfd, nil
}

// register adds a living box to those of this keeper; watch must follow. It takes the pidfd over.
func (k *keeper) register(r *record, pidfd int) error {
	if err := unix.SetNonblock(pidfd, true); err != nil { // so that the Go poller watches it
		unix.Close(pidfd)
		return fmt.Errorf("box %s: %w", r.Key, err)
	}
	b := &box{
		pid: r.PID, pidfd: os.NewFile(uintptr(pidfd), "pidfd"), ids: k.ids.Adopt(r.IDBase), done: make(chan struct{}), handedOver: true, record: r, image: r.Image,
	}
	if r.Group != "" {
		var err error
		if b.groups, err = k.groups.find(k, r); err != nil {
			k.cfg.Log.Printf("cannot change the limits of box %s any more; it keeps running: %v", r.Key, err)
		}
	}
	k.boxes[r.Key] = b // no lock: the keeper is not in use yet
	return nil
}

// removeDead removes what is left of a box that is dead or was never started. A cgroup that it does not find is removed when the
// cgroup tree is opened.
func (k *keeper) removeDead(key string, r *record) {
	if k.cfg.Group != "" {
		if _, err := k.groups.open(k); err != nil {
			k.cfg.Log.Printf("cannot clean up after box %s: %v", key, err)
		}
	}
	if r != nil && r.Scope {
		if groups, err := k.groups.find(k, r); err == nil {
			b := box{groups: groups}
			b.removeGroups(k.cfg.Log)
		}
	}
	k.removeRecord(key)
	k.cfg.Log.Printf("cleaned up after box %s, which has ended", key)
}

// living lists the keys of the boxes that boxd can adopt.
func (k *keeper) living() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	keys := make([]string, 0, len(k.boxes))
	for key, b := range k.boxes {
		if b.handedOver {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

// page returns the next page of sorted keys, those after one.
func page(keys []string, after string) *isolation.Listed {
	i, found := slices.BinarySearch(keys, after)
	if found {
		i++
	}
	keys = keys[i:]
	n := min(len(keys), isolation.ListPage)
	return &isolation.Listed{Keys: keys[:n], More: n < len(keys)}
}

// adopt connects to PID 1 of a living box again. Both descriptors are the caller's: the
// connection and a pidfd. ESRCH: the box is dead.
func (k *keeper) adopt(key string) (*isolation.Launched, []int, error) {
	k.mu.Lock()
	b := k.boxes[key]
	if b != nil && !b.handedOver {
		b = nil
	}
	k.mu.Unlock()
	if b == nil {
		return nil, nil, unix.ESRCH
	}
	control, err := k.records.Dial(key)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ECONNREFUSED) {
		err = unix.ESRCH // it has just ended
	}
	if err != nil {
		return nil, nil, err
	}
	pidfd, err := b.processFD()
	if err != nil {
		unix.Close(control)
		return nil, nil, err
	}
	return &isolation.Launched{PID: uint32(b.pid), IDBase: b.ids.Base, Group: b.path()}, []int{control, pidfd}, nil
}

// processFD returns a duplicate of the box's pidfd. ESRCH: the box has been released.
func (b *box) processFD() (int, error) {
	raw, err := b.pidfd.SyscallConn()
	if err != nil {
		return -1, unix.ESRCH
	}
	fd := -1
	cerr := raw.Control(func(own uintptr) { fd, err = unix.FcntlInt(own, unix.F_DUPFD_CLOEXEC, 3) })
	if cerr != nil {
		return -1, unix.ESRCH
	}
	return fd, err
}
