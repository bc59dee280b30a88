// SPDX-License-Identifier: Apache-2.0

package boxtest

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// Grouped reports whether the boxes of private daemons have cgroups on this host.
func Grouped() bool { return os.Getenv(groupVariable) != "" }

// RequireGroups skips a test that needs cgroups, or fails it where skipping is not allowed.
func RequireGroups(t testing.TB) {
	t.Helper()
	if !Grouped() {
		Missing(t, "a delegated control group, named by "+groupVariable)
	}
}

// groupRoot is where cgroup v2 is mounted.
const groupRoot = "/sys/fs/cgroup"

// GroupRoot returns the absolute path of the delegated cgroup, the parent of those of daemons.
func GroupRoot() string { return filepath.Join(groupRoot, os.Getenv(groupVariable)) }

// GroupPath returns the absolute path of the daemon's cgroup.
func (d *Daemon) GroupPath() string { return filepath.Join(groupRoot, d.Group) }

// makeGroup makes a cgroup for the daemon, if this host has a delegated one.
func (d *Daemon) makeGroup() {
	d.t.Helper()
	if !Grouped() {
		return
	}
	d.Group = filepath.Join(os.Getenv(groupVariable), filepath.Base(d.Dir))
	if err := os.Mkdir(d.GroupPath(), 0o755); err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { // after the daemon has ended; keepers of boxes that were not handed over end a little later
		Eventually(d.t, "the daemon's group is empty", func() bool {
			err := os.Remove(d.GroupPath())
			if err != nil && !errors.Is(err, syscall.EBUSY) {
				d.t.Error(err)
			}
			return !errors.Is(err, syscall.EBUSY)
		})
	})
}

// GroupFile reads a file of a cgroup, such as "work/memory.max".
func GroupFile(t testing.TB, group, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(group, name))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}

// GroupHas compares files of a cgroup with the wanted contents.
func GroupHas(t testing.TB, when, group string, want map[string]string) {
	t.Helper()
	for name, text := range want {
		if got := GroupFile(t, group, name); got != text {
			t.Errorf("%s: %s is %q, want %q", when, name, got, text)
		}
	}
}
