// SPDX-License-Identifier: Apache-2.0

package overlay

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/isolation"
)

// In the upper layer of a restarted session PID 1 finds its own skeleton and accepts it. It refuses anything else in its place:
// nothing that programs make can take the place of a mount point, or of boxfiles.
func TestARestartedRootAcceptsOnlyItsOwnSkeleton(t *testing.T) {
	t.Parallel()
	boxtest.RequireRoot(t)
	for name, plant := range map[string]func(dir string) error{
		"nothing": nil,
		"a directory of the box user": func(dir string) error {
			return os.Chown(filepath.Join(dir, "opt"), isolation.BoxUID, isolation.BoxUID)
		},
		"a link in the place of a directory": func(dir string) error {
			return errors.Join(os.Remove(filepath.Join(dir, "srv")), os.Symlink("/etc", filepath.Join(dir, "srv")))
		},
		"a link that leads elsewhere": func(dir string) error {
			at := filepath.Join(dir, "var/run")
			return errors.Join(os.Remove(at), os.Symlink("/elsewhere", at))
		},
		"a link in the place of the program": func(dir string) error {
			at := filepath.Join(dir, isolation.FilesProgram)
			return errors.Join(os.Remove(at), os.Symlink("/etc/passwd", at))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			upper, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(upper)
			if item, err := Skeleton(upper); err != nil {
				t.Fatalf("%s: %v", item, err)
			}
			if plant == nil {
				if item, err := Skeleton(upper); err != nil {
					t.Errorf("the second time, %s: %v", item, err)
				}
				return
			}
			if err := plant(dir); err != nil {
				t.Fatal(err)
			}
			if item, err := Skeleton(upper); !errors.Is(err, unix.EEXIST) {
				t.Errorf("%s: err = %v, want err is unix.EEXIST", item, err)
			}
		})
	}
}

// Programs may do with the links of /etc as they like: what they put there stays, and what they remove comes back with the next start, also
// where overlayfs has left a whiteout. Nobody else's file is out of reach of root there, which a sticky directory would be.
func TestLinksOfEtcAreMadeAgain(t *testing.T) {
	t.Parallel()
	boxtest.RequireRoot(t)
	dir := t.TempDir()
	upper, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(upper)
	etc := filepath.Join(dir, "etc")
	hosts, hostname, mtab := filepath.Join(etc, "hosts"), filepath.Join(etc, "hostname"), filepath.Join(etc, "mtab")
	if item, err := Skeleton(upper); err != nil {
		t.Fatalf("%s: %v", item, err)
	}
	if err := errors.Join(os.Remove(hosts), os.WriteFile(hosts, []byte("mine"), 0o600), os.Remove(hostname), os.Remove(mtab), unix.Mknod(mtab, unix.S_IFCHR, 0), os.Chmod(etc, os.ModeSticky|0o777)); err != nil {
		t.Fatal(err)
	}
	if item, err := Skeleton(upper); err != nil {
		t.Fatalf("the second time, %s: %v", item, err)
	}
	for at, want := range map[string]string{hostname: "../run/box/hostname", mtab: "../proc/self/mounts"} {
		if got, err := os.Readlink(at); err != nil || got != want {
			t.Errorf("%s leads to %q, %v", at, got, err)
		}
	}
	if got, err := os.ReadFile(hosts); err != nil || string(got) != "mine" {
		t.Errorf(`a file that a program has put there: got %q, err = %v, want no error and got == "mine"`, got, err)
	}
	for name, want := range map[string]os.FileMode{"etc": 0o775, "var": os.ModeSticky | 0o775, ".": os.ModeSticky | 0o775} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode()&(os.ModePerm|os.ModeSticky) != want || info.Sys().(*syscall.Stat_t).Gid != isolation.BoxGID {
			t.Errorf("%s is %+v, %v, want no error and info.Mode() & (os.ModePerm | os.ModeSticky) == %v and info.Sys().(*syscall.Stat_t).Gid == isolation.BoxGID",
				name, info, err, want)
		}
	}
}

// A link that programs have removed does not keep their box from starting when they have used up what room there is. It comes back when there is some.
func TestAMissingSkeletonLinkOnAFullDiskStopsNoRestart(t *testing.T) {
	t.Parallel()
	boxtest.RequireRoot(t)
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "nr_inodes=64"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	upper, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(upper)
	if item, err := Skeleton(upper); err != nil {
		t.Fatalf("%s: %v", item, err)
	}
	hosts, mtab, spare := filepath.Join(dir, "etc/hosts"), filepath.Join(dir, "etc/mtab"), filepath.Join(dir, "workspace/spare")
	if err := errors.Join(os.Remove(hosts), os.Remove(mtab), os.Lchown(filepath.Join(dir, "etc/hostname"), 0, 0), os.WriteFile(spare, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	for i := 0; err == nil; i++ {
		err = os.WriteFile(filepath.Join(dir, "workspace", strconv.Itoa(i)), nil, 0o600)
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	if item, err := Skeleton(upper); err != nil {
		t.Fatalf("without free space, %s: %v", item, err)
	}
	if err := os.Remove(spare); err != nil {
		t.Fatal(err)
	}
	if item, err := Skeleton(upper); err != nil {
		t.Fatalf("with space for one inode, %s: %v", item, err)
	}
	_, first := os.Lstat(hosts)
	_, second := os.Lstat(mtab)
	if (first == nil) == (second == nil) {
		t.Errorf("there is space for one link: first = %v, second = %v, want (first == nil) != (second == nil)",
			first, second)
	}
	// A link that an earlier version has kept for PID 1 is the box user's as well: elsewhere, what belongs to PID 1 counts as no change of a program.
	if info, err := os.Lstat(filepath.Join(dir, "etc/hostname")); err != nil || info.Sys().(*syscall.Stat_t).Uid != isolation.BoxUID {
		t.Errorf("info = %+v, err = %v, want no error and info.Sys().(*syscall.Stat_t).Uid == isolation.BoxUID",
			info, err)
	}
}
