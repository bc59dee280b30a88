// SPDX-License-Identifier: Apache-2.0

package images_test

import (
	"archive/tar"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

// The changes of programs to an image become another image: with removals, other file types, links, and modes. Mounts of the box,
// and what every box has, are no part of it. The session and its image are unchanged.
func TestWhatABoxHasChangedBecomesAnImage(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, "[images]\nmax_bytes = \"64MiB\"\nmax_entries = 200\n")
	d.Warm()
	before := d.Look()
	c := d.Client
	imports(t, d, simple(t, "tools:1", layer(t, entry{name: "usr/lib/old", content: "old"}, entry{name: "usr/lib/dir/in", content: "in"}, entry{name: "opt/a", content: "a"},
		entry{name: "var/run", kind: tar.TypeSymlink, link: "/run"}, entry{name: "away/x", content: "x"}, entry{name: "closed", content: "c", mode: 0o600}, entry{name: "link", kind: tar.TypeSymlink, link: "usr/lib"})).layout(t), "")
	_, _, err := d.CreateSession(t.Context(), &api.SessionRequest{ID: "a", Image: new("tools:1"), ReadOnlyRoot: new(false)})
	if err != nil {
		t.Fatalf("%v\n%s", err, d.Log())
	}
	if got := does(t, d, "a", "write=/usr/lib/old", "remove=/usr/lib/dir/in", "remove=/away/x", "remove=/away", "write=/away", "write=/etc/new", "write=/workspace/mine", "write=/tmp/x", "write=/home/box/x",
		"write=/usr/bin", "setuid=/usr/lib/old", "hardlink=/usr/lib/old:/opt/twin", "symlink=/etc/shadow:/usr/lib/leads", "mark=/opt"); !strings.HasPrefix(got, "trusted.overlay.redirect operation not permitted") {
		t.Errorf(`writes: got %q, want got starting with "trusted.overlay.redirect operation not permitted"`, got)
	}
	img, err := c.CommitImage(t.Context(), "a", &api.ImageCommit{Name: "tools:2", Env: map[string]string{"COLOR": "blue"}})
	if err != nil {
		t.Fatalf("%v\n%s", err, d.Log())
	}
	first, err := c.Image(t.Context(), "tools:1")
	if want := []string{programVariable + "=1", "HOME=/root", "COLOR=blue"}; err != nil || img.Form != "commit" || img.Layers != 1 || !slices.Equal(img.Config.Env, want) || img.Config.User != "nobody" || img.Config.WorkingDir != "/srv/app" ||
		!slices.Equal(img.Config.Cmd, first.Config.Cmd) || img.Digest == first.Digest {
		t.Errorf("err = %v, img = %+v", err, img)
	}
	if got := runs(t, d, "tools:2"); got != "blue\n/srv/app\n" {
		t.Errorf(`without a command: got %q, want "blue\n/srv/app\n"`, got)
	}
	args := []string{"ls=/", "ls=/usr", "ls=/usr/lib", "ls=/usr/lib/dir", "ls=/opt", "ls=/var", "cat=/away", "cat=/opt/twin", "cat=/usr/lib/old", "mode=/usr/lib/old", "mode=/closed", "cat=/etc/new", "ls=/workspace", "ls=/tmp", "ls=/link"}
	want := "app away bin closed code data dev drives etc home link media mnt opt proc run skills src srv sys tmp usr var work workspace \nbin lib \ndir leads old \n\na twin \nlib run tmp \nwrittenwrittenwritten100755\n100604\nwritten\n\ndir leads old \n"
	if got := runs(t, d, "tools:2", args...); got != want {
		t.Errorf("in the image:\n%q, want\n%q", got, want)
	}
	tree := filepath.Join(treesDir(t, d), onlyTree(t, d, "leads"))
	if info, err := os.Lstat(tree + "/usr/lib/old"); err != nil || info.Mode() != 0o755 {
		t.Errorf("on the disk: info = %v, err = %v, want no error and info.Mode() == 0o755", info, err)
	}
	if to, err := os.Readlink(tree + "/var/run"); err != nil || to != "/run" {
		t.Errorf(`a link of the image that boxes hide: to = %q, err = %v, want no error and to == "/run"`, to, err)
	}
	// The session goes on, and its image is unchanged; a second commit has the same content and the same tree.
	if got := does(t, d, "a", "cat=/usr/lib/old", "write=/top"); got != "written" {
		t.Errorf(`in the session: got %q, want "written"`, got)
	}
	if got := runs(t, d, "tools:1", "cat=/usr/lib/old", "ls=/opt", "cat=/away/x"); got != "olda \nx" {
		t.Errorf(`in another one: got %q, want "olda \nx"`, got)
	}
	if err := c.DeleteImage(t.Context(), "tools:1"); err != nil || does(t, d, "a", "remove=/top") != "" {
		t.Fatal(err)
	}
	again, err := c.CommitImage(t.Context(), "a", &api.ImageCommit{Name: "tools:3", Cmd: []string{}, Entrypoint: []string{"/bin/program", "cat=/etc/new"}})
	if err != nil || again.Config.User != "" || runs(t, d, "tools:3") != "written" {
		t.Errorf(`where the image is not there any more: err = %v, again = %+v, want no error and again.Config.User == "" and runs(t, d, "tools:3") == "written"`,
			err, again)
	}
	t.Run("refused", func(t *testing.T) { refusesCommits(t, d, c) })
	if err := errors.Join(d.DeleteSession(t.Context(), "a"), c.DeleteImage(t.Context(), "tools:2"), c.DeleteImage(t.Context(), "tools:3")); err != nil {
		t.Fatal(err)
	}
	boxtest.Eventually(t, "no directory tree of an image is left", func() bool { return trees(t, d) == 0 })
	d.NothingLeft(before)
}

