// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// chain nests directories in each other, with a file in each.
func chain(t *testing.T, dir string, depth int) {
	t.Helper()
	fd, err := unix.Open(dir, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	for i := 0; err == nil && i < depth; i++ {
		var next int
		if err = unix.Mkdirat(fd, "a", 0o700); err == nil {
			err = unix.Mknodat(fd, "file", unix.S_IFREG|0o600, 0)
		}
		if err == nil {
			next, err = unix.Openat(fd, "a", unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		}
		unix.Close(fd)
		fd = next
	}
	unix.Close(fd)
	if err != nil {
		t.Fatal(err)
	}
}

// Not parallel: it lowers the limit of descriptors.
func TestDeepTreesAreRemovedWithFewDescriptors(t *testing.T) {
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	outside := filepath.Join(t.TempDir(), "stays")
	top := filepath.Join(dir, "tree")
	for _, d := range []string{outside, top, filepath.Join(top, "b"), filepath.Join(top, "wide")} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	chain(t, top, 1000)
	chain(t, filepath.Join(top, "b"), 200)
	for i := range removeBatch + removeBatch/2 {
		if err := os.Mkdir(filepath.Join(top, "wide", strconv.Itoa(i)), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, link := range []string{"l", "b/l"} {
		if err := os.Symlink(outside, filepath.Join(top, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mkfifo(filepath.Join(top, "fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 128, Max: old.Max}); err != nil {
		t.Fatal(err)
	}
	defer unix.Setrlimit(unix.RLIMIT_NOFILE, &old)
	for range 2 { // removing it again is no error
		if err := removeAll(root, "tree"); err != nil {
			t.Fatal(err)
		}
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		t.Errorf("left: entries = %v, err = %v, want no error and len(entries) == 0", entries, err)
	}
	if _, err := os.Stat(outside); err != nil {
		t.Errorf("a link was followed: %v", err)
	}
}

func TestOnlyEntriesOfTheDirectoryAreRemoved(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "root", "a"), 0o700); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(filepath.Join(dir, "root"))
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	for _, name := range []string{"", ".", "..", "../root/a", "/root", filepath.Join(dir, "root")} {
		if err := removeAll(root, name); name != "" && err == nil {
			t.Errorf("%q was removed", name)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "root", "a")); err != nil {
		t.Error(err)
	}
}
