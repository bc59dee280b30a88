// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/boxtest"
)

// The copy of /etc is made with the rights of nobody, and skips everything that is no file,
// directory or link.
func TestOnlyWhatEverybodyMayReadIsCopied(t *testing.T) {
	boxtest.RequireRoot(t) // becoming another user needs root
	from, to := t.TempDir(), t.TempDir()
	err := errors.Join(os.MkdirAll(filepath.Join(from, "etc/in/deep"), 0o755), os.MkdirAll(filepath.Join(from, "etc/closed"), 0o700), os.Chmod(from, 0o755), os.Chmod(filepath.Dir(from), 0o755), os.Chmod(filepath.Dir(to), 0o755), os.Chown(to, 1000, 1000))
	for name, mode := range map[string]os.FileMode{"open": 0o644, "run": 0o755, "secret": 0o600, "in/deep/open": 0o640, "closed/open": 0o644, "in/open": 0o444} {
		err = errors.Join(err, os.WriteFile(filepath.Join(from, "etc", name), []byte(name), mode))
	}
	err = errors.Join(err, os.Symlink("/etc/shadow", filepath.Join(from, "etc/link")), unix.Mkfifo(filepath.Join(from, "etc/fifo"), 0o666))
	if err != nil {
		t.Fatal(err)
	}
	in, err := unix.Open(from, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(in)
	out, err := unix.Open(to, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(out)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	copied := func(c copier, depth int) (item string, err error) {
		c.reader = nobody
		c.as(nobody)
		defer c.as(0)
		return c.dir(in, out, "etc", "/etc", depth)
	}
	item, err := copied(copier{bytes: 1 << 20, inodes: 100}, baseDepth)
	if err != nil {
		t.Fatalf("%s: %v", item, err)
	}
	var got []string
	err = filepath.WalkDir(to, func(name string, e os.DirEntry, err error) error {
		if rel, _ := filepath.Rel(to, name); err == nil && !e.IsDir() {
			got = append(got, rel)
		}
		return err
	})
	slices.Sort(got)
	if want := []string{"etc/in/open", "etc/link", "etc/open", "etc/run"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%q, %v, want %q", got, err, want)
	}
	if _, err := copied(copier{bytes: 1 << 20, inodes: 100}, 0); !errors.Is(err, unix.ENAMETOOLONG) {
		t.Errorf("deeper than it may be: %v", err)
	}
	for what, c := range map[string]copier{"bytes": {bytes: 3, inodes: 100}, "files": {bytes: 100, inodes: 1}} {
		if err := os.RemoveAll(filepath.Join(to, "etc")); err != nil {
			t.Fatal(err)
		}
		if _, err := copied(c, baseDepth); !errors.Is(err, unix.ENOSPC) {
			t.Errorf("more %s than it may copy: %v", what, err)
		}
	}
}
