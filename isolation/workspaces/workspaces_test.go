// SPDX-License-Identifier: Apache-2.0

package workspaces

import (
	"os"
	"path/filepath"
	"testing"
)

func TestWorkspacesAreInADirectoryClosedToAll(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name  string
		there func(dir string) error
		ok    bool
	}{
		{name: "made", there: func(string) error { return nil }, ok: true},
		{name: "there", there: func(dir string) error { return os.Mkdir(dir, 0o700) }, ok: true},
		{name: "open to others", there: func(dir string) error { return os.Mkdir(dir, 0o755) }},
		{name: "open to a group", there: func(dir string) error { return os.Mkdir(dir, 0o710) }},
		{name: "a file", there: func(dir string) error { return os.WriteFile(dir, nil, 0o700) }},
		{name: "a link", there: func(dir string) error { return os.Symlink(t.TempDir(), dir) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			state := t.TempDir()
			dir := filepath.Join(state, "workspaces")
			if err := tc.there(dir); err != nil {
				t.Fatal(err)
			}
			root, err := openWork(state, "workspaces")
			if (err == nil) != tc.ok {
				t.Fatalf("%v", err)
			}
			if err != nil {
				return
			}
			defer root.Close()
			if info, err := os.Lstat(dir); err != nil || info.Mode() != os.ModeDir|0o700 {
				t.Errorf("%v, %v", info, err)
			}
		})
	}
}
