// SPDX-License-Identifier: Apache-2.0

package images_test

import (
	"archive/tar"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/limits"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
)

// does runs the image's program in a running session, and returns its output.
func does(t *testing.T, d *boxtest.Daemon, id string, args ...string) string {
	t.Helper()
	r, err := d.Exec(t.Context(), id, &api.ExecRequest{Argv: append([]string{"/bin/program"}, args...)})
	if err != nil || r.Status != "exited" {
		t.Fatalf("%q in %s: err = %v, r = %+v, want no error and r.Status == \"exited\":\n%s",
			args, id, err, r, d.Log())
	}
	return r.Stdout + r.Stderr
}

// tree lists everything in a directory, with modes and contents.
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

// Changes of programs to a writable root are private to their session and last as long as it; the image is unchanged, and programs
// cannot replace the files that every box has.
func TestARootThatCanBeWrittenTo(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, boxtest.Lasting)
	d.Warm()
	before := d.Look()
	c := d.Client
	imports(t, d, simple(t, "tools:1", layer(t,
		entry{name: "usr/lib/old", content: "old"}, entry{name: "usr/lib/dir/in", content: "in"}, entry{name: "etc/passwd", content: "root:x:0:0::/root:/bin/sh\n"},
		entry{name: "opt/a", content: "a"}, entry{name: "var", kind: tar.TypeSymlink, link: "/usr"}, entry{name: "closed", content: "c", mode: 0o600},
	)).layout(t), "")
	stored := tree(t, treesDir(t, d))
	for _, id := range []string{"a", "b"} {
		s, _, err := d.CreateSession(t.Context(), &api.SessionRequest{ID: id, Image: new("tools:1"), ReadOnlyRoot: new(false), Patch: limits.Patch{WorkspaceQuota: new(16 * quantity.MiB), WorkspaceInodes: new(200)}})
		if err != nil || s.ReadOnlyRoot {
			t.Fatalf("err = %v, s = %+v, want no error and s.ReadOnlyRoot == false:\n%s", err, s, d.Log())
		}
	}
	if got := does(t, d, "a", "ls=/", "write=/usr/lib/old", "write=/usr/lib/new", "remove=/usr/lib/dir/in", "write=/etc/new", "write=/opt/b", "write=/top", "write=/var/x", "write=/workspace/x", "write=/tmp/x",
		"write=/root/.x", "write=/closed", "cat=/etc/hostname", "cat=/usr/lib/old", "cat=/dev/null"); got !=
		"app bin closed code data dev drives etc home media mnt opt proc run skills src srv sys tmp usr var work workspace \nwrite=/root/.x open /root/.x: no such file or directory\na\nwritten" {
		t.Errorf("writes: got %q", got)
	}
	if got := does(t, d, "a", "ls=/usr/lib", "ls=/usr/lib/dir", "ls=/opt", "ls=/var"); got != "dir new old \n\na b \nlib run tmp x \n" {
		t.Errorf(`afterwards: got %q, want "dir new old \n\na b \nlib run tmp x \n"`, got)
	}
	diff, err := c.DiffRoot(t.Context(), "a", &api.RootDiff{})
	var paths []string
	for _, f := range append(diff.Created, diff.Changed...) {
		paths = append(paths, f.Path)
	}
	if got := strings.Join(paths, " "); err != nil || got != "/etc/new /opt/b /top /usr/lib/new /var/x /closed /usr/lib/old" || len(diff.Removed) != 1 || diff.Removed[0].Path != "/usr/lib/dir/in" || diff.Counts != (api.ChangeCounts{Created: 5, Changed: 2, Removed: 1}) {
		t.Errorf("the changes: err = %v, diff = %+v", err, diff)
	}
	if diff, err := c.DiffRoot(t.Context(), "b", &api.RootDiff{}); err != nil || diff.Counts != (api.ChangeCounts{}) {
		t.Errorf("changes of an unchanged session: err = %v, diff = %+v, want no error and diff.Counts == api.ChangeCounts{}",
			err, diff)
	}
	if got := does(t, d, "b", "ls=/usr/lib", "ls=/usr/lib/dir", "ls=/opt", "cat=/usr/lib/old"); got != "dir old \nin \na \nold" {
		t.Errorf(`in another session: got %q, want "dir old \nin \na \nold"`, got)
	}
	d.Kill()
	d.Restart()
	if got := does(t, d, "a", "cat=/usr/lib/old", "write=/usr/lib/later", "cat=/usr/lib/later"); got != "writtenwritten" {
		t.Errorf(`after boxd was killed: got %q, want "writtenwritten"`, got)
	}
	if now := tree(t, treesDir(t, d)); now != stored {
		t.Errorf("the image was\n%s\nand is\n%s", stored, now)
	}
	if err := errors.Join(d.DeleteSession(t.Context(), "a"), d.DeleteSession(t.Context(), "b"), c.DeleteImage(t.Context(), "tools:1")); err != nil {
		t.Fatal(err)
	}
	boxtest.Eventually(t, "the directory tree of the image is removed", func() bool { return trees(t, d) == 0 })
	d.NothingLeft(before)
}

