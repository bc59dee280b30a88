// SPDX-License-Identifier: Apache-2.0

package clients_test

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
)

const typescript = "../../clients/typescript"

// npm runs npm in a directory.
func npm(t *testing.T, dir string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "npm", args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("npm %v: %v\n%s", args, err, out)
	}
}

// compiler returns a directory with the compiler that the package names, which is downloaded once.
func compiler(t *testing.T) string {
	t.Helper()
	need(t, "node")
	need(t, "npm")
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	lock, err := os.ReadFile(filepath.Join(typescript, "package-lock.json"))
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(lock)
	dir := filepath.Join(cache, "boxd-test", "npm-"+hex.EncodeToString(sum[:8]))
	if _, err := os.Stat(dir); err == nil {
		return dir
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	fresh, err := os.MkdirTemp(filepath.Dir(dir), "fetching-") //nolint:usetesting // beside where it is going to be
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(fresh)
	for _, name := range []string{"package.json", "package-lock.json"} {
		copyFile(t, filepath.Join(typescript, name), filepath.Join(fresh, name))
	}
	npm(t, fresh, "ci", "--ignore-scripts", "--no-audit", "--no-fund")
	if err := os.Rename(fresh, dir); err != nil && !errors.Is(err, fs.ErrExist) {
		t.Fatal(err)
	}
	return dir
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	data, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// compiled returns a compiled copy of the TypeScript client.
func compiled(t *testing.T) string {
	t.Helper()
	modules := filepath.Join(compiler(t), "node_modules")
	dir := boxtest.TempDir(t)
	for _, name := range []string{"package.json", "tsconfig.json", "tsconfig.tests.json", "README.md"} {
		copyFile(t, filepath.Join(typescript, name), filepath.Join(dir, name))
	}
	for _, name := range []string{"src", "tests", "examples"} {
		if err := os.CopyFS(filepath.Join(dir, name), os.DirFS(filepath.Join(typescript, name))); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(modules, filepath.Join(dir, "node_modules")); err != nil {
		t.Fatal(err)
	}
	npm(t, dir, "run", "build")
	return dir
}

var passed = regexp.MustCompile(`(?m)^# pass (\d{2,})$`)

// The TypeScript client compiles, and its tests pass, both against faulty servers and against boxd. They use every route for
// agents, except the one that passes descriptors, which Node cannot receive. Tests and examples pass the type check.
func TestTheTypeScriptClient(t *testing.T) {
	dir := compiled(t)
	npm(t, dir, "run", "check")
	h, out := start(t), ""
	h.asksForAll(t, []string{"GET /v1/sessions/{id}/processes/{p}/stdio"}, func() {
		out = h.runs(t, dir, nil, "node", "--test", "--test-concurrency=1", "--test-reporter=tap", "tests/")
	})
	if !passed.MatchString(out) {
		t.Errorf("which tests have run?\n%s", out)
	}
}

func TestExamplesOfTypeScript(t *testing.T) {
	start(t).examples(t, compiled(t), ".js", nil, "node")
}
