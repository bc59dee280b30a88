// SPDX-License-Identifier: Apache-2.0

// Every box gets a range of host ids that no other box has.

package zygote

import (
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation"
)

// IDRanges gives every box a range of host ids that no other living box on the host has, also none
// of another keeper or of one that crashed: each range is a byte of a shared file, locked for as
// long as any holder lives. The lock is of the open file description (fcntl(2), F_OFD_SETLK), and
// PID 1 of the box holds that too.
type IDRanges struct {
	path  string
	base  uint32
	count uint32

	mu   sync.Mutex // guards the fields below
	used map[uint32]bool
	low  uint32 // all ranges below this one are used
}

// NewIDRanges returns the ranges from base on that a file reserves.
func NewIDRanges(path string, base, count uint32) *IDRanges {
	return &IDRanges{path: path, base: base, count: count, used: map[uint32]bool{}}
}

// IDRange is one reservation.
type IDRange struct {
	Base uint32 // first id
	Lock int    // descriptor that holds the reservation, noLock if only the box itself holds it
}

const noLock = -1

// Take reserves the lowest free range: few ranges used over and over keep the cache of user
// namespaces warm. EUSERS: all are taken.
func (r *IDRanges) Take() (IDRange, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fd, err := openLock(r.path)
	if err != nil {
		return IDRange{}, err
	}
	below := true // everything so far is used
	for slot := r.low; slot < r.count; slot++ {
		base := r.base + slot*isolation.IDRange
		if r.used[base] {
			if below {
				r.low = slot + 1
			}
			continue
		}
		below = false
		err := lockByte(fd, base/isolation.IDRange)
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
			continue // another keeper's
		}
		if err != nil {
			unix.Close(fd)
			return IDRange{}, fmt.Errorf("reserve ids: %w", err)
		}
		if !sameFile(fd, r.path) { // removed by a keeper that ended just now
			unix.Close(fd)
			if fd, err = openLock(r.path); err != nil {
				return IDRange{}, err
			}
			continue
		}
		r.used[base] = true
		return IDRange{Base: base, Lock: fd}, nil
	}
	unix.Close(fd)
	return IDRange{}, unix.EUSERS
}

// Adopt notes the range of a living box that an earlier keeper has started. PID 1 of it holds the
// reservation.
func (r *IDRanges) Adopt(base uint32) IDRange {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.used[base] = true
	return IDRange{Base: base, Lock: noLock}
}

// Release gives a range back when its box is dead.
func (r *IDRanges) Release(ids IDRange) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if ids.Lock != noLock {
		unix.Close(ids.Lock)
	}
	delete(r.used, ids.Base)
	if ids.Base >= r.base { // one that was adopted may be of another configuration
		r.low = min(r.low, (ids.Base-r.base)/isolation.IDRange)
	}
}

// Close removes the lock file if no keeper on the host needs it any more: who can lock every byte
// of it is the last.
func (r *IDRanges) Close() {
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
