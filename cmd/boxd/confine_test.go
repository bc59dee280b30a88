// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/isolation/statedir"
	"github.com/boxd-dev/boxd/supervisor/policy"
)

// fill writes files, each with its own path as text.
func fill(t *testing.T, dir string, names ...string) {
	t.Helper()
	for _, name := range names {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// Files that an earlier boxd stored in the state directory itself are moved, also if that is done twice.
func TestRecordsOfAnEarlierBoxdAreMoved(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	fill(t, state, "grants.json", "previews.json", "langbot-skills-taken/a", "workspaces/x", "store.img")
	check := func(want map[string]string) {
		t.Helper()
		if err := makeOwnDirs(state); err != nil {
			t.Fatal(err)
		}
		for name, text := range want {
			if got, err := os.ReadFile(filepath.Join(state, name)); string(got) != text {
				t.Errorf("%s is %q (%v), want %q", name, got, err, text)
			}
		}
		for _, name := range ownFiles {
			if _, err := os.Lstat(filepath.Join(state, name)); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s is where it was (%v)", name, err)
			}
		}
	}
	check(map[string]string{"daemon/grants.json": "grants.json", "daemon/previews.json": "previews.json", "daemon/langbot-skills-taken/a": "langbot-skills-taken/a", "workspaces/x": "workspaces/x", "store.img": "store.img"})
	check(map[string]string{"daemon/grants.json": "grants.json"})
	// An earlier boxd has run meanwhile.
	fill(t, state, "langbot-skills-taken/b", "langbot-skills-taken/a")
	if err := os.WriteFile(filepath.Join(state, "grants.json"), []byte("newer"), 0o600); err != nil {
		t.Fatal(err)
	}
	check(map[string]string{"daemon/grants.json": "newer", "daemon/langbot-skills-taken/a": "langbot-skills-taken/a", "daemon/langbot-skills-taken/b": "langbot-skills-taken/b", "daemon/previews.json": "previews.json"})
	for _, name := range ownDirs {
		if info, err := os.Stat(filepath.Join(state, name)); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("%s: info = %v, err = %v, want no error and info.Mode().Perm() == 0o700", name, info, err)
		}
	}
}

// confinedDir makes the test binary a child that has the restrictions of boxd; its value is a directory.
const confinedDir = "BOXD_TEST_CONFINED_DIR"

