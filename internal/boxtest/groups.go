// SPDX-License-Identifier: Apache-2.0

package boxtest

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// Grouped reports whether the boxes of private daemons have control groups on this host.
func Grouped() bool { return os.Getenv(groupVariable) != "" }

// RequireGroups skips a test that needs control groups, or fails it where skipping is not allowed.
func RequireGroups(t testing.TB) {
	t.Helper()
	if !Grouped() {
		Missing(t, "a delegated control group, named by "+groupVariable)
	}
}

// groupRoot is where cgroup v2 is.
const groupRoot = "/sys/fs/cgroup"

// GroupRoot is the absolute path of the delegated group that the daemons' are below.
func GroupRoot() string { return filepath.Join(groupRoot, os.Getenv(groupVariable)) }

// GroupPath is the absolute path of the daemon's control group.
func (d *Daemon) GroupPath() string { return filepath.Join(groupRoot, d.Group) }

// makeGroup makes a control group for the daemon, if this host has one to make it in.
func (d *Daemon) makeGroup() {
	d.t.Helper()
	if !Grouped() {
		return
	}
	d.Group = filepath.Join(os.Getenv(groupVariable), filepath.Base(d.Dir))
	if err := os.Mkdir(d.GroupPath(), 0o755); err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { // after the daemon has ended; the keepers of boxes that nobody has yet end a little later
		Eventually(d.t, "the daemon's group is empty", func() bool {
			err := os.Remove(d.GroupPath())
			if err != nil && !errors.Is(err, syscall.EBUSY) {
				d.t.Error(err)
			}
			return !errors.Is(err, syscall.EBUSY)
		})
	})
}
