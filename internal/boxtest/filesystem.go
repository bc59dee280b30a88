// SPDX-License-Identifier: Apache-2.0

package boxtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// HasFilesystem reports whether NewFilesystem can make this kind, for a test that can do without.
func HasFilesystem(kind string) bool {
	known, err := os.ReadFile("/proc/filesystems")
	_, missing := exec.LookPath("mkfs." + kind)
	return os.Geteuid() == 0 && err == nil && missing == nil && strings.Contains(string(known), "\t"+kind+"\n")
}

// NewFilesystem makes a filesystem of this kind in a sparse file of 2 GiB, and mounts it until the test ends. Where that is not
// possible, the test is left to another ground.
func NewFilesystem(t testing.TB, kind string) (dir string) {
	t.Helper()
	RequireRoot(t)
	program := "mkfs." + kind
	RequireProgram(t, program)
	at := TempDir(t)
	image, dir := filepath.Join(at, "image"), filepath.Join(at, "mounted")
	err := os.WriteFile(image, nil, 0o600)
	if err == nil {
		err = os.Truncate(image, 2<<30)
	}
	if err == nil {
		err = os.Mkdir(dir, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), program, "-q", image).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", program, err, out)
	}
	if out, err := exec.CommandContext(t.Context(), "mount", "-t", kind, "-o", "loop", image, dir).CombinedOutput(); err != nil {
		Missing(t, "mount of a "+kind+" in a file: "+strings.TrimSpace(string(out)))
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}
