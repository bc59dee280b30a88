// SPDX-License-Identifier: Apache-2.0

package boxtest

import (
	"os"
	"path/filepath"
	"testing"
)

// MountSources allows the directories of MountSource as sources of mounts.
const MountSources = "[mounts]\nallow = [\"%DIR%/lent\"]\n"

// MountSource makes a directory with this owner that may be mounted if the configuration has
// MountSources.
func (d *Daemon) MountSource(t testing.TB, name string, owner int) string {
	t.Helper()
	dir := filepath.Join(d.Dir, "lent", name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(dir, owner, owner); err != nil {
		t.Fatal(err)
	}
	return dir
}

// NamedMountSource is MountSource with a file "name" in it that belongs to root and contains its
// name.
func (d *Daemon) NamedMountSource(t testing.TB, name string, owner int) string {
	t.Helper()
	dir := d.MountSource(t, name, owner)
	if err := os.WriteFile(filepath.Join(dir, "name"), []byte(name), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}
