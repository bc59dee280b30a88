// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/boxtest"
)

// A change of any directory below /etc is noticed, and one that was made within a clock tick of the copy cannot be missed. A
// filesystem that is mounted below a directory of the host is ignored.
func TestAChangeBelowEtcIsNoticed(t *testing.T) {
	boxtest.RequireRoot(t)
	host := filepath.Join(boxtest.NewFilesystem(t, "ext4"), "ssl")
	top := t.TempDir() // as a zygote has it: a tree of its own, in which directories of the host are mounted
	ssl := filepath.Join(top, "etc", "ssl")
	foreign := filepath.Join(host, "foreign")
	try := func(errs ...error) {
		t.Helper()
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
	}
	try(os.MkdirAll(filepath.Join(host, "certs"), 0o755), os.MkdirAll(ssl, 0o755), os.MkdirAll(foreign, 0o755), os.Symlink("/", filepath.Join(host, "link")))
	mount := func(kind, source, target string, flags uintptr) {
		t.Helper()
		try(unix.Mount(source, target, kind, flags, ""))
		t.Cleanup(func() { try(unix.Unmount(target, unix.MNT_DETACH)) })
	}
	mount("tmpfs", "foreign", foreign, 0)
	mount("", host, ssl, unix.MS_BIND|unix.MS_REC)
	try(os.Mkdir(filepath.Join(foreign, "in"), 0o755))
	root, err := unix.Open(top, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	try(err)
	defer unix.Close(root)
	read := func() *etcState {
		t.Helper()
		e, err := readEtc(root)
		try(err)
		return e
	}
	was := read()
	if want := []string{"etc", "etc/ssl", "etc/ssl/certs"}; !slices.Equal(was.dirs, want) {
		t.Errorf("%q, want %q", was.dirs, want)
	}
	if since := time.Since(was.last); since < 0 || since > time.Minute {
		t.Errorf("the latest change was %v ago", since)
	}
	for _, change := range []func() error{
		func() error { return os.WriteFile(filepath.Join(host, "certs", "new"), nil, 0o600) },
		func() error {
			return os.Rename(filepath.Join(host, "certs", "new"), filepath.Join(host, "certs", "other"))
		},
		func() error { return os.Remove(filepath.Join(host, "certs", "other")) },
		func() error { return os.Mkdir(filepath.Join(host, "certs", "dir"), 0o755) },
		func() error { return os.RemoveAll(filepath.Join(host, "certs")) },
	} {
		<-time.After(2 * tick)
		if was = read(); !was.is(root) {
			t.Error("a change was reported though nothing has changed")
		}
		try(change())
		if was.is(root) {
			t.Errorf("a change of %q is not noticed", was.dirs)
		}
	}
	now := time.Now()
	try(os.Chtimes(host, now, now))
	if was = read(); was.is(root) && time.Since(now) < tick {
		t.Error("a state read in the same clock tick as the change counts as current")
	}
	try(os.Chtimes(host, now, now.Add(time.Hour)))
	if was = read(); !was.is(root) {
		t.Error("a modification time in the future counts as a change")
	}
	try(os.Mkdir(filepath.Join(foreign, "more"), 0o755))
	if !was.is(root) {
		t.Error("a change on another filesystem counts as a change")
	}
}
