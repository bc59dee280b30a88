// SPDX-License-Identifier: Apache-2.0

package mounts

import (
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/linux"
	"github.com/boxd-dev/boxd/isolation"
)

// List returns the mounts that a live box was given, those that are covered too, and what a
// target lacks.
func TestListReturnsTheLiveMountsOfABox(t *testing.T) {
	t.Parallel()
	b, dir := aBox(t)
	target := dir + "/a/b"
	look := func() *isolation.Mounted {
		t.Helper()
		now, err := b.List(target)
		if err != nil {
			t.Fatal(err)
		}
		return now
	}
	before := look()
	if before.Made != dir+"/a" || before.ID != 0 {
		t.Errorf(`of no target: before = %+v, want before.Made == dir + "/a" and before.ID == 0`, before)
	}
	done := given(t, b, target)
	now := look()
	if now.ID != done.ID || now.Made != "" || now.Attrs != flags("ro,nosuid,nodev") || slices.Contains(before.IDs, done.ID) || !slices.Contains(now.IDs, done.ID) {
		t.Errorf("mount %d; before %+v, now %+v", done.ID, before, now)
	}
	top := aTree(t)
	defer unix.Close(top)
	above, err := mountID(top, "")
	if err != nil {
		t.Fatal(err)
	}
	if err := b.enter(func(p *nsThread) error {
		fd, err := p.open(target)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return linux.AttachMount(top, fd, "")
	}); err != nil {
		t.Fatal(err)
	}
	if now = look(); now.ID != above || slices.Index(now.IDs, above) != slices.Index(now.IDs, done.ID)-1 {
		t.Errorf("mount %d on %d: now = %+v, want now.ID == above and slices.Index(now.IDs, above) == slices.Index(now.IDs, done.ID) - 1",
			above, done.ID, now)
	}
	if _, err := b.Remove(target, []uint64{above, done.ID}, done.Made, true); err != nil {
		t.Fatal(err)
	}
	if now = look(); !slices.Equal(now.IDs, before.IDs) || now.Made != before.Made {
		t.Errorf("before %+v, after %+v", before, now)
	}
	// The tmpfs that covers a bare directory of the image does not count for the box, nor for a
	// target below it.
	for path, want := range map[string]bool{"/mnt": false, "/mnt/x": true, target: true, "/tmp": false, "/etc": false, "/home/box": false, "/home": false} {
		if isGiven(path, target) != want {
			t.Errorf("%s counts as a live mount: !want = %v, want isGiven(path, target) == want", path, !want)
		}
	}
	if !isGiven("/mnt", "/mnt") {
		t.Error("a mount on /mnt does not count as given to the box")
	}
	if err := os.Mkdir(dir+"/a", 0o755); err != nil {
		t.Fatal(err)
	}
	if now = look(); now.Made != target {
		t.Errorf("of half a target: now = %+v, want now.Made == %v", now, target)
	}
}