// refusesCommits requests commits that must be refused, and leave nothing.
func refusesCommits(t *testing.T, d *boxtest.Daemon, c *client.Client) {
	there := trees(t, d)
	for _, test := range []struct{ do, undo, want string }{
		{"fill=/opt/big", "remove=/opt/big", "images.max_bytes"},
		{"many=/opt/x", "fewer=/opt/x", "images.max_entries"},
	} {
		if got := does(t, d, "a", test.do); got != "" {
			t.Errorf(`%s: got %q, want ""`, test.do, got)
		}
		if img, err := c.CommitImage(t.Context(), "a", &api.ImageCommit{Name: "tools:4"}); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: img = %+v, err = %v, want an error containing %q", test.do, img, err, test.want)
		}
		does(t, d, "a", test.undo)
	}
	if _, err := c.Image(t.Context(), "tools:4"); err == nil || trees(t, d) != there {
		t.Errorf("%d trees where there were %d, %v", trees(t, d), there, err)
	}
	scratch := filepath.Join(d.State, "images/scratch")
	boxtest.Eventually(t, "the refused commit has left no directory tree", func() bool {
		left, err := os.ReadDir(scratch)
		return err == nil && len(left) == 0
	})
}

// changes runs the verbs of the program that are only used with images that boxes create.
func changes(what, from, to string) error {
	switch what {
	case "hardlink":
		return os.Link(from, to)
	case "symlink":
		return os.Symlink(from, to)
	case "mkdir":
		return os.Mkdir(from, 0o755)
	case "closed":
		return os.Chmod(from, 0)
	case "many", "fewer":
		for i := range 250 {
			var err error
			if at := from + strconv.Itoa(i); what == "many" {
				err = os.WriteFile(at, nil, 0o600)
			} else {
				err = os.Remove(at)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
	return unix.EINVAL
}

// onlyTree returns the one tree whose /usr/lib has a file of that name.
func onlyTree(t *testing.T, d *boxtest.Daemon, name string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(treesDir(t, d), "*", "rootfs/usr/lib", name))
	if err != nil || len(found) != 1 {
		found, err = filepath.Glob(filepath.Join(treesDir(t, d), "*", "usr/lib", name))
	}
	if err != nil || len(found) != 1 {
		t.Fatalf("found = %q, err = %v, want no error and len(found) == 1", found, err)
	}
	rel, err := filepath.Rel(treesDir(t, d), filepath.Dir(filepath.Dir(filepath.Dir(found[0]))))
	if err != nil {
		t.Fatal(err)
	}
	return rel
}

// Files that root has installed become part of an image, whoever could read them, and users can be added: the file of users is no
// mount, whatever the name of the box user is.
func TestAnImageIsMadeOfWhatRootHasDone(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	c := d.Client
	entries := append(installed(t, "sh", "cat", "mkdir", "mv", "cp", "chmod", "chown"),
		entry{name: "etc/", kind: tar.TypeDir}, entry{name: "etc/passwd", content: "root:x:0:0:root:/root:/bin/sh\n"}, entry{name: "etc/group", content: "root:x:0:\n"}, entry{name: "srv/old", content: "old"})
	imports(t, d, simple(t, "tools:1", layer(t, entries...)).layout(t), "")
	d.NewSession(t, api.SessionRequest{ID: "a", Image: new("tools:1"), ReadOnlyRoot: new(false), UserName: new("user"), Home: new("/home/user")})
	if got := d.Sh(t, "a", "cat /etc/passwd"); got != "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:user:/home/user:/bin/sh\n" {
		t.Errorf(`users: got %q, want "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:user:/home/user:/bin/sh\n"`, got)
	}
	if diff, err := c.DiffRoot(t.Context(), "a", &api.RootDiff{}); err != nil || diff.Counts != (api.ChangeCounts{}) {
		t.Errorf("nothing has been done: diff = %+v, err = %v, want no error and diff.Counts == api.ChangeCounts{}",
			diff, err)
	}
	d.Sh(t, "a", "echo x:x:7: >> /etc/group; echo x > /srv/old")
	if done, err := c.DiscardRoot(t.Context(), "a", &api.RootDiscard{}); err != nil || done != (api.RootDiscarded{Restored: 2}) {
		t.Errorf("done = %+v, err = %v, want no error and done == api.RootDiscarded{Restored: 2}", done, err)
	}
	if got := d.Sh(t, "a", "cat /etc/group /etc/passwd"); got != "root:x:0:\nuser:x:1000:root\nroot:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:user:/home/user:/bin/sh\n" {
		t.Errorf(`users after a discard: got %q, want "root:x:0:\nuser:x:1000:root\nroot:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:user:/home/user:/bin/sh\n"`,
			got)
	}
	d.Output(t, "a", api.ExecRequest{User: "root", Argv: []string{"/bin/sh", "-euc", `
		mkdir -m 700 /srv/closed; echo installed > /srv/closed/file; chmod 400 /srv/closed/file; chown 33:33 /srv/closed
		cp /etc/passwd /etc/passwd.new; echo service:x:33:33::/srv/closed:/bin/sh >> /etc/passwd.new; mv /etc/passwd.new /etc/passwd
		cat /srv/closed/file /srv/old`}})
	if got := d.Result(t, "a", boxtest.Shell("cat /srv/closed/file")); !strings.Contains(got.Stderr, "ermission denied") {
		t.Errorf(`the box user reads %s, want got.Stderr containing "ermission denied"`, boxtest.Show(got))
	}
	if _, err := c.CommitImage(t.Context(), "a", &api.ImageCommit{Name: "tools:2"}); err != nil {
		t.Fatal(err)
	}
	r, err := d.Run(t.Context(), &api.OneShotRequest{Session: api.SessionRequest{Image: new("tools:2")}, Exec: api.ExecRequest{Argv: []string{"sh", "-c", "cat /srv/closed/file /srv/old; cat /etc/passwd"}}})
	if err != nil || !strings.HasPrefix(r.Stdout, "installed\nold") || !strings.Contains(r.Stdout, "service:x:33:33::/srv/closed:/bin/sh\n") {
		t.Errorf(`r = %+v, err = %v, want no error and r.Stdout starting with "installed\nold" and r.Stdout containing "service:x:33:33::/srv/closed:/bin/sh\n"`,
			r, err)
	}
}

// Root of a box keeps the group that may write to /, /etc and other directories of PID 1 when su, cron and similar programs give it
// the groups of /etc/group, also if the image has another name for it.
func TestRootOfAnImageIsInTheGroupOfTheBoxUser(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	entries := append(installed(t, "sh", "touch", "id", "setpriv"), entry{name: "etc/passwd", content: "root:x:0:0:root:/root:/bin/sh\nnode:x:1000:1000::/home/node:/bin/sh\n"}, entry{name: "etc/group", content: "root:x:0:\nnode:x:1000:\n"})
	imports(t, d, simple(t, "node:1", layer(t, entries...)).layout(t), "")
	s := d.NewSession(t, api.SessionRequest{ID: "a", Image: new("node:1"), ReadOnlyRoot: new(false)})
	again := ""
	if s.Enforcement["pids"] != "rlimit" { // without cgroups root sets no groups
		again = "setpriv --reuid=0 --regid=0 --init-groups "
	}
	if got := d.Output(t, "a", api.ExecRequest{User: "root", Argv: []string{"/bin/sh", "-euc", again + "sh -euc 'touch /x /etc/x /opt/x /var/lib/x; id -nG root'"}}); got != "root node\n" {
		t.Errorf(`got %q, want "root node\n"`, got)
	}
}
