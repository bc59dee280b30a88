// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/boxtest"
)

// visited lists what a walk visits in a directory, by what its descriptors refer to.
func visited(t *testing.T, dir string, r Reach, also func(path string) error) ([]string, error) {
	t.Helper()
	top, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(top)
	var list []string
	err = walk(t.Context(), top, r, func(fd int, directory bool) error {
		path, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil || (st.Mode&unix.S_IFMT == unix.S_IFDIR) != directory {
			t.Errorf("%s: %#o, %v, directory %v", rel, st.Mode, err, directory)
		}
		list = append(list, rel)
		if also != nil {
			return also(rel)
		}
		return nil
	})
	return list, err
}

func tree(t *testing.T, dir string, paths ...string) {
	t.Helper()
	for _, path := range paths {
		path = filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAWalkFindsEverythingThatCounts(t *testing.T) {
	t.Parallel()
	dir, outside := t.TempDir(), t.TempDir()
	tree(t, outside, "not/mine")
	var want []string
	for i := range 2*batch + 3 {
		want = append(want, fmt.Sprintf("many/%04d", i))
	}
	want = append(want, "a/b/c/f")
	tree(t, dir, want...)
	for _, err := range []error{
		os.Symlink(outside, filepath.Join(dir, "link")), os.Symlink("many", filepath.Join(dir, "a/link")),
		os.Symlink(filepath.Join(outside, "not/mine"), filepath.Join(dir, "file")), unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	got, err := visited(t, dir, defaultReach(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"a/b/c/f", "many/0000"} { // directories come before what is in them
		for up := filepath.Dir(path); ; up = filepath.Dir(up) {
			if i := slices.Index(got, up); i < 0 || i > slices.Index(got, path) {
				t.Errorf("%s is at position %d", up, i)
			}
			if up == "." {
				break
			}
		}
	}
	want = append(want, ".", "a", "a/b", "a/b/c", "many")
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("got %d %q…, want %d", len(got), got[:5], len(want))
	}
}

// Changes to the tree during a walk do not lead it out of the tree.
func TestATreeWalkStaysInItsTree(t *testing.T) {
	t.Parallel()
	dir, outside := t.TempDir(), t.TempDir()
	tree(t, outside, "secret")
	tree(t, dir, "a/f", "b/f", "c/f")
	got, err := visited(t, dir, defaultReach(), func(path string) error {
		if path != "." {
			return nil
		}
		for _, name := range []string{"a", "c"} { // before the walk reaches them
			if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
				return err
			}
		}
		return os.Symlink(outside, filepath.Join(dir, "a"))
	})
	slices.Sort(got)
	if err != nil || !slices.Equal(got, []string{".", "b", "b/f"}) {
		t.Errorf(`got %q, err = %v, want no error and got == []string{".", "b", "b/f"}`, got, err)
	}
}

func TestATreeWalkIsBounded(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	tree(t, dir, "a/b/c/d/e/f")
	for name, r := range map[string]Reach{
		"entries": {Entries: 3, Depth: 100, Time: time.Hour}, "depth": {Entries: 100, Depth: 3, Time: time.Hour}, "time": {Entries: 100, Depth: 100},
	} {
		_, err := visited(t, dir, r, nil)
		if _, ok := errors.AsType[*reachError](err); !ok {
			t.Errorf("%s: err = %v, want ok == true", name, err)
		}
	}
	if _, err := visited(t, dir, Reach{Entries: 6, Depth: 6, Time: time.Hour}, nil); err != nil {
		t.Errorf("just enough: %v", err)
	}
	wrong := errors.New("wrong")
	_, err := visited(t, dir, defaultReach(), func(path string) error {
		if path == "a/b" {
			return wrong
		}
		return nil
	})
	if at, ok := errors.AsType[*walkError](err); !ok || at.Path != "a/b" || !errors.Is(err, wrong) {
		t.Errorf(`err = %v, want ok == true and at.Path == "a/b" and err is %v`, err, wrong)
	}
}

// What is mounted below a directory is not visited, and what the mount hides is.
func TestATreeWalkDoesNotEnterMounts(t *testing.T) {
	boxtest.RequireRoot(t) // mounting needs root
	dir := t.TempDir()
	tree(t, dir, "on/hidden")
	on := filepath.Join(dir, "on")
	if err := unix.Mount("none", on, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(on, unix.MNT_DETACH)
	tree(t, on, "mounted")
	if _, err := visited(t, dir, defaultReach(), nil); !errors.Is(err, unix.EXDEV) {
		t.Errorf("a mount is entered: err = %v, want err is unix.EXDEV", err)
	}
}

func TestOtherFilesystemsAreRefused(t *testing.T) {
	t.Parallel()
	fd, err := unix.Open("/proc", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	_, err = openTree(fd)
	if why, ok := errors.AsType[*UnavailableError](err); !ok || why.Reason != NoKind {
		t.Errorf("err = %v, want ok == true and why.Reason == NoKind", err)
	}
}
