// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/isolation"
)

// reader is an id that no file has.
const reader = 0x70000000 + 65534

// baseVariable makes this program copy a base.
const baseVariable = "BOXFILES_TEST_BASE"

func TestMain(m *testing.M) {
	if os.Getenv(baseVariable) != "" {
		code := runBase([]string{strconv.Itoa(reader)}, os.Stdout)
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var has [2]unix.CapUserData
		if err := unix.Capget(&header, &has[0]); err != nil || has != [2]unix.CapUserData{} {
			code = 3 // it has kept something
		}
		os.Exit(code)
	}
	os.Exit(m.Run())
}

// hostEtc makes a root with an /etc, and an empty directory of the box user.
func hostEtc(t *testing.T) (from, to string) {
	t.Helper()
	from, to = t.TempDir(), t.TempDir()
	etc := filepath.Join(from, "etc")
	err := errors.Join(os.MkdirAll(filepath.Join(etc, "in/deep"), 0o755), os.MkdirAll(filepath.Join(etc, "closed"), 0o700), os.Chmod(from, 0o755), os.Chmod(filepath.Dir(from), 0o755), os.Chmod(filepath.Dir(to), 0o755), os.Chown(to, isolation.BoxUID, isolation.BoxGID),
		os.Symlink("usr/bin", filepath.Join(from, "bin")), os.Mkdir(filepath.Join(from, "usr"), 0o755))
	for name, mode := range map[string]os.FileMode{"open": 0o644, "run": 0o755, "secret": 0o600, "in/deep/group": 0o640, "closed/open": 0o644, "in/open": 0o444, "nobodys": 0o600, "persons": 0o600} {
		err = errors.Join(err, os.WriteFile(filepath.Join(etc, name), []byte(name), mode))
	}
	err = errors.Join(err, os.Symlink("/etc/shadow", filepath.Join(etc, "link")), unix.Mkfifo(filepath.Join(etc, "fifo"), 0o666),
		os.Chown(filepath.Join(etc, "nobodys"), 65534, 65534), os.Chown(filepath.Join(etc, "persons"), isolation.BoxUID, isolation.BoxGID))
	if err != nil {
		t.Fatal(err)
	}
	return from, to
}

// The copy of /etc has what a user may read who owns nothing and is in no group, and skips everything that is no file, directory or
// link. It does so whatever the rights of boxkeeper, in which it begins.
func TestOnlyWhatEverybodyMayReadIsCopied(t *testing.T) {
	t.Parallel()
	boxtest.RequireRoot(t) // becoming another user needs root
	from, to := hostEtc(t)
	cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c", `umask 077; exec "$0"`, os.Args[0])
	cmd.Env = append(os.Environ(), baseVariable+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Groups: []uint32{0, 65534, isolation.BoxGID}}}
	for _, dir := range []string{from, to} {
		f, err := os.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		cmd.ExtraFiles = append(cmd.ExtraFiles, f)
	}
	if printed, err := cmd.Output(); err != nil || string(printed) != isolation.BaseDone {
		t.Fatalf("printed = %q, err = %v, want no error and printed == isolation.BaseDone", printed, err)
	}
	var got []string
	err := filepath.WalkDir(to, func(name string, e os.DirEntry, err error) error {
		var st unix.Stat_t
		if err = errors.Join(err, unix.Lstat(name, &st)); err != nil {
			return err
		}
		if st.Uid == 0 && (st.Gid == 0 || st.Gid == isolation.BoxGID) { // of the skeleton
			return nil
		}
		if st.Uid != isolation.BoxUID || st.Gid != isolation.BoxGID || e.IsDir() && name != to && st.Mode&0o777 != 0o755 && e.Name() != "root" {
			t.Errorf("%s is %d:%d's, with mode %o", name, st.Uid, st.Gid, st.Mode)
		}
		if rel, _ := filepath.Rel(to, name); !e.IsDir() {
			got = append(got, rel)
		}
		return nil
	})
	slices.Sort(got)
	if want := []string{"bin", "etc/hostname", "etc/hosts", "etc/in/open", "etc/link", "etc/mtab", "etc/open", "etc/resolv.conf", "etc/run"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%q, %v, want %q", got, err, want)
	}
	for dir, want := range map[string]string{"usr": "0 755", "root": "1000 700", "etc": "0 775", "etc/in": "1000 755", "workspace": "0 1775", "var/lib/boxd": "0 755"} {
		var st unix.Stat_t
		if err := unix.Lstat(filepath.Join(to, dir), &st); err != nil || fmt.Sprintf("%d %o", st.Uid, st.Mode&0o7777) != want || st.Mode&unix.S_IFMT != unix.S_IFDIR {
			t.Errorf("%s: %d %o, %v, want %s", dir, st.Uid, st.Mode, err, want)
		}
	}
}

func TestACopyOfEtcIsBounded(t *testing.T) {
	boxtest.RequireRoot(t)
	from, to := hostEtc(t)
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
		c.reader = reader
		c.as(reader)
		defer c.as(0)
		return c.dir(in, out, "etc", "/etc", depth)
	}
	if _, err := copied(copier{bytes: 1 << 20, inodes: 100}, 0); !errors.Is(err, unix.ENAMETOOLONG) {
		t.Errorf("deeper than it may be: err = %v, want err is unix.ENAMETOOLONG", err)
	}
	for what, c := range map[string]copier{"bytes": {bytes: 3, inodes: 100}, "files": {bytes: 100, inodes: 1}} {
		if err := os.RemoveAll(filepath.Join(to, "etc")); err != nil {
			t.Fatal(err)
		}
		if _, err := copied(c, baseDepth); !errors.Is(err, unix.ENOSPC) {
			t.Errorf("more %s than it may copy: err = %v, want err is unix.ENOSPC", what, err)
		}
	}
}
