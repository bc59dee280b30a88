// SPDX-License-Identifier: Apache-2.0

package packaging_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A removal takes the store of workspaces only where nobody's work is in it. While no box lives it is not mounted, and
// then the records of workspaces with a name are all that tells.
func TestARemovalKeepsWorkspacesThatHaveNames(t *testing.T) {
	t.Parallel()
	need(t, "mountpoint")
	for script, argument := range map[string]string{"deb/prerm": "remove", "rpm/preun": "0"} {
		text, err := os.ReadFile(script)
		if err != nil {
			t.Fatal(err)
		}
		for name, test := range map[string]struct {
			files []string
			empty string // a directory
			kept  bool
		}{
			"a boxd that never ran":   {[]string{"store.img"}, "", false},
			"nobody's":                {[]string{"store.img"}, "named-workspaces", false},
			"a workspace with a name": {[]string{"store.img", "named-workspaces/0123.json"}, "", true},
		} {
			dir := t.TempDir()
			state := filepath.Join(dir, "boxd")
			for _, file := range test.files {
				path := filepath.Join(state, file)
				if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.MkdirAll(filepath.Join(state, test.empty), 0o700); err != nil {
				t.Fatal(err)
			}
			for _, stub := range []string{"systemctl", "deb-systemd-invoke"} { // this host's boxd is none of ours
				if err := os.WriteFile(filepath.Join(dir, stub), []byte("#!/bin/sh\n"), 0o700); err != nil {
					t.Fatal(err)
				}
			}
			cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c", strings.ReplaceAll(string(text), "/var/lib/boxd", state), script, argument)
			cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
			if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
				t.Errorf("%s, %s: err = %v, out = %s, want no error and len(out) == 0", script, name, err, out)
			}
			if _, err := os.Stat(filepath.Join(state, "store.img")); (err == nil) != test.kept {
				t.Errorf("%s, %s: the store exists afterwards: %v, want %v", script, name, err == nil, test.kept)
			}
		}
	}
}
