// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestOwnGroupIsTheOneOfVersionTwo(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		text, want, failure string
	}{
		{"0::/box.slice/boxd-boxes.service\n", "/box.slice/boxd-boxes.service", ""},
		{"3:cpu:/a\n0::/b c\n", "/b c", ""},
		{"0::/\n", "", `own cgroup is "/"`},
		{"0::/../..\n", "", "own cgroup is"},
		{"0::/a/../b\n", "", "own cgroup is"},
		{"0::\n", "", "own cgroup is"},
		{"4:memory:/x\n", "", "no cgroup v2 entry"},
		{"", "", "no cgroup v2 entry"},
	} {
		got, err := unifiedPath(tc.text)
		switch {
		case tc.failure == "" && (err != nil || got != tc.want):
			t.Errorf("%q: %q, %v, want %q", tc.text, got, err, tc.want)
		case tc.failure != "" && (err == nil || !strings.Contains(err.Error(), tc.failure)):
			t.Errorf("%q: %q, %v, want %s", tc.text, got, err, tc.failure)
		}
	}
}

// A directory of plain files stands in for the cgroup: what the kernel does with the texts is
// tested on a host that has cgroup v2 (test/host).
func TestTheAnchorEnablesAvailableControllers(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		has, on string
		missing []string
	}{
		{"cpuset cpu io memory pids\n", "+cpu +io +memory +pids", nil},
		{"pids memory\n", "+memory +pids", []string{"cpu", "io"}},
		{"cpuset\n", "", []string{"cpu", "io", "memory", "pids"}},
	} {
		group := groupOfFiles(t, "cgroup.controllers", "cgroup.subtree_control", "anchor/cgroup.procs")
		if err := os.WriteFile(filepath.Join(group, "cgroup.controllers"), []byte(tc.has), 0o644); err != nil {
			t.Fatal(err)
		}
		missing, err := enterAnchor(group)
		if err != nil || !slices.Equal(missing, tc.missing) {
			t.Errorf("%s: %v, missing %v, want %v", tc.has, err, missing, tc.missing)
		}
		for name, want := range map[string]string{"anchor/cgroup.procs": "0", "cgroup.subtree_control": tc.on} {
			if got, err := os.ReadFile(filepath.Join(group, name)); err != nil || string(got) != want {
				t.Errorf("%s: %s is %q, %v, want %q", tc.has, name, got, err, want)
			}
		}
	}
}

func TestAnchorSaysWhatItCannotDo(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		group, want string
	}{
		{filepath.Join(t.TempDir(), "none"), "make the anchor's group: "},
		{groupOfFiles(t, "cgroup.controllers"), "move into the anchor's group: "},
		{groupOfFiles(t, "anchor/cgroup.procs"), "read the controllers: "},
	} {
		if _, err := enterAnchor(tc.group); err == nil || !strings.HasPrefix(err.Error(), tc.want) {
			t.Errorf("%v, want %s", err, tc.want)
		}
	}
}

func groupOfFiles(t *testing.T, names ...string) string {
	t.Helper()
	group := t.TempDir()
	for _, name := range names {
		path := filepath.Join(group, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return group
}
