// SPDX-License-Identifier: Apache-2.0

package images_test

import (
	"archive/tar"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
)

// An image of several layers becomes / of a box, with its configuration of the programs; nothing of the host is there.
func TestABoxIsMadeOfAnImage(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.Warm()
	before := d.Look()
	second := layer(t,
		entry{name: "etc/", kind: tar.TypeDir}, entry{name: "etc/passwd", content: "root:x:0:0::/root:/bin/sh"},
		entry{name: "opt/a", content: "one"}, entry{name: "opt/b", content: "two"}, entry{name: "opt/twin", kind: tar.TypeLink, link: "opt/b"},
		entry{name: "data/old/x", content: "x"}, entry{name: "data/kept", content: "kept"},
		entry{name: "secret", content: "s", mode: 0o4600, uid: 7}, entry{name: "lib", kind: tar.TypeSymlink, link: "/usr/lib"},
		entry{name: "usr/lib/", kind: tar.TypeDir, mode: 0o700}, entry{name: "dev/null", kind: tar.TypeChar, mode: 0o666},
	)
	third := layer(t,
		entry{name: "opt/.wh.a"}, entry{name: "data/old/.wh..wh..opq"}, entry{name: "data/old/new", content: "new"},
		entry{name: "lib/through", content: "through a link"},
	)
	img := imports(t, d, simple(t, "tools:1", second, third).layout(t), "")
	if img.Name != "tools:1" || img.Layers != 3 || img.LeftOut != 1 || img.Form != "oci" || img.Config.User != "nobody" {
		t.Errorf("imported %+v", img)
	}
	if got := runs(t, d, "tools:1"); got != "green\n/srv/app\n" {
		t.Errorf(`without a command: got %q, want "green\n/srv/app\n"`, got)
	}
	got := runs(t, d, "tools:1", "id", "env=HOME", "ls=/", "ls=/opt", "cat=/opt/twin", "ls=/data", "ls=/data/old", "mode=/secret", "cat=/secret", "cat=/usr/lib/through", "mode=/usr/lib")
	want := "1000 1000\n/home/box\n" +
		"app bin code data dev drives etc home lib media mnt opt proc run secret skills src srv sys tmp usr var work workspace \n" +
		"b twin \ntwokept old \nnew \n100604\nsthrough a link40705\n"
	if got != want {
		t.Errorf("in the box:\n%s\nwant\n%s", got, want)
	}
	got = runs(t, d, "tools:1", "cat=/etc/passwd", "cat=/etc/group", "cat=/etc/hostname", "write=/opt/x", "write=/bin/program", "write=/x", "mknod=/tmp/null", "write=/tmp/x", "write=/workspace/x", "cat=/tmp/x", "cat=/dev/null")
	if !strings.HasPrefix(got, "root:x:0:0::/root:/bin/sh\nbox:x:1000:1000:box:/home/box:/bin/sh\nroot:x:0:\nbox:x:1000:root\n") || strings.Count(got, "read-only file system") != 3 ||
		strings.Count(got, "operation not permitted") != 1 || !strings.HasSuffix(got, "written") {
		t.Errorf("users and writes: got %q", got)
	}
	roots := 0
	for line := range strings.SplitSeq(runs(t, d, "tools:1", "cat=/proc/self/mountinfo"), "\n") {
		f := strings.Fields(line)
		if len(f) < 6 || f[4] != "/" {
			continue
		}
		roots++
		if !strings.HasPrefix(f[5], "ro,nosuid,nodev") || !strings.Contains(line, " - overlay ") {
			t.Errorf(`the root is %s, want f[5] starting with "ro,nosuid,nodev" and line containing " - overlay "`,
				line)
		}
	}
	if roots != 1 {
		t.Errorf("%d roots", roots)
	}
	also := simple(t, "saved:1", second, third)
	img = imports(t, d, also.saved(t), "")
	if got := runs(t, d, "saved:1", "cat=/opt/twin", "ls=/opt"); got != "twob twin \n" || img.Form != "docker" || img.Name != "saved:1" || img.Layers != 3 {
		t.Errorf("docker save: %q of %+v", got, img)
	}
	c := d.Client
	if err := errors.Join(c.DeleteImage(t.Context(), "tools:1"), c.DeleteImage(t.Context(), "saved:1")); err != nil {
		t.Fatal(err)
	}
	boxtest.Eventually(t, "the directory tree of the image is removed", func() bool { return trees(t, d) == 0 })
	d.NothingLeft(before)
}

// A mount in a directory of an image, or at the top level, leaves everything else of the image visible.
func TestAMountLeavesTheRestOfAnImageInSight(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, boxtest.MountSources)
	lent := d.MountSource(t, "lent", boxtest.OtherUID)
	if err := os.WriteFile(filepath.Join(lent, "file"), []byte("lent"), 0o644); err != nil {
		t.Fatal(err)
	}
	imports(t, d, simple(t, "tools:1", layer(t, entry{name: "opt/tool/file", content: "tool"}, entry{name: "opt/link", kind: tar.TypeSymlink, link: "tool"}, entry{name: "usr/src/a", content: "a"},
		entry{name: "usr/lib/old", content: "old"})).layout(t), "")
	var mounts []api.Mount
	for _, target := range []string{"/opt/new", "/repo/deep", "/usr/src/app", "/etc/app", "/srv/one"} {
		mounts = append(mounts, api.Mount{Source: lent, Target: target, Mode: "ro"})
	}
	if _, _, err := d.CreateSession(t.Context(), &api.SessionRequest{ID: "s", Image: new("tools:1"), Mounts: mounts}); err != nil {
		t.Fatalf("%v\n%s", err, d.Log())
	}
	for _, tc := range []struct{ ask, want string }{
		{"ls=/opt", "link new tool "},
		{"cat=/opt/link/file", "tool"},
		{"cat=/opt/new/file", "lent"},
		{"cat=/repo/deep/file", "lent"},
		{"ls=/repo", "deep "},
		{"ls=/usr/src", "a app "},
		{"cat=/usr/src/app/file", "lent"},
		{"cat=/usr/lib/old", "old"},
		{"cat=/etc/app/file", "lent"},
		{"cat=/srv/one/file", "lent"},
	} {
		if got := strings.TrimSpace(does(t, d, "s", tc.ask)); got != strings.TrimSpace(tc.want) {
			t.Errorf("%s: %q, want %q", tc.ask, got, tc.want)
		}
	}
	if got := does(t, d, "s", "write=/opt/x"); !strings.Contains(got, "read-only file system") {
		t.Errorf(`a program can write beside a mount: got %q, want got containing "read-only file system"`, got)
	}
}
