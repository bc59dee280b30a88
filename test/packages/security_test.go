// SPDX-License-Identifier: Apache-2.0

package packages_test

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The SELinux module compiles, with its file labels. Nothing more is tested here.
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
		t.Errorf("the module: err = %v, want no error and info.Size() != 0", err)
	}
}

// The AppArmor profile compiles on any host; the tests in the machine enforce it.
func TestTheProfileForAppArmorCompiles(t *testing.T) {
	if said, err := check(t, "apparmor_parser", "--skip-kernel-load", "--skip-cache", "../../packaging/apparmor/boxd"); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
}

// The exposure that "systemd-analyze security" finds in the units, in tenths, has not grown; docs/design/privilege.md explains
// that of boxkeeper.
func TestUnitsAreNoMoreExposedThanBefore(t *testing.T) {
	for unit, most := range map[string]string{"boxd.service": "17", "boxd-keeper.service": "67", "boxd-scopes.service": "11", "boxd-files.service": "9", "boxd-boxes.service": "36", "boxd-names.service": "12", "boxd-push@.service": "12", "boxfleet-node.service": "15", "boxfleet-gateway.service": "12"} {
		said, err := check(t, "systemd-analyze", "security", "--no-pager", "--offline=true", "--threshold="+most, "../../systemd/units/"+unit)
		if err != nil {
			t.Errorf("%s, most %s: %v\n%s", unit, most, err, said)
		}
	}
}

// Each capability of boxkeeper's unit is in the table that says what it is for, and vice versa.
func TestTheKeeperHasTheCapabilitiesOfItsTable(t *testing.T) {
	unit, err := os.ReadFile("../../systemd/units/boxd-keeper.service")
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../../docs/design/privilege.md")
	if err != nil {
		t.Fatal(err)
	}
	name, has, table := regexp.MustCompile(`CAP_[A-Z_]+`), map[string]bool{}, map[string]bool{}
	for line := range strings.Lines(string(unit)) {
		if set, ok := strings.CutPrefix(line, "CapabilityBoundingSet="); ok {
			if strings.HasPrefix(set, "~") {
				t.Errorf("%s: use an allow list: a deny list misses what new kernels add", line)
			}
			for _, c := range name.FindAllString(set, -1) {
				has[c] = true
			}
		}
	}
	_, rows, _ := strings.Cut(string(page), "## Capabilities of boxkeeper")
	rows, _, _ = strings.Cut(rows, "\n## ")
	for line := range strings.Lines(rows) {
		if cell, _, ok := strings.Cut(strings.TrimPrefix(line, "| "), " |"); ok && strings.HasPrefix(cell, "CAP_") {
			for _, c := range name.FindAllString(cell, -1) {
				table[c] = true
			}
		}
	}
	if len(has) == 0 || !maps.Equal(has, table) {
		t.Errorf("the unit has %q, the table %q", slices.Sorted(maps.Keys(has)), slices.Sorted(maps.Keys(table)))
	}
}
