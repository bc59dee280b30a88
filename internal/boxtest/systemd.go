// SPDX-License-Identifier: Apache-2.0

package boxtest

import (
	"context"
	"os/exec"
	"strings"
	"testing"
)

// Systemctl runs systemctl, which must succeed, and returns what it has printed. It may be called in a clean-up.
func Systemctl(t testing.TB, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(context.WithoutCancel(t.Context()), "systemctl", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("systemctl %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// UnitProperty returns a property of a unit, such as "ActiveState".
func UnitProperty(t testing.TB, unit, name string) string {
	t.Helper()
	return Systemctl(t, "show", "--value", "-p", name, unit)
}
