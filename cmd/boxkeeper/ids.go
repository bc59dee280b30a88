// SPDX-License-Identifier: Apache-2.0

// Every box gets a range of host ids that no other box has.

package main

import (
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation"
)

// idRanges gives every box a range of host ids that no other living box on the host has, not even
// a box of another keeper or of one that crashed: each range is a byte of a shared file, locked
// for as long as any holder lives. The lock belongs to the open file description (fcntl(2),
// F_OFD_SETLK), which PID 1 of the box holds too.
type idRanges struct {
	path  string
	base  uint32
	count uint32

	mu   sync.Mutex // guards the fields below
	used map[uint32]bool
	low  uint32 // all ranges below this one are in use
}

// newIDRanges returns the count ranges from base on, reserved through the file at path.
func newIDRanges(path string, base, count uint32) *idRanges {
	return &idRanges{path: path, base: base, count: count, used: map[uint32]bool{}}
}

// idRange is one reservation.
type idRange struct {
	Base uint32 // first id
	Lock int    // descriptor of the locked file, noLock if only the box itself has it
}

const noLock = -1

// take reserves the lowest free range: using few ranges over and over lets the cache of user
// namespaces hit. EUSERS: all are in use.
func (r *idRanges) take() (idRange, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fd, err := openLock(r.path)
	if err != nil {
		return idRange{}, err
	}
	below := true // all ranges so far are in use
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
			continue // reserved by another keeper
		}
		if err != nil {
			unix.Close(fd)
			return idRange{}, fmt.Errorf("reserve ids: %w", err)
		}
		if !sameFile(fd, r.path) { // a keeper that just ended has removed the file
			unix.Close(fd)
			if fd, err = openLock(r.path); err != nil {
				return idRange{}, err
			}
			continue
		}
		r.used[base] = true
		return idRange{Base: base, Lock: fd}, nil
	}
	unix.Close(fd)
	return idRange{}, unix.EUSERS
}

// Adopt records the range of a living box that an earlier keeper has started. PID 1 of that box
// holds the reservation.
func (r *idRanges) Adopt(base uint32) idRange {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.used[base] = true
	return idRange{Base: base, Lock: noLock}
}

// Release frees a range after its box has died.
func (r *idRanges) Release(ids idRange) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if ids.Lock != noLock {
		unix.Close(ids.Lock)
	}
	delete(r.used, ids.Base)
	if ids.Base >= r.base { // an adopted one may lie outside of this configuration
		r.low = min(r.low, (ids.Base-r.base)/isolation.IDRange)
	}
}

// Close removes the lock file if no keeper on the host uses it any more: a keeper that can lock
// every byte of it is the last one.
func (r *idRanges) Close() {
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
