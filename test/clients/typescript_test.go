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
	"sync"
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
	if err := copied(from, to); err != nil {
		t.Fatal(err)
	}
}

func copied(from, to string) error {
	data, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, data, 0o600)
	}
	return err
}

// work is a directory that is removed after the last test.
var work string

func TestMain(m *testing.M) {
	var err error
	if work, err = os.MkdirTemp("", "boxd-clients"); err != nil {
		panic(err)
	}
	code := m.Run()
	_ = os.RemoveAll(work)
	os.Exit(code)
}

// sources copies the TypeScript client to a directory, with a link to what npm has fetched for it.
func sources(dir, modules string) error {
	errs := []error{os.Symlink(modules, filepath.Join(dir, "node_modules"))}
	for _, name := range []string{"package.json", "tsconfig.json", "tsconfig.tests.json", "README.md"} {
		errs = append(errs, copied(filepath.Join(typescript, name), filepath.Join(dir, name)))
	}
	for _, name := range []string{"src", "tests", "examples"} {
		errs = append(errs, os.CopyFS(filepath.Join(dir, name), os.DirFS(filepath.Join(typescript, name))))
	}
	return errors.Join(errs...)
}

var compiling sync.Once

// compiled returns a copy of the TypeScript client that has been compiled, which is done once for all tests.
func compiled(t *testing.T) string {
	t.Helper()
	modules := filepath.Join(compiler(t), "node_modules")
	dist := filepath.Join(work, "typescript", "dist")
	compiling.Do(func() {
		dir := filepath.Dir(dist)
		if err := errors.Join(os.Mkdir(dir, 0o755), sources(dir, modules)); err != nil {
			t.Fatal(err)
		}
		npm(t, dir, "run", "build")
	})
	dir := boxtest.TempDir(t)
	if err := errors.Join(sources(dir, modules), os.CopyFS(filepath.Join(dir, "dist"), os.DirFS(dist))); err != nil {
		t.Fatal(err) // of dist, where it could not be compiled
	}
	return dir
}

var passed = regexp.MustCompile(`(?m)^# pass (\d{2,})$`)

// The TypeScript client compiles, and its tests pass, both against faulty servers and against boxd. They use every route for
// agents, except the one that passes descriptors, which Node cannot receive. Tests and examples pass the type check.
func TestTheTypeScriptClient(t *testing.T) {
	t.Parallel()
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
	t.Parallel()
	start(t).examples(t, compiled(t), ".js", nil, "node")
}
