// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/cgroup"
)

// treeOfDirectories makes plain directories in place of cgroups: none has a process.
func treeOfDirectories(t *testing.T, names ...string) *cgroupTree {
	t.Helper()
	path := t.TempDir()
	for _, name := range names {
		if err := os.MkdirAll(filepath.Join(path, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	root, err := cgroup.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	tree := &cgroupTree{path: path, root: root}
	t.Cleanup(tree.Close)
	return tree
}

func (t *cgroupTree) all(test *testing.T) (list []string) {
	test.Helper()
	err := filepath.WalkDir(t.path, func(path string, _ fs.DirEntry, err error) error {
		if path != t.path {
			list = append(list, path[len(t.path)+1:])
		}
		return err
	})
	if err != nil {
		test.Fatal(err)
	}
	return list
}

func TestTheCgroupSweepKeepsLiveBoxes(t *testing.T) {
	t.Parallel()
	tree := treeOfDirectories(t, "anchor", "other/box-dead", "owner-1/box-dead/work/e1", "owner-1/box-dead/init", "owner-1/box-live/work/e1",
		"owner-2/box-dead/work", "owner-2/live", "owner-3")
	if err := tree.sweep(func(key string) bool { return key == "live" }); err != nil {
		t.Fatal(err)
	}
	want := []string{"anchor", "other", "other/box-dead", "owner-1", "owner-1/box-live", "owner-1/box-live/work", "owner-1/box-live/work/e1"}
	if got := tree.all(t); !slices.Equal(got, want) {
		t.Errorf("left: %q, want %q", got, want)
	}
}

func TestGroupsOfAnEarlierKeeperAreFoundAndRemoved(t *testing.T) {
	t.Parallel()
	tree := treeOfDirectories(t, "owner-1/box-a/work/e1", "owner-1/box-a/init", "owner-1/box-b")
	limits := cgroup.Limits{Memory: 7}
	if _, err := tree.Find("1", "c", &limits); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a box without cgroups: err = %v, want err is fs.ErrNotExist", err)
	}
	if _, err := tree.Find("2", "a", &limits); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("another owner's: err = %v, want err is fs.ErrNotExist", err)
	}
	for key, working := range map[string]bool{"a": true, "b": false} {
		b, err := tree.Find("1", key, &limits)
		if err != nil {
			t.Fatal(err)
		}
		if b.Path() != filepath.Join(tree.path, "owner-1", "box-"+key) || b.limits != limits || (b.Work().FD >= 0) != working {
			t.Errorf(`found %+v, want b.Path() == filepath.Join(tree.path, "owner-1", "box-"+key) and b.limits == %v and (b.Work().FD >= 0) == working`,
				b, limits)
		}
		if err := b.Remove(); err != nil {
			t.Error(err)
		}
		if err := b.SetLimits(&limits); !errors.Is(err, unix.ESRCH) {
			t.Errorf("limits of a removed cgroup: err = %v, want err is unix.ESRCH", err)
		}
	}
	if got := tree.all(t); len(got) > 0 {
		t.Errorf("left: got %q, want len(got) == 0", got)
	}
	if _, err := tree.findIn(tree.path, &limits); err == nil {
		t.Error("a cgroup that was not delegated was accepted as scope")
	}
}
