// SPDX-License-Identifier: Apache-2.0

package overlay

import (
	"errors"
	"os"
	"path/filepath"
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
			for link := range isolation.RootLinks() {
				at := filepath.Join(dir, link)
				return errors.Join(os.Remove(at), os.Symlink("/elsewhere", at))
			}
			return nil
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