// A compromised boxd can open no file of the keeper in the state directory, and of the host only what the configuration names.
func TestAConfinedBoxdLeavesTheKeepersFilesAlone(t *testing.T) {
	t.Parallel()
	cfg := func(dir string) *Config {
		c := defaultConfig()
		c.Daemon.StateDir, c.Daemon.RuntimeDir, c.Daemon.Socket = filepath.Join(dir, "state"), filepath.Join(dir, "run"), filepath.Join(dir, "run/s")
		c.Daemon.Certificate = filepath.Join(dir, "live/cert.pem")
		c.Secrets = map[string]policy.Secret{"key": {File: filepath.Join(dir, "keys/key")}}
		return &c
	}
	if dir := os.Getenv(confinedDir); dir != "" {
		runtime.LockOSThread()
		tryConfined(dir, errors.Join(unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), restrict(cfg(dir).fileRules(filepath.Join(dir, "etc/box.toml")))))
	}
	if !canRestrictFiles() {
		boxtest.Missing(t, "Landlock of Linux 5.19")
	}
	dir := t.TempDir()
	fill(t, dir, "state/lock", "state/store.img", "state/host-quotas.lock", "state/workspaces/k/f", "state/spaces/k/f", "state/removed/f", "state/store/snapshots/k/f", "state/image-trees/t/f",
		"run/boxes/k/record", "etc/box.toml", "etc/box.toml.d/50.toml", "vendor/60.toml", "live/other", "archive/cert1.pem", "keys/key", "private/f")
	for link, to := range map[string]string{"live/cert.pem": "../archive/cert1.pem", "etc/box.toml.d/60.toml": "../../vendor/60.toml"} {
		if err := os.Symlink(to, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := makeOwnDirs(filepath.Join(dir, "state")); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestAConfinedBoxdLeavesTheKeepersFilesAlone$")
	cmd.Env = append(os.Environ(), confinedDir+"="+dir)
	if said, err := cmd.Output(); err != nil || string(said) != "done\n" {
		t.Errorf(`%v: the program prints %q, want no error and said == "done\n"`, err, said)
	}
}

// tryConfined opens what a boxd may, and what it may not.
func tryConfined(dir string, err error) {
	report := func(name string, err error) {
		if err != nil {
			fmt.Printf("%s: %v\n", name, err)
		}
	}
	report("confine", err)
	at := func(name string) string { return filepath.Join(dir, name) }
	read := func(name string) error { _, err := os.ReadFile(at(name)); return err }
	write := func(name string) error { return os.WriteFile(at(name), []byte("y"), 0o600) }
	for _, name := range []string{"etc/box.toml", "etc/box.toml.d/50.toml", "etc/box.toml.d/60.toml", "live/cert.pem", "live/other", "archive/cert1.pem", "keys/key", "state/lock"} {
		report(name, read(name))
	}
	for _, name := range append(ownDirs, "../run") {
		report(name, errors.Join(write("state/"+name+"/f"), read("state/"+name+"/f"), os.Remove(at("state/"+name+"/f"))))
	}
	_, err = os.ReadDir(at("state/workspaces/k"))
	report("names of workspaces", err)
	refused := func(what, name string, err error) {
		if !errors.Is(err, fs.ErrPermission) && !errors.Is(err, unix.EXDEV) {
			fmt.Printf("%s %s: %v\n", what, name, err)
		}
	}
	for _, name := range []string{"state/store.img", "state/host-quotas.lock", "state/workspaces/k/f", "state/spaces/k/f", "state/removed/f", "state/store/snapshots/k/f", "state/image-trees/t/f", "private/f", "state/new", "state/workspaces/new", "etc/box.toml", "keys/key"} {
		refused("write to", name, write(name))
	}
	for _, name := range []string{"state/store.img", "state/workspaces/k/f", "state/spaces/k/f", "state/store/snapshots/k/f", "state/image-trees/t/f", "private/f"} {
		refused("read", name, read(name))
	}
	for from, to := range map[string]string{"state/workspaces/k/f": "state/sessions/f", "state/workspaces/k": "state/sessions/k", "state/store.img": "state/sessions/store"} {
		refused("move", from, os.Rename(at(from), at(to)))
	}
	fmt.Println("done")
	os.Exit(0)
}

// Files that a confined boxd reads at its start are beside those that its configuration names; the keeper's are not.
func TestFilesOfTheConfigurationAreReadable(t *testing.T) {
	t.Parallel()
	with := func(file string) *Config {
		c := defaultConfig()
		c.Secrets = map[string]policy.Secret{"key": {File: file}}
		return &c
	}
	all := defaultConfig()
	all.Access.Tokens, all.LangBot.TokenFile, all.E2B.Certificate, all.E2B.Key, all.Traces.HeadersFile, all.Traces.CA = "/srv/1/f", "/srv/2/f", "/srv/3/f", "/srv/4/f", "/srv/5/f", "/srv/6/f"
	all.Daemon.Certificate, all.Daemon.PrivateKey, all.Daemon.ClientCA, all.Daemon.ClientCRL = "/srv/7/f", "/srv/8/f", "/srv/9/f", "/srv/10/f"
	all.Secrets, all.Buckets = map[string]policy.Secret{"a.b": {File: "/srv/11/f", Authorities: "/srv/12/f"}}, map[string]policy.Bucket{"c": {File: "/srv/13/f"}}
	if named, readable := all.named(), all.readable(); len(named) != 13 || len(readable) != 13 {
		t.Errorf("named are %q, readable %q", named, readable)
	}
	// A file beside the keeper's does not open those.
	for _, file := range []string{"/key", "/var/key", "/var/lib/key", "/var/lib/boxd/key"} {
		if got := with(file).readable(); !slices.Contains(got, file) || slices.Contains(got, filepath.Dir(file)) {
			t.Errorf("%s: got %q, want got containing file and got without filepath.Dir(file)", file, got)
		}
	}
	if rules := with("/srv/key").fileRules(defaultPath); !slices.Contains(rules, fileRule{"/etc/boxd", readFiles}) || slices.ContainsFunc(rules, func(r fileRule) bool {
		return r.access == writeFiles && strings.TrimSuffix(r.path, "/") == "/var/lib/boxd"
	}) {
		t.Errorf("rules: %v", rules)
	}
	if !slices.Contains(ownDirs, statedir.Daemon) {
		t.Error("the directories that boxd may write to lack that of its own records")
	}
}
