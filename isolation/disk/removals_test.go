// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"errors"
	"io/fs"
	"log"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/statedir"
)

// filled opens the workspaces of a directory, and makes one with files.
func filled(t *testing.T, state string, files int) (w *Workspaces, key string) {
	t.Helper()
	w, err := OpenWorkspaces(state, "", 0, 0, 0, log.New(t.Output(), "", 0))
	if err != nil {
		t.Fatal(err)
	}
	key = strings.Repeat("a", isolation.KeyLen)
	if err := w.MakeFor(&isolation.Spec{Key: key, Writable: true}); err != nil {
		t.Fatal(err)
	}
	for n := range files {
		if err := os.WriteFile(filepath.Join(w.root.Name(), key, workName, strconv.Itoa(n)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return w, key
}

// beingRemoved is how many directories are still to be removed.
func beingRemoved(t *testing.T, state string) int {
	t.Helper()
	left, err := os.ReadDir(filepath.Join(state, statedir.Removed))
	if err != nil {
		t.Fatal(err)
	}
	return len(left)
}

// Its name is free when the removal of a workspace is answered, and its files are gone when the keeper ends.
func TestARemovedWorkspaceMakesRoomForItsNext(t *testing.T) {
	t.Parallel()
	boxtest.RequireRoot(t)
	state := t.TempDir()
	w, key := filled(t, state, 100)
	for range 3 {
		if err := w.Remove(key); err != nil {
			t.Fatal(err)
		}
		if err := w.MakeFor(&isolation.Spec{Key: key}); err != nil {
			t.Fatal(err)
		}
		if left, err := os.ReadDir(filepath.Join(w.root.Name(), key)); err != nil || len(left) > 0 {
			t.Errorf("the next one has %v, %v, want no error and len(left) == 0", left, err)
		}
	}
	w.Close(false)
	if n := beingRemoved(t, state); n > 0 {
		t.Errorf("%d are still there", n)
	}
	if _, err := os.Stat(filepath.Join(state, "workspaces", key)); err != nil {
		t.Errorf("the last one: %v", err)
	}
}

// What a keeper has not finished removing is removed by the next one.
func TestAnInterruptedRemovalIsFinished(t *testing.T) {
	t.Parallel()
	boxtest.RequireRoot(t)
	state := t.TempDir()
	w, key := filled(t, state, 3*removeBatch)
	w.removed.stop() // as after closePatience
	if err := w.Remove(key); err != nil {
		t.Fatal(err)
	}
	asked := 0
	err := removeAllUntil(w.removed.root, entriesOf(t, w.removed.root)[0], func() bool { asked++; return asked > removeBatch })
	if !errors.Is(err, errStopped) {
		t.Errorf("a removal that is stopped: err = %v, want err is errStopped", err)
	}
	w.Close(false)
	if n := beingRemoved(t, state); n != 1 {
		t.Fatalf("%d are left", n)
	}
	w, err = OpenWorkspaces(state, "", 0, 0, 0, log.New(t.Output(), "", 0))
	if err != nil {
		t.Fatal(err)
	}
	w.Close(false)
	if n := beingRemoved(t, state); n > 0 {
		t.Errorf("%d are still there", n)
	}
}

func entriesOf(t *testing.T, dir *os.Root) (names []string) {
	t.Helper()
	entries, err := fs.ReadDir(dir.FS(), ".")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// Where the disk has little room, there is more when a removal is answered.
func TestARemovalOnAFullDiskMakesRoom(t *testing.T) {
	t.Parallel()
	state := boxtest.NewFilesystem(t, "ext4")
	w, key := filled(t, state, 10*removeBatch)
	defer w.Close(false)
	var st unix.Statfs_t
	if err := unix.Statfs(state, &st); err != nil {
		t.Fatal(err)
	}
	large, err := os.Create(filepath.Join(w.root.Name(), key, workName, "large"))
	if err != nil {
		t.Fatal(err)
	}
	defer large.Close()
	if err := unix.Fallocate(int(large.Fd()), 0, 0, int64(st.Bavail*95/100)*st.Bsize); err != nil {
		t.Fatal(err)
	}
	if err := w.Remove(key); err != nil {
		t.Fatal(err)
	}
	if n := beingRemoved(t, state); n > 0 {
		t.Errorf("%d are still there", n)
	}
}

// A state directory that has a project id itself takes in nothing of other projects.
func TestARemovalThatCannotBeMovedIsDoneInPlace(t *testing.T) {
	t.Parallel()
	boxtest.RequireRoot(t)
	state, elsewhere := t.TempDir(), boxtest.NewFilesystem(t, "ext4") // two filesystems are as far apart: rename(2) says EXDEV
	w, key := filled(t, state, 1)
	defer w.Close(false)
	other, err := OpenWorkspaces(elsewhere, "", 0, 0, 0, log.New(t.Output(), "", 0))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close(false)
	if gone, err := other.removed.take(w.root, key, 0); gone != nil || err != nil {
		t.Fatalf("gone = %v, err = %v, want gone == nil and no error", gone, err)
	}
	if left := entriesOf(t, w.root); len(left) > 0 {
		t.Errorf("%v is still there", left)
	}
}

// A removal that fails is tried again by a later one, and at the next start.
func TestARemovalThatFailsIsTriedAgain(t *testing.T) {
	t.Parallel()
	boxtest.RequireRoot(t)
	state := t.TempDir()
	w, key := filled(t, state, 1)
	busy := filepath.Join(w.root.Name(), key, workName, "busy")
	if err := errors.Join(os.Mkdir(busy, 0o700), unix.Mount("busy", busy, "tmpfs", 0, "")); err != nil {
		t.Fatal(err)
	}
	next := func() {
		t.Helper()
		other := strings.Repeat("b", isolation.KeyLen)
		if err := errors.Join(w.make(other, isolation.Quota{}), w.Remove(other)); err != nil {
			t.Fatal(err)
		}
		w.removed.wait()
	}
	if err := w.Remove(key); err != nil {
		t.Fatal(err)
	}
	w.removed.wait()
	next()
	if n := beingRemoved(t, state); n != 1 {
		t.Errorf("%d are left while something is mounted there", n)
	}
	held, err := filepath.Glob(filepath.Join(state, statedir.Removed, "*", workName, "busy"))
	if err != nil || len(held) != 1 {
		t.Fatalf("held = %v, err = %v, want no error and len(held) == 1", held, err)
	}
	if err := unix.Unmount(held[0], 0); err != nil {
		t.Fatal(err)
	}
	next()
	if n := beingRemoved(t, state); n > 0 {
		t.Errorf("%d are left", n)
	}
	w.Close(false)
}
