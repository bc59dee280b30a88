// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// closed refuses a file that users other than its owner can write or replace: its content decides what boxd allows. What belongs to this user,
// who is not root, is this user's matter.
func closed(path string) error {
	for _, p := range []string{path, filepath.Dir(path)} {
		info, err := os.Stat(p)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if errors.Is(err, fs.ErrPermission) { // by who is not root; boxd -prepare, which is, has looked
			continue
		}
		if err != nil {
			return fmt.Errorf("configuration: %w", err)
		}
		if uid := os.Geteuid(); uid != 0 && owner(info) == uid {
			continue
		}
		shared := info.Mode()&fs.ModeSticky != 0 // like /tmp: no user can replace another's file
		if info.Mode().Perm()&0o022 != 0 && !shared {
			return fmt.Errorf("configuration: users other than its owner can write %s (mode %#o): must be a mode such as %#o", p, info.Mode().Perm(), info.Mode().Perm()&^0o022)
		}
	}
	return nil
}
