// SPDX-License-Identifier: Apache-2.0

package packages_test

import (
	"os"
	"path/filepath"
	"testing"
)

// The module for SELinux compiles, with the labels of its files. That is all that is known of it.
func TestTheModuleForSELinuxCompiles(t *testing.T) {
	module := filepath.Join(t.TempDir(), "boxd.mod")
	if said, err := check(t, "checkmodule", "-M", "-m", "-o", module, "../../packaging/selinux/boxd.te"); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	out := filepath.Join(t.TempDir(), "boxd.pp")
	if said, err := check(t, "semodule_package", "-o", out, "-m", module, "-f", "../../packaging/selinux/boxd.fc"); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	if info, err := os.Stat(out); err != nil || info.Size() == 0 {
		t.Errorf("the module: %v", err)
	}
}

// The profile for AppArmor is one, wherever it is compiled: the machine's tests have it in force.
func TestTheProfileForAppArmorCompiles(t *testing.T) {
	if said, err := check(t, "apparmor_parser", "--skip-kernel-load", "--skip-cache", "../../packaging/apparmor/boxd"); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
}
