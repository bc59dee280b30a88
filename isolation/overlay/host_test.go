// SPDX-License-Identifier: Apache-2.0

package overlay

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/boxtest"
)

func TestWhatTheHostHasMountedBelowIsFound(t *testing.T) {
	t.Parallel()
	const mountinfo = `21 1 0:20 / / ro - tmpfs tmpfs rw
22 21 8:1 /usr /usr ro - ext4 /dev/sda1 rw
23 22 8:2 / /usr/local ro - ext4 /dev/sda2 rw
24 23 8:3 / /usr/local/share ro - ext4 /dev/sda3 rw
25 22 8:4 / /usr/local-other ro - ext4 /dev/sda4 rw
26 22 8:5 / /usr/with\040space\134 ro - ext4 /dev/sda5 rw
27 21 8:6 / /usrx/y ro - ext4 /dev/sda6 rw
28 21 8:7 / /etc/ssl ro - ext4 /dev/sda7 rw
29 23 8:8 / /usr/local ro - ext4 /dev/sda8 rw
30 21 8:9 / /srv/usr/local rw - overlay overlay rw
short
`
	want := []string{"/usr/local", "/usr/local-other", `/usr/with space\`}
	if got := mountedBelow(mountinfo, []tree{{name: "usr"}, {name: "lib64"}}); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if got := mountedBelow(mountinfo, nil); len(got) != 0 {
		t.Errorf("of no tree: %q", got)
	}
}

func TestTreesOfTheHostAreKnownByTheirPlace(t *testing.T) {
	t.Parallel()
	for target, want := range map[string]bool{"/usr": true, "/lib64": true, "/": false, "": false, "/usr/lib": false, "/workspace": false, "/srv": false} {
		if isTree(target) != want {
			t.Errorf("%q: %t", target, !want)
		}
	}
}

// The copy of /etc is made with the rights of the box user, and skips everything that is no file,
// directory or link.
func TestOnlyWhatTheBoxUserMayReadIsCopied(t *testing.T) {
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
	restore := asBoxUser()
	item, err := copyDir(in, out, "etc", "/etc", baseDepth)
	restore()
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
	if _, err := copyDir(in, out, "etc", "/etc", 0); !errors.Is(err, unix.ENAMETOOLONG) {
		t.Errorf("deeper than it may be: %v", err)
	}
}
