// SPDX-License-Identifier: Apache-2.0

package boxes_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
)

// host is a daemon under attack.
type host struct {
	*boxtest.Daemon
	t      *testing.T
	rw, ro string // mount sources of owner, with a file "file" in each
	next   *box   // a box that takes no part in the attack
	boxes  []*box
	maps   map[string]bool // what the keeper may keep open: one for each owner and range of ids
}

// attack makes an attack and checks what must hold after each one: nothing on the host has changed, the daemon still works, and
// nothing is left once the boxes are removed.
func attack(t *testing.T, f func(h *host)) {
	t.Helper()
	d := start(t)
	h := &host{Daemon: d, t: t, rw: d.MountSource(t, "rw", owner), ro: d.MountSource(t, "ro", owner), maps: map[string]bool{}}
	canaries := []string{filepath.Join(d.Dir, "canary"), filepath.Join(h.ro, "canary"), filepath.Join(d.Dir, "lent", "canary")}
	for _, path := range canaries {
		put(t, path, "alive", 0o644, owner)
	}
	for _, dir := range []string{h.rw, h.ro} {
		put(t, filepath.Join(dir, "file"), "text", 0o644, owner)
	}
	d.Warm()
	before, files := d.Look(), pictures(t, canaries)
	h.next = newBox(t, d)
	h.next.sh("echo kept > /workspace/file; echo kept > /dev/shm/file")
	goesOn := h.next.hold(probe, "hold")

	f(h)

	if got := h.next.sh("cat /workspace/file /dev/shm/file; ls /workspace /dev/shm"); got != "kept\nkept\n/dev/shm:\nfile\n\n/workspace:\nfile\n" {
		t.Errorf(`the box next to it has %q, want "kept\nkept\n/dev/shm:\nfile\n\n/workspace:\nfile\n"`, got)
	}
	if _, r := goesOn.Release(); r.ExitCode == nil || *r.ExitCode != 0 {
		t.Errorf("a program in the box next to it has ended: r = %s, want r.ExitCode != nil and *r.ExitCode == 0",
			boxtest.Show(r))
	}
	h.next.remove()

	if err := d.Ready(t.Context()); err != nil {
		t.Errorf("afterwards the health of boxd is: %v", err)
	}
	for _, b := range h.boxes {
		b.remove()
	}
	newBox(t, d).remove() // fails if the box cannot start or end
	if diff := cmp.Diff(files, pictures(t, canaries)); diff != "" {
		t.Errorf("the host's files have changed (-before +after):\n%s", diff)
	}
	d.NothingLeft(withMaps(before, len(h.maps)))
}

// pictures returns all that a user without privileges can see of files, with their content.
func pictures(t *testing.T, paths []string) map[string]string {
	t.Helper()
	m := map[string]string{}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		st := statOf(t, path)
		m[path] = fmt.Sprintf("%s inode %d mode %o owner %d:%d links %d changed %v", text, st.Ino, st.Mode, st.Uid, st.Gid, st.Nlink, st.Ctim)
	}
	return m
}

// box creates a box for the attack to use.
func (h *host) box(change ...func(*api.SessionRequest)) *box {
	h.t.Helper()
	b := newBox(h.t, h.Daemon, change...)
	h.boxes = append(h.boxes, b)
	for _, m := range b.Mounts {
		if st := statOf(h.t, m.Source); st.Uid != 0 {
			h.maps[fmt.Sprint(st.Uid, " ", b.IDBase)] = true
		}
	}
	return b
}

// each makes the attack from both kinds of boxes, which have different seccomp filters.
func (h *host) each(f func(b *box)) {
	h.t.Helper()
	f(h.box())
	f(h.box(h.mounts()))
}

// mounts mounts rw at /mnt and ro at /data.
func (h *host) mounts() func(*api.SessionRequest) {
	return withMounts(api.Mount{Source: h.rw, Target: "/mnt", Mode: "rw"}, api.Mount{Source: h.ro, Target: "/data", Mode: "ro"})
}

// workspace returns the path on the host of the only managed workspace besides that of next.
func (h *host) workspace() string {
	h.t.Helper()
	dirs, err := filepath.Glob(filepath.Join(h.State, "workspaces", "*"))
	key := strings.TrimSuffix(filepath.Base(h.Record(h.t, h.next.ID)), ".json")
	dirs = slices.DeleteFunc(dirs, func(dir string) bool { return filepath.Base(dir) == key })
	if err != nil || len(dirs) != 1 {
		h.t.Fatalf("workspaces: dirs = %v, err = %v, want no error and len(dirs) == 1", dirs, err)
	}
	return dirs[0]
}
