// SPDX-License-Identifier: Apache-2.0

package keeper

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation"
)

const firstBase = 0x70000000

// ranges makes the view one keeper has of the ranges in a lock file.
func ranges(path string, count uint32) *idRanges {
	return &idRanges{path: path, base: firstBase, count: count, used: map[uint32]bool{}}
}

func take(t *testing.T, r *idRanges, slot uint32) idRange {
	t.Helper()
	ids, err := r.take()
	if err != nil {
		t.Fatal(err)
	}
	if ids.slot != slot || ids.base != firstBase+slot*isolation.IDRange {
		t.Errorf("got slot %d from %d, want slot %d", ids.slot, ids.base, slot)
	}
	return ids
}

func TestKeepersOfAHostNeverShareARange(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "ids")
	one, two := ranges(path, 4), ranges(path, 4)
	a := take(t, one, 0)
	b := take(t, two, 1)
	c := take(t, one, 2)
	d := take(t, two, 3)
	for _, r := range []*idRanges{one, two} {
		if _, err := r.take(); !errors.Is(err, unix.EUSERS) {
			t.Errorf("a fifth range of four: %v", err)
		}
	}
	two.release(b)
	b = take(t, one, 1) // the lowest free one, whosever it was
	for _, ids := range []idRange{a, b, c} {
		one.release(ids)
	}
	two.release(d)
}

func TestRangeIsHeldAsLongAsAnybodyHoldsIt(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "ids")
	dead, next := ranges(path, 2), ranges(path, 2)
	ids := take(t, dead, 0)
	box, err := unix.FcntlInt(uintptr(ids.lock), unix.F_DUPFD_CLOEXEC, 3) // as PID 1 of a box has it
	if err != nil {
		t.Fatal(err)
	}
	dead.release(ids) // its keeper has crashed; the box has not ended yet
	other := take(t, next, 1)
	unix.Close(box)
	first := take(t, next, 0)
	next.release(first)
	next.release(other)
}

func TestLastKeeperRemovesTheLockFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "ids")
	one, two := ranges(path, 2), ranges(path, 2)
	ids := take(t, one, 0)
	two.close()
	if _, err := os.Stat(path); err != nil {
		t.Errorf("while a box lives: %v", err)
	}
	one.release(ids)
	one.close()
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after the last: %v", err)
	}
	one.close() // nothing there to remove
}

func TestLockFileIsNoLink(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "ids")
	if err := os.Symlink(filepath.Join(dir, "elsewhere"), path); err != nil {
		t.Fatal(err)
	}
	if _, err := ranges(path, 2).take(); !errors.Is(err, unix.ELOOP) {
		t.Errorf("through a link: %v", err)
	}
}
