// SPDX-License-Identifier: Apache-2.0

package boxtest

import (
	"context"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// Systemctl runs systemctl, which must succeed, and returns what it has printed. It may be called in a clean-up.
func Systemctl(t testing.TB, args ...string) string {
	t.Helper()
	for again := killTries; ; again-- {
		out, err := exec.CommandContext(context.WithoutCancel(t.Context()), "systemctl", args...).CombinedOutput()
		if err != nil && again > 0 && args[0] == "kill" && strings.Contains(string(out), "Input/output error") {
			time.Sleep(100 * time.Millisecond)
			continue
		}
		if err != nil {
			t.Fatalf("systemctl %s: %v: %s", strings.Join(args, " "), err, out)
		}
		return strings.TrimSpace(string(out))
	}
}

// killTries is how often a whole unit is signalled again, while its processes come and go: systemd gives up at a line of cgroup.procs that
// is no PID (cg_read_pid in its src/basic/cgroup-util.c), as 0 is, which the kernel shows for a process without one.
const killTries = 20

// UnitProperty returns a property of a unit, such as "ActiveState".
func UnitProperty(t testing.TB, unit, name string) string {
	t.Helper()
	return Systemctl(t, "show", "--value", "-p", name, unit)
}
