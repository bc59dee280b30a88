// SPDX-License-Identifier: Apache-2.0

package boxtest

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// canaryName is a file beside those of the daemon, which nothing may touch.
const canaryName = "untouched"

// canary is the state of a file when the daemon began.
type canary struct{ path, was string }

// setCanary makes the file.
func setCanary(t testing.TB, dir string) canary {
	t.Helper()
	c := canary{path: filepath.Join(dir, canaryName)}
	if err := os.WriteFile(c.path, []byte("alive"), 0o644); err != nil {
		t.Fatal(err)
	}
	c.was = c.look()
	return c
}

// look returns everything observable of the file.
func (c *canary) look() string {
	text, err := os.ReadFile(c.path)
	info, failed := os.Lstat(c.path)
	if err != nil || failed != nil {
		return fmt.Sprint(err, failed)
	}
	st, _ := info.Sys().(*syscall.Stat_t)
	return fmt.Sprintf("%s inode %d mode %o owner %d:%d links %d changed %v", text, st.Ino, st.Mode, st.Uid, st.Gid, st.Nlink, st.Ctim)
}

// unharmed fails the test if the host is not as it was before the daemon, whatever the test was about: its canary has changed, a
// process with ids of its boxes exists although boxd was stopped in order, something is mounted in its directory, or the kernel
// has keys or System V objects of its boxes' ids outside of every box.
func (d *Daemon) unharmed(inOrder bool) {
	d.t.Helper()
	if now := d.canary.look(); now != d.canary.was {
		d.t.Errorf("a file that must not change is %s, was %s, want now == d.canary.was", now, d.canary.was)
	}
	if !inOrder || d.ids == allIDs() { // boxes of a killed boxd end when their time is over
		return
	}
	var left []string
	defer func() {
		if len(left) > 0 {
			d.t.Logf("left on the host: %q", left)
		}
	}()
	Eventually(d.t, "nothing of the daemon's boxes is left on the host", func() bool {
		left = slices.DeleteFunc(d.remains(), func(what string) bool { return slices.Contains(d.foreign, what) })
		return len(left) == 0
	})
}

// remains lists what is left on the host of the daemon's boxes.
func (d *Daemon) remains() (list []string) {
	for _, p := range processes(d.t) {
		if d.ofBoxes(p.uid) {
			list = append(list, fmt.Sprintf("process %d %s", p.pid, p.name))
		}
	}
	for line := range strings.Lines(readText("/proc/thread-self/mounts")) {
		if strings.Contains(line, " "+d.Dir+"/") {
			list = append(list, "mount "+strings.TrimSpace(line))
		}
	}
	for line := range strings.Lines(readText("/proc/key-users")) {
		id, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		if uid, err := strconv.ParseUint(id, 10, 32); err == nil && d.ofBoxes(uint32(uid)) {
			list = append(list, "keys of uid "+id+":"+rest)
		}
	}
	for _, kind := range []string{"shm", "sem", "msg"} {
		owner := -1 // its column
		for line := range strings.Lines(readText("/proc/sysvipc/" + kind)) {
			for i, field := range strings.Fields(line) {
				if uid, err := strconv.ParseUint(field, 10, 32); field == "uid" {
					owner = i
				} else if i == owner && err == nil && d.ofBoxes(uint32(uid)) {
					list = append(list, kind+" "+strings.TrimSpace(line))
				}
			}
		}
	}
	return list
}

// ofBoxes reports whether a uid of the host is one of the daemon's boxes.
func (d *Daemon) ofBoxes(uid uint32) bool { return uid >= d.ids.first && uid < d.ids.end }

// readText reads a file of the kernel; one that this kernel lacks is empty.
func readText(path string) string {
	text, _ := os.ReadFile(path)
	return string(text)
}
