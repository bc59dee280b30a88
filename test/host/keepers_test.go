// SPDX-License-Identifier: Apache-2.0

package host_test

import (
	"errors"
	"os"
	"strconv"
	"sync"
	"testing"

	"github.com/boxd-dev/boxd/isolation/disk"
)

func TestDiskCrashLeavesNothingForLong(t *testing.T) {
	p := newPlace(t)
	kept, gone := p.make("kept", here()), p.make("gone", here())
	gone.dir.Close()
	if err := p.root.Remove("gone"); err != nil {
		t.Fatal(err)
	}
	if err := p.root.MkdirAll(".quota-proof/x", 0o700); err != nil { // left by a keeper killed during the probe
		t.Fatal(err)
	}
	later := placeAt(t, p.path)
	if id, err := later.quotas.ID(int(kept.dir.Fd())); id != kept.id || err != nil {
		t.Errorf("the directory that stayed has project %d, %v, want %d", id, err, kept.id)
	}
	if u := kept.usage(); u.Limits != here() || u.Inodes != 1 {
		t.Errorf("and %+v", u)
	}
	if u := gone.usage(); u != (disk.Usage{}) {
		t.Errorf("the removed directory: u = %+v, want disk.Usage{}", u)
	}
	if names, err := os.ReadDir(p.path); err != nil || len(names) != 1 {
		t.Errorf("names = %v, err = %v, want no error and len(names) == 1", names, err)
	}
}

func TestDiskRoundsLeaveNothing(t *testing.T) {
	p := newPlace(t)
	before, files := accounts(t, p.path), openFiles(t)
	for range 100 {
		w := p.plain("w")
		id, err := p.quotas.Make(int(w.dir.Fd()), here())
		if err != nil {
			t.Fatal(err)
		}
		if err := p.root.WriteFile("w/f", make([]byte, 3*block), 0o600); err != nil {
			t.Fatal(err)
		}
		w.dir.Close()
		if err := p.root.RemoveAll("w"); err != nil {
			t.Fatal(err)
		}
		if err := p.quotas.Remove(id); err != nil {
			t.Fatal(err)
		}
	}
	if after := accounts(t, p.path); len(after) != len(before) {
		t.Errorf("%d accounts before, %v after", len(before), after)
	}
	if n := openFiles(t); n != files {
		t.Errorf("%d open files before, %d after", files, n)
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// TestDiskKeepersNeverShareAProject: all of them start from the same id, and sweep meanwhile.
func TestDiskKeepersNeverShareAProject(t *testing.T) {
	p := newPlace(t)
	const keepers, each = 4, 25
	ids := make([][]uint32, keepers)
	var wg sync.WaitGroup
	for k := range keepers {
		q := placeAt(t, p.path).quotas
		for n := range each {
			p.plain(strconv.Itoa(k) + "-" + strconv.Itoa(n)).dir.Close()
		}
		wg.Go(func() { ids[k] = crowd(t, p, q, k, each) })
	}
	wg.Wait()
	seen := map[uint32]bool{}
	for _, list := range ids {
		for _, id := range list {
			u, err := p.quotas.Usage(id)
			if seen[id] || err != nil || u.Inodes != 1 || u.Limits != here() {
				t.Errorf("project %d: u = %+v, err = %v", id, u, err)
			}
			seen[id] = true
		}
	}
	if len(seen) != keepers*each {
		t.Errorf("%d projects, want %d", len(seen), keepers*each)
	}
	for k := range keepers {
		for n := range each {
			if err := p.root.Remove(strconv.Itoa(k) + "-" + strconv.Itoa(n)); err != nil {
				t.Fatal(err)
			}
		}
	}
	placeAt(t, p.path) // this sweeps
	for id, a := range accounts(t, p.path) {
		if seen[id] {
			t.Errorf("after the sweep project %d has %+v", id, a)
		}
	}
}

// crowd creates projects for the directories of one keeper, and removes another one each time.
func crowd(t *testing.T, p *place, q *disk.Quotas, keeper, each int) []uint32 {
	var ids []uint32
	for n := range each {
		name := strconv.Itoa(keeper) + "-" + strconv.Itoa(n)
		id, err := makeIn(p, q, name)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			return ids
		}
		ids = append(ids, id)
		passing := name + "-passing"
		if err := p.root.Mkdir(passing, 0o700); err != nil {
			t.Error(err)
			return ids
		}
		id, err = makeIn(p, q, passing)
		err = errors.Join(err, p.root.Remove(passing), q.Sweep())
		if gone := q.Remove(id); gone != nil {
			// Another keeper has swept it, and given it to a directory or is inspecting it now.
			if _, used := errors.AsType[*disk.UsedError](gone); !used {
				err = errors.Join(err, gone)
			}
		}
		if err != nil {
			t.Errorf("%s: %v", passing, err)
			return ids
		}
	}
	return ids
}

func makeIn(p *place, q *disk.Quotas, name string) (uint32, error) {
	dir, err := p.root.Open(name)
	if err != nil {
		return 0, err
	}
	defer dir.Close()
	return q.Make(int(dir.Fd()), here())
}
