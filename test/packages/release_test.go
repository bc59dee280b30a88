// SPDX-License-Identifier: Apache-2.0

package packages_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A release consists of packages for both architectures, their sources, packages of the clients, the changes, and checksums of
// them all.
func TestARelease(t *testing.T) {
	dir := release(t)
	want := []string{
		"CHANGELOG.md", "SHA256SUMS",
		"boxd-" + version + "-1.aarch64.rpm", "boxd-" + version + "-1.x86_64.rpm",
		"boxd-" + version + "-amd64.cdx.json", "boxd-" + version + "-arm64.cdx.json",
		"boxd-fleet-" + version + "-1.aarch64.rpm", "boxd-fleet-" + version + "-1.x86_64.rpm", "boxd-fleet_" + version + "_amd64.deb", "boxd-fleet_" + version + "_arm64.deb",
		"boxd-cockpit-" + version + "-1.noarch.rpm", "boxd-cockpit_" + version + "_all.deb",
		"boxd-9.8.7.dev0+test1-py3-none-any.whl", "boxd-client-9.8.7-dev.test1.tgz",
		"boxd_" + version + "_amd64.deb", "boxd_" + version + "_arm64.deb",
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	sums := exec.CommandContext(t.Context(), "sha256sum", "--check", "--strict", "SHA256SUMS")
	sums.Dir = dir
	if out, err := sums.CombinedOutput(); err != nil || strings.Count(string(out), ": OK") != len(want)-1 {
		t.Errorf(`checksums: err = %v, out = %s, want no error and strings.Count(string(out), ": OK") == len(want) - 1`,
			err, out)
	}
	for _, arch := range []string{"amd64", "arm64"} {
		text, err := os.ReadFile(filepath.Join(dir, "boxd-"+version+"-"+arch+".cdx.json"))
		if err != nil {
			t.Fatal(err)
		}
		var bom struct {
			BOMFormat  string `json:"bomFormat"`
			Components []struct{ Name, Version string }
		}
		if err := json.Unmarshal(text, &bom); err != nil || bom.BOMFormat != "CycloneDX" {
			t.Errorf(`%s: bom.BOMFormat = %q, err = %v, want no error and bom.BOMFormat == "CycloneDX"`,
				arch, bom.BOMFormat, err)
		}
		if !strings.Contains(string(text), "github.com/BurntSushi/toml") || strings.Contains(string(text), "kin-openapi") {
			t.Errorf("%s: the list differs from what boxd links: %d components", arch, len(bom.Components))
		}
	}
	if text, err := os.ReadFile(filepath.Join(dir, "CHANGELOG.md")); err != nil || !strings.Contains(string(text), version) {
		t.Errorf("the changes of no version: text = %.100q, err = %v, want no error and text containing version",
			text, err)
	}
}
