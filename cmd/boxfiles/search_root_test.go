// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation/files"
)

// The upper layer is compared with the image name by name. Symbolic links of the image are not
// followed, and more changes than the bound are reported as such.
func TestChangesListWhatDiffersFromTheImage(t *testing.T) {
	t.Parallel()
	image, changed := t.TempDir(), t.TempDir()
	writeTree(t, image, map[string]string{"usr/lib/same": "old", "usr/lib/old": "old", "usr/was/in": "old", "away/x": "old"})
	if err := os.Symlink("usr", filepath.Join(image, "link")); err != nil {
		t.Fatal(err)
	}
	writeTree(t, changed, map[string]string{"usr/lib/old": "new", "usr/lib/new": "new", "link/lib/same": "new", "away": "new"})
	ownFiles(t, changed)
	req := &files.Diff{Image: []byte(image), Changed: []byte(changed), Walk: 100, Limit: 100}
	a, err := diffOverlay(req)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range a.Changes {
		got = append(got, c.What+" "+string(c.Entry.Path))
	}
	if want := "changed /away, changed /link, created /link/lib, created /link/lib/same, created /usr/lib/new, changed /usr/lib/old"; strings.Join(got, ", ") != want {
		t.Errorf("%q, want %s", got, want)
	}
	req.Limit = 1
	if a, err := diffOverlay(req); err != nil || len(a.Changes) != 1 || a.Cut == "" || a.Created+a.Changed != 6 {
		t.Errorf(`one of them: a = %+v, err = %v, want no error and len(a.Changes) == 1 and a.Cut != "" and a.Created + a.Changed == 6`,
			a, err)
	}
	req.Walk = 2
	if a, err := diffOverlay(req); err == nil {
		t.Errorf("with more entries than the limit: %+v", a)
	}
}

// ownFiles gives files to a user other than root.
func ownFiles(t *testing.T, dir string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(name string, _ os.DirEntry, err error) error {
		if err == nil && os.Getuid() == 0 {
			err = unix.Lchown(name, 1000, 1000)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
