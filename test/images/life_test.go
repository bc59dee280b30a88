// SPDX-License-Identifier: Apache-2.0

package images_test

import (
	"archive/tar"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
)

// cats returns a file of a running session.
func cats(t *testing.T, d *boxtest.Daemon, id, file string) string {
	t.Helper()
	r, err := d.Exec(t.Context(), id, &api.ExecRequest{Argv: []string{"/bin/program", "cat=" + file}})
	if err != nil {
		t.Fatalf("%v\n%s", err, d.Log())
	}
	return r.Stdout
}

// A session keeps its image, whatever happens to the image's name, to boxd and to the keeper; when the last such session has
// ended, nothing of the image is left.
func TestASessionKeepsItsImage(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, boxtest.Lasting+"[profiles.default]\nimage = \"now:1\"\n[profiles.host]\n[profiles.locked]\nlocked = [\"image\"]\n[sessions]\ndefault_profile = \"host\"\n")
	d.Warm()
	before := d.Look()
	c := d.Client
	old := imports(t, d, simple(t, "now:1", layer(t, entry{name: "version", content: "old"})).layout(t), "")
	twin := imports(t, d, simple(t, "now:1", layer(t, entry{name: "version", content: "old"})).layout(t), "twin:1")
	if twin.Digest != old.Digest || trees(t, d) != 1 {
		t.Errorf("the same twice: %+v, %d trees", twin, trees(t, d))
	}
	if err := c.DeleteImage(t.Context(), "twin:1"); err != nil || trees(t, d) != 1 {
		t.Errorf("one name of two: %v, %d trees", err, trees(t, d))
	}
	for id, req := range map[string]api.SessionRequest{"named": {Image: new("now:1")}, "profile": {Profile: "default"}, "digest": {Image: &old.Digest}} {
		req.ID = id
		s, _, err := d.CreateSession(t.Context(), &req)
		if err != nil {
			t.Fatalf("%v\n%s", err, d.Log())
		}
		if got := cats(t, d, id, "/version"); got != "old" {
			t.Errorf(`%s, %s: got %q, want "old"`, id, s.Image, got)
		}
	}
	locked := api.SessionRequest{ID: "locked", Profile: "locked", Image: new("now:1")}
	if _, _, err := d.CreateSession(t.Context(), &locked); boxtest.StatusOf(err) != 403 {
		t.Errorf("a profile that locks its image: err = %v, want boxtest.StatusOf(err) == 403", err)
	}
	imports(t, d, simple(t, "now:1", layer(t, entry{name: "version", content: "young"})).layout(t), "")
	keeper := d.Keeper()
	d.Kill()
	left := treesDir(t, d) + "/.doomed-left" // of a removal that was interrupted
	if err := errors.Join(os.Mkdir(left, 0o700), os.WriteFile(left+"/file", nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(keeper, unix.SIGKILL); err != nil { // the next one finishes it
		t.Fatal(err)
	}
	d.Restart()
	boxtest.Eventually(t, "the directory tree of the image that was removed earlier is gone", func() bool {
		_, err := os.Lstat(left)
		return errors.Is(err, fs.ErrNotExist)
	})
	if err := c.DeleteImage(t.Context(), "now:1"); err != nil {
		t.Fatal(err)
	}
	if _, err := tries(t.Context(), d.Client, "now:1", "id"); boxtest.StatusOf(err) != 400 {
		t.Errorf("a removed image: err = %v, want boxtest.StatusOf(err) == 400", err)
	}
	boxtest.Eventually(t, "the directory tree of the second image is removed", func() bool { return trees(t, d) == 1 })
	for _, id := range []string{"named", "profile", "digest"} {
		if got := cats(t, d, id, "/version"); got != "old" {
			t.Errorf(`%s, after the removal of its image: got %q, want "old"`, id, got)
		}
		if trees(t, d) != 1 {
			t.Errorf("%d directory trees while %s runs", trees(t, d), id)
		}
		if err := d.DeleteSession(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	boxtest.Eventually(t, "no directory tree of an image is left", func() bool { return trees(t, d) == 0 })
	d.NothingLeft(before)
}

// Warm boxes have the tree of an image that is removed: the tree is removed when they have ended.
func TestBoxesAheadOfNeedKeepNoImage(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, "[profiles.ready]\nimage = \"now:1\"\nread_only_root = false\nwarm = 2\n")
	d.Warm()
	before := d.Look()
	c := d.Client
	for _, version := range []string{"old", "young"} {
		imports(t, d, simple(t, "now:1", layer(t, entry{name: "version", content: version})).layout(t), "")
		boxtest.Eventually(t, "preforked boxes are there, and one directory tree of an image", func() bool {
			s, err := d.Status(t.Context())
			return err == nil && len(s.Warm) == 1 && s.Warm[0].Ready == 2 && trees(t, d) == 1
		})
	}
	d.NewSession(t, api.SessionRequest{ID: "a", Profile: "ready"})
	if got := does(t, d, "a", "cat=/version", "write=/version", "cat=/version"); got != "youngwritten" {
		t.Errorf(`of the image that was: got %q, want "youngwritten"`, got)
	}
	if err := errors.Join(d.DeleteSession(t.Context(), "a"), c.DeleteImage(t.Context(), "now:1")); err != nil {
		t.Fatal(err)
	}
	boxtest.Eventually(t, "no directory tree of an image is left", func() bool { return trees(t, d) == 0 })
	d.NothingLeft(before)
}

// In an image the user of a session has the configured name and home, and the image keeps its other users; links in place of
// these files are not followed.
func TestAUserOfAnImageHasTheNameAndTheHomeOfItsSession(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	imports(t, d, simple(t, "node:1", layer(t,
		entry{name: "etc/passwd", content: "root:x:0:0::/root:/bin/sh\nnode:x:1000:1000::/home/node:/bin/bash\nuser:x:7:7::/:/bin/sh"},
		entry{name: "etc/group", content: "root:x:0:\nnode:x:1000:\n"}, entry{name: "home/node/kept", content: "kept"}, entry{name: "root", kind: tar.TypeDir, mode: 0o700},
	)).layout(t), "")
	imports(t, d, simple(t, "evil:1", layer(t,
		entry{name: "etc/passwd", kind: tar.TypeSymlink, link: "/proc/1/environ"}, entry{name: "etc/group", kind: tar.TypeDir}, entry{name: "home/user", kind: tar.TypeSymlink, link: "/etc"}, entry{name: "root", kind: tar.TypeSymlink, link: "/etc"},
	)).layout(t), "")
	const users = "root:x:0:0::/root:/bin/sh\nuser:x:1000:1000:user:%s:/bin/bash\n"
	for i, tc := range []struct {
		home, others string
		writable     bool
	}{
		{"/home/user", "", false}, {"/home/node", "", false}, {"/root", "kept", false}, {"/home/user", "kept", true}, {"/root", "kept", true},
	} {
		id := fmt.Sprintf("s%d", i)
		d.NewSession(t, api.SessionRequest{ID: id, Image: new("node:1"), UserName: new("user"), Home: &tc.home, ReadOnlyRoot: new(!tc.writable)})
		if got, want := does(t, d, id, "cat=/etc/passwd", "cat=/etc/group"), fmt.Sprintf(users, tc.home)+"root:x:0:\nuser:x:1000:root\n"; got != want {
			t.Errorf("%+v: %q, want %q", tc, got, want)
		}
		if got := cats(t, d, id, "/home/node/kept"); (got == "kept") != (tc.others != "") {
			t.Errorf(`%+v: got %q, want (got == "kept") == (tc.others != "")`, tc, got)
		}
		if got := does(t, d, id, "write="+tc.home+"/x", "cat="+tc.home+"/x"); got != "written" {
			t.Errorf(`%+v: got %q, want "written"`, tc, got)
		}
	}
	for _, home := range []string{"/home/user", "/root"} {
		for _, readOnly := range []bool{true, false} {
			_, _, err := d.CreateSession(t.Context(), &api.SessionRequest{ID: "e", Image: new("evil:1"), Home: &home, ReadOnlyRoot: &readOnly})
			if err == nil || !strings.Contains(err.Error(), home) {
				t.Errorf("%s, %v: err = %v, want an error containing home", home, readOnly, err)
			}
		}
	}
	d.NewSession(t, api.SessionRequest{ID: "e", Image: new("evil:1"), UserName: new("user"), Home: new("/home/other")})
	if got := cats(t, d, "e", "/etc/passwd"); strings.Contains(got, "user") {
		t.Errorf(`got %q, want got without "user"`, got)
	}
}

// A stopped session keeps the tree of its image, whatever happens to the image, and its own changes.
func TestAStoppedSessionKeepsItsImage(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.Warm()
	before := d.Look()
	imports(t, d, simple(t, "now:1", layer(t, entry{name: "version", content: "old"}, entry{name: "gone", content: "old"})).layout(t), "")
	d.NewSession(t, api.SessionRequest{ID: "s", Image: new("now:1"), ReadOnlyRoot: new(false)})
	does(t, d, "s", "write=/mine", "remove=/gone", "write=/etc/own")
	if _, err := d.StopSession(t.Context(), "s"); err != nil {
		t.Fatal(err)
	}
	if err := d.DeleteImage(t.Context(), "now:1"); err != nil {
		t.Fatal(err)
	}
	d.Stop()
	d.Restart()
	if s, err := d.StartSession(t.Context(), "s"); err != nil || s.Image != "now:1" {
		t.Fatalf("s = %+v, err = %v, want no error and s.Image == \"now:1\":\n%s", s, err, d.Log())
	}
	if got := does(t, d, "s", "cat=/version", "cat=/mine", "cat=/etc/own"); got != "oldwrittenwritten" || trees(t, d) != 1 {
		t.Errorf("it has %q, and there are %d trees", got, trees(t, d))
	}
	if got := does(t, d, "s", "cat=/gone"); !strings.Contains(got, "no such file") {
		t.Errorf(`a file that it had removed exists: got %q, want got containing "no such file"`, got)
	}
	if err := d.DeleteSession(t.Context(), "s"); err != nil {
		t.Fatal(err)
	}
	boxtest.Eventually(t, "no directory tree of an image is left", func() bool { return trees(t, d) == 0 })
	d.Warm()
	d.NothingLeft(before)
}

// A mount in a running box hides nothing of an image except at its target, like mount(8): a missing target in a top-level
// directory that is not empty is refused, since it would cover the rest of that directory. In an empty one it is created.
func TestALiveMountHidesNothingBesideIt(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, boxtest.MountSources)
	d.Warm()
	before := d.Look()
	lent := filepath.Join(d.Dir, "lent", "one")
	if err := errors.Join(os.MkdirAll(lent, 0o755), os.WriteFile(lent+"/given", []byte("given\n"), 0o644)); err != nil {
		t.Fatal(err)
	}
	imports(t, d, simple(t, "tools:1", layer(t, entry{name: "opt/tool/run", content: "run\n"}, entry{name: "opt/empty/", kind: tar.TypeDir})).layout(t), "")
	mount := func(target string) error {
		_, _, err := d.AddMount(t.Context(), "a", &api.MountRequest{Source: lent, Target: target, Mode: "ro"})
		return err
	}
	unmount := func(target string) {
		t.Helper()
		if err := d.RemoveMount(t.Context(), "a", target, false); err != nil {
			t.Error(err)
		}
	}
	says := func(want string, args ...string) {
		t.Helper()
		if got := does(t, d, "a", args...); got != want {
			t.Errorf("%q: %q, want %q", args, got, want)
		}
	}
	d.NewSession(t, api.SessionRequest{ID: "a", Image: new("tools:1")})
	boxtest.Refused(t, mount("/opt/new"), http.StatusBadRequest, "target")
	says("empty tool \nrun\n", "ls=/opt", "cat=/opt/tool/run")
	for target, want := range map[string]string{"/opt/empty": "empty tool \nrun\ngiven\n", "/media/new": "empty tool \nrun\ngiven\n"} {
		if err := mount(target); err != nil {
			t.Errorf("%s: %v", target, err)
			continue
		}
		says(want, "ls=/opt", "cat=/opt/tool/run", "cat="+target+"/given")
		unmount(target)
	}
	if err := mount("/opt"); err != nil { // covering everything in it
		t.Fatal(err)
	}
	says("given \n", "ls=/opt")
	unmount("/opt")
	says("empty tool \nrun\n", "ls=/opt", "cat=/opt/tool/run")
	// In a writable root the directory is created beside the others, and removed with the mount; so it is in a new box.
	if err := d.DeleteSession(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	d.NewSession(t, api.SessionRequest{ID: "a", Image: new("tools:1"), ReadOnlyRoot: new(false)})
	if err := mount("/opt/new"); err != nil {
		t.Fatal(err)
	}
	says("empty new tool \nrun\ngiven\n", "ls=/opt", "cat=/opt/tool/run", "cat=/opt/new/given")
	unmount("/opt/new")
	says("empty tool \n", "ls=/opt")
	if err := d.DeleteSession(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	d.NewSession(t, api.SessionRequest{ID: "a", Image: new("tools:1"), Mounts: []api.Mount{{Source: lent, Target: "/opt/new", Mode: "ro"}}})
	says("empty new tool \nrun\ngiven\n", "ls=/opt", "cat=/opt/tool/run", "cat=/opt/new/given")
	if err := errors.Join(d.DeleteSession(t.Context(), "a"), d.DeleteImage(t.Context(), "tools:1")); err != nil {
		t.Fatal(err)
	}
	boxtest.Eventually(t, "no directory tree of an image is left", func() bool { return trees(t, d) == 0 })
	d.NothingLeft(before)
}
