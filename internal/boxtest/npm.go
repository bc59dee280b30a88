// SPDX-License-Identifier: Apache-2.0

package boxtest

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// NPM returns a directory with npm packages, which are fetched once.
func NPM(t testing.TB, packages string) string {
	t.Helper()
	for _, name := range []string{"node", "npm"} {
		if _, err := exec.LookPath(name); err != nil {
			Missing(t, name)
		}
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256([]byte(packages))
	dir := filepath.Join(cache, "boxd-test", "npm-"+hex.EncodeToString(sum[:8]))
	if _, err := os.Stat(dir); err == nil {
		return dir
	} else if !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	fresh, err := os.MkdirTemp(filepath.Dir(dir), "fetching-") //nolint:usetesting // beside where it is going to be
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(fresh) }()
	cmd := exec.CommandContext(t.Context(), "npm", append([]string{"install", "--prefix", fresh, "--ignore-scripts", "--no-audit", "--no-fund"}, strings.Fields(packages)...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("npm cannot fetch %s: %v\n%s", packages, err, out)
	}
	if err := os.Rename(fresh, dir); err != nil && !errors.Is(err, fs.ErrExist) {
		t.Fatal(err)
	}
	return dir
}
