// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Anyone who can write the configuration decides what boxd allows.
func TestAConfigurationThatOthersCouldWriteIsRefused(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name                             string
		dir, file, dropInDir, dropInFile os.FileMode
		want                             string // "": accepted
	}{
		{"as installed", 0o755, 0o644, 0o755, 0o644, ""},
		{"root's alone", 0o700, 0o600, 0o700, 0o600, ""},
		{"a file of its group", 0o755, 0o664, 0o755, 0o644, "box.toml "},
		{"a file of everybody", 0o755, 0o646, 0o755, 0o644, "box.toml "},
		{"a directory of its group", 0o775, 0o644, 0o755, 0o644, "etc "},
		{"a directory of everybody, where each keeps what is theirs", 0o1777, 0o644, 0o755, 0o644, ""},
		{"drop-ins of a group", 0o755, 0o644, 0o775, 0o644, "box.toml.d "},
		{"a drop-in of a group", 0o755, 0o644, 0o755, 0o664, "x.toml "},
	} {
		dir := filepath.Join(t.TempDir(), "etc")
		path := filepath.Join(dir, "box.toml")
		if err := os.MkdirAll(path+".d", 0o755); err != nil {
			t.Fatal(err)
		}
		for _, f := range []string{path, filepath.Join(path+".d", "x.toml")} {
			if err := os.WriteFile(f, []byte("[sessions]\nmax = 7\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		for f, mode := range map[string]os.FileMode{dir: tc.dir, path: tc.file, path + ".d": tc.dropInDir, filepath.Join(path+".d", "x.toml"): tc.dropInFile} {
			if mode&0o1000 != 0 {
				mode = mode&0o777 | os.ModeSticky
			}
			if err := os.Chmod(f, mode); err != nil {
				t.Fatal(err)
			}
		}
		err := errors.Join(closed(path), closed(filepath.Join(path+".d", "x.toml")), closed(filepath.Join(dir, "not-there", "x")))
		if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", tc.name, err, tc.want)
		}
	}
}
