// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestLocksAreCountedWhenABoxMayHaveTooMany(t *testing.T) {
	t.Parallel()
	start := time.Now()
	at := func(s int) time.Time { return start.Add(time.Duration(s) * time.Second) }
	w := &lockWatch{limit: 100}
	for i, c := range []struct {
		total uint64
		known bool
		at    int
		due   bool
		found lockCount // of the count, which takes a tenth of a second
	}{
		{total: 100, known: true, at: 0},
		{total: 101, known: true, at: 1, due: true, found: lockCount{held: 40, largest: 30}},
		{total: 172, known: true, at: 3}, // the next count is in 2 s
		{total: 171, known: true, at: 4}, // 70 more cannot have made more than 100 of the 30
		{total: 172, known: true, at: 5, due: true, found: lockCount{held: 40, largest: 30}},
		{total: 140, known: true, at: 8}, // of the others there are fewer now
		{total: 210, known: true, at: 9},
		{total: 211, known: true, at: 10, due: true, found: lockCount{held: 95, largest: 90, ended: 1}},
		{total: 105, known: true, at: 11},
		{total: 106, known: true, at: 11, due: true, found: lockCount{held: 10, largest: 10}}, // at once again after an end
		{total: 106, known: true, at: 21},
		{total: 106, known: true, at: 22, due: true}, // the last count was long ago
		{total: 50, known: true, at: 100},
		{known: false, at: 100, due: true},
		{known: false, at: 102},
		{known: false, at: 103, due: true},
	} {
		if got := w.due(c.total, c.known, at(c.at)); got != c.due {
			t.Errorf("step %d: due is %v, want got == %v", i, got, c.due)
		}
		if c.due {
			w.counted(c.total, c.found, at(c.at), at(c.at).Add(100*time.Millisecond))
		}
	}
}

func TestSlabinfoIsUnderstood(t *testing.T) {
	t.Parallel()
	const text = `slabinfo - version: 2.1
# name            <active_objs> <num_objs> <objsize> <objperslab> <pagesperslab> : tunables <limit> <batchcount> <sharedfactor>
file_lock_ctx      10293  10293     56   73    1 : tunables    0    0    0 : slabdata    141    141      0
file_lock_cache       40     42    192   21    1 : tunables    0    0    0 : slabdata      2      2      0
`
	if n, ok := slabObjects(text, "file_lock_cache"); n != 42 || !ok {
		t.Errorf("n = %d, ok = %v, want n == 42 and ok == true", n, ok)
	}
	if _, ok := slabObjects(text[:200], "file_lock_cache"); ok {
		t.Error("a slab cache that is not in the text was found")
	}
	if n, known := hostLocks(); os.Geteuid() == 0 && !known {
		t.Logf("this kernel does not count file locks: %d", n)
	}
}

// Locks are counted once each, whatever number of threads and descriptors there are, and not beyond what is wanted.
func TestLocksAreCountedOnce(t *testing.T) {
	const n = 500
	path := filepath.Join(t.TempDir(), "locked")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for i := range n {
		if err := unix.FcntlFlock(f.Fd(), unix.F_SETLK, &unix.Flock_t{Type: unix.F_WRLCK, Start: int64(2 * i), Len: 1}); err != nil {
			t.Fatal(err)
		}
	}
	again, err := unix.Dup(int(f.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(again) // and with that all locks
	own := []int{os.Getpid()}
	before := locksOf(own, 1<<40)
	if before < n || before > n+50 {
		t.Errorf("%d locks counted, want %d and the few that others have", before, n)
	}
	if got := locksOf(append(own, own...), 1<<40); got > n+50 {
		t.Errorf("%d locks counted of one table twice", got)
	}
	if got := locksOf(own, 100); got != 101 {
		t.Errorf("%d locks counted, want no more than 101", got)
	}
}

func TestTheLatestBoxesWithManyLocksAreRemembered(t *testing.T) {
	t.Parallel()
	var h lockHoarders
	h.add("first")
	for i := range maxLockHoarders - 1 {
		h.add(strconv.Itoa(i))
	}
	if !h.keys["first"] {
		t.Error("the first owner was forgotten too early")
	}
	h.add("last")
	if len(h.keys) != maxLockHoarders || h.keys["first"] || !h.keys["last"] {
		t.Errorf("%d remembered", len(h.keys))
	}
}
