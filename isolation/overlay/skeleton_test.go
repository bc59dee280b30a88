// SPDX-License-Identifier: Apache-2.0

package overlay

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/isolation"
)

// In the upper layer of a restarted session PID 1 finds its own skeleton and accepts it. It refuses anything else in its place:
// nothing that programs make can take the place of a mount point, or of boxfiles.
func TestASkeletonIsMadeTwiceAndTakesNothingElse(t *testing.T) {
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
				t.Errorf("%s: %v", item, err)
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
		t.Errorf("what a program has put there: %q, %v", got, err)
	}
	for name, want := range map[string]os.FileMode{"etc": 0o775, "var": os.ModeSticky | 0o775, ".": os.ModeSticky | 0o775} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode()&(os.ModePerm|os.ModeSticky) != want || info.Sys().(*syscall.Stat_t).Gid != isolation.BoxGID {
			t.Errorf("%s is %+v, %v", name, info, err)
		}
	}
}
