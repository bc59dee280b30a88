// SPDX-License-Identifier: Apache-2.0

package keeper

import (
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation"
)

// idRanges gives every box a range of host ids that no other living box on the host has, also none
// of another keeper or of one that crashed: each range is a byte of a shared file, locked for as
// long as any holder lives. The lock is of the open file description (fcntl(2), F_OFD_SETLK), and
// PID 1 of the box holds that too.
type idRanges struct {
	path  string
	base  uint32
	count uint32

	mu   sync.Mutex // guards the field below
	used map[uint32]bool
}

// idRange is one reservation.
type idRange struct {
	base uint32 // first id
	slot uint32
	lock int // descriptor that holds the reservation
}

// take reserves the lowest free range: few ranges used over and over keep the cache of user
// namespaces warm. EUSERS: all are taken.
func (r *idRanges) take() (idRange, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fd, err := openLock(r.path)
	if err != nil {
		return idRange{}, err
	}
	for slot := range r.count {
		if r.used[slot] {
			continue
		}
		base := r.base + slot*isolation.IDRange
		err := lockByte(fd, base/isolation.IDRange)
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
			continue // another keeper's
		}
		if err != nil {
			unix.Close(fd)
			return idRange{}, fmt.Errorf("reserve ids: %w", err)
		}
		if !sameFile(fd, r.path) { // removed by a keeper that ended just now
			unix.Close(fd)
			if fd, err = openLock(r.path); err != nil {
				return idRange{}, err
			}
			continue
		}
		r.used[slot] = true
		return idRange{base: base, slot: slot, lock: fd}, nil
	}
	unix.Close(fd)
	return idRange{}, unix.EUSERS
}

// release gives a range back when its box is dead.
func (r *idRanges) release(ids idRange) {
	r.mu.Lock()
	defer r.mu.Unlock()
	unix.Close(ids.lock)
	delete(r.used, ids.slot)
}

// close removes the lock file if no keeper on the host needs it any more: who can lock every byte
// of it is the last.
func (r *idRanges) close() {
	fd, err := unix.Open(r.path, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	whole := unix.Flock_t{Type: unix.F_WRLCK}
	if unix.FcntlFlock(uintptr(fd), unix.F_OFD_SETLK, &whole) == nil && sameFile(fd, r.path) {
		_ = unix.Unlink(r.path)
	}
}

func openLock(path string) (int, error) {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return -1, fmt.Errorf("open %s: %w", path, err)
	}
	return fd, nil
}

func lockByte(fd int, n uint32) error {
	lock := unix.Flock_t{Type: unix.F_WRLCK, Start: int64(n), Len: 1}
	return unix.FcntlFlock(uintptr(fd), unix.F_OFD_SETLK, &lock)
}

func sameFile(fd int, path string) bool {
	var a, b unix.Stat_t
	return unix.Fstat(fd, &a) == nil && unix.Lstat(path, &b) == nil && a.Ino == b.Ino && a.Dev == b.Dev
}
