// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation"
)

const firstBase = 0x70000000

// take takes a range. Tests that also release some must not be parallel: what a test beside them starts has their descriptors,
// and with those the reservations, until it has executed its program.
func take(t *testing.T, r *idRanges, slot uint32) idRange {
	t.Helper()
	ids, err := r.take()
	if err != nil {
		t.Fatal(err)
	}
	if ids.Base != firstBase+slot*isolation.IDRange {
		t.Errorf("got the range from %d, want the one of slot %d", ids.Base, slot)
	}
	return ids
}

func TestKeepersOfAHostNeverShareARange(t *testing.T) { // not parallel: see take
	path := filepath.Join(t.TempDir(), "ids")
	one, two := newIDRanges(path, firstBase, 4), newIDRanges(path, firstBase, 4)
	a := take(t, one, 0)
	b := take(t, two, 1)
	c := take(t, one, 2)
	d := take(t, two, 3)
	for _, r := range []*idRanges{one, two} {
		if _, err := r.take(); !errors.Is(err, unix.EUSERS) {
			t.Errorf("a fifth range of four: err = %v, want err is unix.EUSERS", err)
		}
	}
	two.Release(b)
	b = take(t, one, 1) // the lowest free one, whoever had it before
	for _, ids := range []idRange{a, b, c} {
		one.Release(ids)
	}
	two.Release(d)
}

func TestRangeIsHeldAsLongAsAnybodyHoldsIt(t *testing.T) { // not parallel: see take
	path := filepath.Join(t.TempDir(), "ids")
	dead, next := newIDRanges(path, firstBase, 2), newIDRanges(path, firstBase, 2)
	ids := take(t, dead, 0)
	box, err := unix.FcntlInt(uintptr(ids.Lock), unix.F_DUPFD_CLOEXEC, 3) // as PID 1 of a box holds it
	if err != nil {
		t.Fatal(err)
	}
	dead.Release(ids) // its keeper has crashed, and the box is still alive
	other := take(t, next, 1)
	unix.Close(box)
	first := take(t, next, 0)
	next.Release(first)
	next.Release(other)
}

func TestLastKeeperRemovesTheLockFile(t *testing.T) { // not parallel: see take
	path := filepath.Join(t.TempDir(), "ids")
	one, two := newIDRanges(path, firstBase, 2), newIDRanges(path, firstBase, 2)
	ids := take(t, one, 0)
	two.Close()
	if _, err := os.Stat(path); err != nil {
		t.Errorf("while a box runs: %v", err)
	}
	one.Release(ids)
	one.Close()
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after the last: err = %v, want err is fs.ErrNotExist", err)
	}
	one.Close() // nothing there to remove
}

func TestLockFileIsNoLink(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "ids")
	if err := os.Symlink(filepath.Join(dir, "elsewhere"), path); err != nil {
		t.Fatal(err)
	}
	if _, err := newIDRanges(path, firstBase, 2).take(); !errors.Is(err, unix.ELOOP) {
		t.Errorf("through a link: err = %v, want err is unix.ELOOP", err)
	}
}

func TestARangeOfAnEarlierKeepersBoxIsNotGivenAway(t *testing.T) { // not parallel: see take
	path := filepath.Join(t.TempDir(), "ids")
	r := newIDRanges(path, firstBase, 3)
	living := r.Adopt(firstBase)
	elsewhere := r.Adopt(firstBase + 77*isolation.IDRange) // outside of this configuration
	a := take(t, r, 1)
	r.Release(living)
	b := take(t, r, 0)
	for _, ids := range []idRange{elsewhere, a, b} {
		r.Release(ids)
	}
}

// Whatever ranges are taken and released, the next is always the lowest free one.
func TestTheLowestFreeRangeIsTaken(t *testing.T) { // not parallel: see take
	const ranges = 16
	r := newIDRanges(filepath.Join(t.TempDir(), "ids"), firstBase, ranges)
	held := map[uint32]idRange{}
	random := rand.New(rand.NewPCG(1, 2)) // the same in every run
	for range 2000 {
		if len(held) > 0 && random.IntN(2) == 0 {
			slot := slices.Sorted(maps.Keys(held))[random.IntN(len(held))]
			r.Release(held[slot])
			delete(held, slot)
			continue
		}
		lowest := uint32(0)
		for held[lowest] != (idRange{}) {
			lowest++
		}
		if lowest == ranges {
			if _, err := r.take(); !errors.Is(err, unix.EUSERS) {
				t.Fatalf("all ranges are in use: err = %v, want err is unix.EUSERS", err)
			}
			continue
		}
		held[lowest] = take(t, r, lowest)
	}
	for _, ids := range held {
		r.Release(ids)
	}
}
