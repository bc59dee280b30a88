// SPDX-License-Identifier: Apache-2.0

package images_test

import (
	"archive/tar"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/internal/quantity"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client/images"
)

// does runs the program of an image in a session that lives, and returns what it has printed.
func does(t *testing.T, d *boxtest.Daemon, id string, args ...string) string {
	t.Helper()
	r, err := d.Exec(t.Context(), id, &api.ExecRequest{Argv: append([]string{"/bin/program"}, args...)})
	if err != nil || r.Status != "exited" {
		t.Fatalf("%q in %s: %v, %+v\n%s", args, id, err, r, d.Log())
	}
	return r.Stdout + r.Stderr
}

// tree lists all that is in a directory, with modes and contents.
func tree(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(dir, func(name string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		b.WriteString(name + " " + info.Mode().String() + " " + info.ModTime().String())
		if e.Type().IsRegular() {
			data, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			b.WriteString(" " + digest(data))
		}
		b.WriteByte('\n')
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// What programs change of a root they can write to is theirs alone, for as long as the session lives; the image stays
// as it is, and what every box has is not theirs to move.
func TestARootThatCanBeWrittenTo(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, boxtest.Lasting)
	d.Warm()
	before := d.Look()
	c := images.Client{Client: d.Client}
	imports(t, d, simple(t, "tools:1", layer(t,
		entry{name: "usr/lib/old", content: "old"}, entry{name: "usr/lib/dir/in", content: "in"}, entry{name: "etc/passwd", content: "root:x:0:0::/root:/bin/sh\n"},
		entry{name: "opt/a", content: "a"}, entry{name: "var", kind: tar.TypeSymlink, link: "/usr"}, entry{name: "closed", content: "c", mode: 0o600},
	)).layout(t), "")
	stored := tree(t, treesDir(t, d))
	for _, id := range []string{"a", "b"} {
		s, _, err := d.Create(t.Context(), &api.SessionRequest{ID: id, Image: new("tools:1"), ReadOnlyRoot: new(false), WorkspaceQuota: new(16 * quantity.MiB), WorkspaceInodes: new(200)})
		if err != nil || s.ReadOnlyRoot {
			t.Fatalf("%v, %+v\n%s", err, s, d.Log())
		}
	}
	if got := does(t, d, "a", "ls=/", "write=/usr/lib/old", "write=/usr/lib/new", "remove=/usr/lib/dir/in", "write=/etc/new", "write=/opt/b", "write=/top", "write=/var/x", "write=/workspace/x", "write=/tmp/x",
		"write=/root/.x", "write=/closed", "cat=/etc/hostname", "cat=/usr/lib/old", "cat=/dev/null"); got !=
		"app bin closed data dev drives etc home media mnt opt proc run skills srv tmp usr var workspace \nwrite=/root/.x open /root/.x: no such file or directory\na\nwritten" {
		t.Errorf("writes: %q", got)
	}
	if got := does(t, d, "a", "ls=/usr/lib", "ls=/usr/lib/dir", "ls=/opt", "ls=/var"); got != "dir new old \n\na b \nlib run tmp x \n" {
		t.Errorf("afterwards: %q", got)
	}
	if got := does(t, d, "b", "ls=/usr/lib", "ls=/usr/lib/dir", "ls=/opt", "cat=/usr/lib/old"); got != "dir old \nin \na \nold" {
		t.Errorf("in another session: %q", got)
	}
	d.Kill()
	d.Restart()
	if got := does(t, d, "a", "cat=/usr/lib/old", "write=/usr/lib/later", "cat=/usr/lib/later"); got != "writtenwritten" {
		t.Errorf("after boxd was killed: %q", got)
	}
	if now := tree(t, treesDir(t, d)); now != stored {
		t.Errorf("the image was\n%s\nand is\n%s", stored, now)
	}
	if err := errors.Join(d.Delete(t.Context(), "a"), d.Delete(t.Context(), "b"), c.Delete(t.Context(), "tools:1")); err != nil {
		t.Fatal(err)
	}
	boxtest.Eventually(t, "the tree is gone", func() bool { return trees(t, d) == 0 })
	d.NothingLeft(before)
}
