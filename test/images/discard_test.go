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
	"github.com/boxd-dev/boxd/limits"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
)

// Changes of programs to their image are undone while they run, all of them or at some paths; everything else is unchanged, and
// so are mounts, also those of the host.
func TestWhatABoxHasChangedIsUndone(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, boxtest.MountSources)
	d.Warm()
	before := d.Look()
	c := d.Client
	lent := filepath.Join(d.Dir, "lent", "one")
	if err := errors.Join(os.MkdirAll(lent, 0o755), os.WriteFile(lent+"/kept", []byte("one"), 0o644)); err != nil {
		t.Fatal(err)
	}
	imports(t, d, simple(t, "tools:1", layer(t, entry{name: "usr/lib/old", content: "old"}, entry{name: "usr/lib/dir/in", content: "in"}, entry{name: "usr/lib/dir/deep/er", content: "er"}, entry{name: "opt/a", content: "a"},
		entry{name: "was/file", content: "f", mode: 0o755}, entry{name: "was/link", kind: tar.TypeSymlink, link: "../usr"}, entry{name: "was/dir/x", content: "x"}, entry{name: "closed", content: "c"}, entry{name: "usr/share/s", content: "s"})).layout(t), "")
	_, _, err := d.CreateSession(t.Context(), &api.SessionRequest{ID: "a", Image: new("tools:1"), ReadOnlyRoot: new(false), Patch: limits.Patch{WorkspaceQuota: new(64 * quantity.MiB)}})
	if err != nil {
		t.Fatalf("%v\n%s", err, d.Log())
	}
	look := []string{"ls=/", "ls=/usr", "ls=/usr/lib", "ls=/usr/lib/dir", "ls=/usr/lib/dir/deep", "cat=/usr/lib/dir/deep/er", "ls=/opt", "ls=/was", "cat=/was/file", "mode=/was/file", "mode=/was/link", "mode=/was/dir", "cat=/was/dir/x", "cat=/usr/lib/old", "mode=/usr/lib", "mode=/usr/share", "cat=/usr/share/s", "mode=/closed"}
	fresh := does(t, d, "a", look...)
	change := []string{
		"write=/usr/lib/old", "remove=/usr/lib/dir/in", "remove=/usr/lib/dir/deep/er", "remove=/usr/lib/dir/deep", "remove=/usr/lib/dir", "mkdir=/usr/lib/dir", "write=/usr/lib/dir/new", "write=/opt/b", "mkdir=/opt/mine", "write=/opt/mine/x", "write=/etc/new",
		"remove=/was/file", "mkdir=/was/file", "write=/was/file/in", "remove=/was/link", "write=/was/link", "remove=/was/dir/x", "remove=/was/dir", "write=/was/dir", "closed=/closed", "closed=/usr/share", "write=/workspace/mine", "write=/tmp/mine",
	}
	if got := does(t, d, "a", change...); got != "" {
		t.Fatalf(`changes: got %q, want ""`, got)
	}
	some, err := c.DiscardRoot(t.Context(), "a", &api.RootDiscard{Paths: []string{"/opt/b", "/was/dir", "/usr/bin", "/closed", "/usr/lib/dir/in", "/nothing/at/all"}})
	if err != nil || some != (api.RootDiscarded{Removed: 1, Restored: 3}) {
		t.Errorf("some: some = %+v, err = %v, want no error and some == api.RootDiscarded{Removed: 1, Restored: 3}",
			some, err)
	}
	if got := does(t, d, "a", "ls=/opt", "cat=/was/dir/x", "cat=/etc/new"); got != "a mine \nxwritten" {
		t.Errorf(`after some: got %q, want "a mine \nxwritten"`, got)
	}
	for path, want := range map[string]string{"/was/file/in": "/was/file", "opt": "shortest form", "/": "shortest form", "/opt/../etc": "shortest form"} {
		if done, err := c.DiscardRoot(t.Context(), "a", &api.RootDiscard{Paths: []string{path}}); err == nil && path != "/was/file/in" || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf(`%s: done = %+v, err = %v, want (an error or path == "/was/file/in") and (no error or err containing %q)`,
				path, done, err, want)
		}
	}
	// A directory that programs have created contains a mount from the host.
	if _, _, err := d.AddMount(t.Context(), "a", &api.MountRequest{Source: lent, Target: "/opt/mine/one", Mode: "ro"}); err != nil {
		t.Fatal(err)
	}
	if done, err := c.DiscardRoot(t.Context(), "a", &api.RootDiscard{Paths: []string{"/opt/mine"}}); err == nil || !strings.Contains(err.Error(), "/opt/mine") {
		t.Errorf(`with a mount in it: done = %+v, err = %v, want an error containing "/opt/mine"`, done, err)
	}
	if data, err := os.ReadFile(lent + "/kept"); err != nil || string(data) != "one" {
		t.Fatalf(`the mounted directory: data = %q, err = %v, want no error and data == "one"`, data, err)
	}
	if err := d.RemoveMount(t.Context(), "a", "/opt/mine/one", false); err != nil {
		t.Fatal(err)
	}
	if done, err := c.DiscardRoot(t.Context(), "a", &api.RootDiscard{}); err != nil || done.Removed == 0 || done.Restored == 0 {
		t.Fatalf("all: done = %+v, err = %v, want no error and done.Removed != 0 and done.Restored != 0:\n%s",
			done, err, d.Log())
	}
	if got := does(t, d, "a", look...); got != fresh {
		t.Errorf("undone:\n%q, was\n%q", got, fresh)
	}
	diff, err := c.DiffRoot(t.Context(), "a", &api.RootDiff{})
	if err != nil || diff.Counts != (api.ChangeCounts{}) {
		t.Errorf("the changes: diff = %+v, err = %v, want no error and diff.Counts == api.ChangeCounts{}", diff, err)
	}
	if got := does(t, d, "a", "cat=/workspace/mine", "cat=/tmp/mine"); got != "writtenwritten" {
		t.Errorf(`files outside the image: got %q, want "writtenwritten"`, got)
	}
	if done, err := c.DiscardRoot(t.Context(), "a", &api.RootDiscard{}); err != nil || done != (api.RootDiscarded{}) {
		t.Errorf("again: done = %+v, err = %v, want no error and done == api.RootDiscarded{}", done, err)
	}
	if err := errors.Join(d.DeleteSession(t.Context(), "a"), c.DeleteImage(t.Context(), "tools:1")); err != nil {
		t.Fatal(err)
	}
	boxtest.Eventually(t, "no directory tree of an image is left", func() bool { return trees(t, d) == 0 })
	d.NothingLeft(before)
}