// more runs the verbs of the program that are only used with writable roots.
func more(what, rest string) error {
	from, to, _ := strings.Cut(rest, ":")
	switch what {
	case "rename":
		return os.Rename(from, to)
	case "setuid":
		return os.Chmod(rest, 0o755|fs.ModeSetuid)
	case "mark": // like overlayfs's own marks on disk
		for _, name := range []string{"user.overlay.redirect", "user.overlay.opaque", "trusted.overlay.redirect", "trusted.overlay.opaque", "user.mine"} {
			err := unix.Setxattr(rest, name, []byte("/../../etc"), 0)
			if strings.HasPrefix(name, "trusted.") || name == "user.mine" {
				fmt.Println(name, err)
			}
		}
	case "fill":
		f, err := os.Create(rest)
		if err != nil {
			return err
		}
		defer f.Close()
		for range 64 {
			if _, err := f.Write(make([]byte, 1<<20)); errors.Is(err, unix.EDQUOT) || errors.Is(err, unix.ENOSPC) {
				fmt.Println("full")
				return nil
			} else if err != nil {
				return err
			}
		}
	default:
		return changes(what, from, to)
	}
	return nil
}

// uppers returns the directories where running sessions keep their changes to images.
func uppers(t *testing.T, d *boxtest.Daemon) []string {
	t.Helper()
	list, err := filepath.Glob(filepath.Join(filepath.Dir(treesDir(t, d)), "workspaces", "*", "upper"))
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// A program that may change its root can mislead neither the host nor boxd's own files in the box; what it creates there counts
// against its quota.
func TestARootThatCanBeWrittenToIsNoWayOut(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, boxtest.MountSources)
	d.Warm()
	before := d.Look()
	c := d.Client
	lent := d.NamedMountSource(t, "one", 0)
	imports(t, d, simple(t, "tools:1", layer(t, entry{name: "usr/lib/old", content: "old"}, entry{name: "opt/a", content: "a"}, entry{name: "srv/b", content: "b"})).layout(t), "")
	s, _, err := d.CreateSession(t.Context(), &api.SessionRequest{
		ID: "a", Image: new("tools:1"), ReadOnlyRoot: new(false), Patch: limits.Patch{WorkspaceQuota: new(16 * quantity.MiB), WorkspaceInodes: new(200)}, Mounts: []api.Mount{{Source: lent, Target: "/opt/in/one", Mode: "ro"}},
	})
	if err != nil {
		t.Fatalf("%v\n%s", err, d.Log())
	}
	if _, _, err := d.AddMount(t.Context(), "a", &api.MountRequest{Source: lent, Target: "/srv/in/one", Mode: "ro"}); err != nil {
		t.Errorf("a mount added to a running session: %v", err)
	}
	if got := does(t, d, "a", "cat=/opt/a", "cat=/opt/in/one/name", "cat=/srv/b", "cat=/srv/in/one/name"); got != "aonebone" {
		t.Errorf(`mounts beside what is in the image: got %q, want "aonebone"`, got)
	}
	if got := does(t, d, "a", "rename=/var/lib:/var/moved", "rename=/var:/moved", "rename=/etc:/moved", "rename=/var/run:/var/x", "rename=/proc:/moved", "remove=/var/lib/boxd/boxfiles", "write=/var/lib/boxd/x", "write=/skills/x",
		"write=/var/lib/boxd/changed/x", "write=/var/lib/boxd/image/x", "mknod=/usr/null"); strings.Count(got, "not permitted")+strings.Count(got, "permission denied")+strings.Count(got, "busy")+strings.Count(got, "read-only") != 11 {
		t.Errorf(`files that every box has: got %q, want strings.Count(got, "not permitted") + strings.Count(got, "permission denied") + strings.Count(got, "busy") + strings.Count(got, "read-only") == 11`,
			got)
	}
	if got := does(t, d, "a", "setuid=/bin/program", "id", "mark=/usr/lib", "mark=/usr/lib/old", "cat=/usr/lib/old"); got != "1000 1000\n"+strings.Repeat("trusted.overlay.redirect operation not permitted\ntrusted.overlay.opaque operation not permitted\nuser.mine <nil>\n", 2)+"old" {
		t.Errorf("modes and marks: got %q", got)
	}
	for line := range strings.SplitSeq(does(t, d, "a", "cat=/proc/self/mountinfo"), "\n") {
		if f := strings.Fields(line); len(f) > 5 && (f[4] == "/" && !strings.HasPrefix(f[5], "rw,nosuid,nodev") || strings.HasPrefix(f[4], "/var/lib/boxd") && !strings.HasPrefix(f[5], "ro,nosuid,nodev") || f[4] == "/mnt" || f[4] == "/media") {
			t.Errorf("mounted is %s", line)
		}
	}
	if n := len(uppers(t, d)); n != 1 {
		t.Errorf("%d sessions have something to change", n)
	}
	for _, upper := range uppers(t, d) {
		for _, dir := range []string{upper, filepath.Dir(filepath.Dir(upper))} {
			if info, err := os.Stat(filepath.Dir(dir)); err != nil || info.Mode().Perm() != 0o700 {
				t.Errorf("%s is open: info = %v, err = %v, want no error and info.Mode().Perm() == 0o700",
					filepath.Dir(dir), info, err)
			}
		}
		for _, name := range []string{"usr/lib", "usr/lib/old"} {
			for _, mark := range []string{"user.overlay.redirect", "trusted.overlay.redirect", "trusted.overlay.opaque"} {
				if n, err := unix.Lgetxattr(filepath.Join(upper, name), mark, nil); err == nil {
					t.Errorf("%s of %s has %d bytes", mark, name, n)
				}
			}
		}
	}
	if f, err := d.StatFile(t.Context(), "a", &api.FileStat{Path: "/usr/lib/old"}); err != nil || f.Size != 3 {
		t.Errorf("files by the API: f = %+v, err = %v, want no error and f.Size == 3", f, err)
	}
	// On a host without quotas, where boxd is configured to run without them, there is no limit to reach.
	if kept := s.Enforcement["workspace"]; kept != "none" {
		if got := does(t, d, "a", "fill=/usr/lib/big", "write=/workspace/x", "remove=/usr/lib/big", "write=/workspace/x"); !strings.HasPrefix(got, "full\n") || strings.Count(got, "quota")+strings.Count(got, "no space") > 1 {
			t.Errorf(`kept by %s: got %q, want got starting with "full\n" and strings.Count(got, "quota") + strings.Count(got, "no space") <= 1`,
				kept, got)
		}
	}
	if err := errors.Join(d.DeleteSession(t.Context(), "a"), c.DeleteImage(t.Context(), "tools:1")); err != nil {
		t.Fatal(err)
	}
	boxtest.Eventually(t, "the directory tree of the image is removed", func() bool { return trees(t, d) == 0 })
	d.NothingLeft(before)
}
