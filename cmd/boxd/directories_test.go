// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/internal/durable"
	"github.com/boxd-dev/boxd/internal/fdpass"
	"github.com/boxd-dev/boxd/internal/linux"
)

// stranger is the unprivileged user that boxd runs as in these tests.
var stranger = identity{64321, 64322}

// owners returns who has which files below a directory.
func owners(t *testing.T, dir string) map[string]identity {
	t.Helper()
	all := map[string]identity{}
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := os.Lstat(path)
		if err != nil {
			return err
		}
		st := info.Sys().(*syscall.Stat_t)
		all[strings.TrimPrefix(strings.TrimPrefix(path, dir), "/")] = identity{int(st.Uid), int(st.Gid)}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// A boxd that is not root gets its directories, and what an earlier boxd has left in them, and nothing of the keeper's.
func TestDirectoriesAreChownedToTheUserOfBoxd(t *testing.T) {
	t.Parallel()
	boxtest.RequireRoot(t)
	dir := t.TempDir()
	cfg := &Daemon{StateDir: filepath.Join(dir, "state"), RuntimeDir: filepath.Join(dir, "run")}
	fill(t, cfg.StateDir, "grants.json", "sessions/a.json", "skills/builtin/trees/t/SKILL.md", "audit/log", "workspaces/key/file", "store.img")
	if err := os.Symlink(filepath.Join(cfg.StateDir, "store.img"), filepath.Join(cfg.StateDir, "skills/link")); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := prepareDirs(cfg, stranger); err != nil {
			t.Fatal(err)
		}
	}
	root := identity{0, 0}
	all := owners(t, cfg.StateDir)
	for path, want := range map[string]identity{
		"": root, "lock": stranger, "daemon": stranger, "daemon/grants.json": stranger, "sessions/a.json": stranger, "skills/builtin/trees/t/SKILL.md": stranger, "skills/link": stranger,
		"audit/log": stranger, "images": stranger, "usage": stranger, "workspaces": root, "workspaces/key/file": root, "store.img": root,
	} {
		if got, exists := all[path]; got != want || !exists {
			t.Errorf("%q belongs to %v (%v), want %v", path, got, exists, want)
		}
	}
	for path, want := range map[string]fs.FileMode{cfg.StateDir: 0o711, filepath.Join(cfg.StateDir, "daemon"): 0o700, cfg.RuntimeDir: 0o755, filepath.Join(cfg.RuntimeDir, "keeper"): 0o750, filepath.Join(cfg.RuntimeDir, "boxes"): 0o700, filepath.Join(cfg.RuntimeDir, "box.toml.d"): 0o755} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v, want %v", path, info, err, want)
		}
	}
}

// Before a downgrade to a boxd that is root all becomes root's again, and closed to all others.
func TestDirectoriesAreChownedToRootForADowngrade(t *testing.T) {
	t.Parallel()
	boxtest.RequireRoot(t)
	dir := t.TempDir()
	cfg := &Daemon{StateDir: filepath.Join(dir, "state"), RuntimeDir: filepath.Join(dir, "run")}
	fill(t, cfg.StateDir, "sessions/a.json", "skills/builtin/trees/t/SKILL.md", "workspaces/key/file", "store/spaces/key/file")
	if err := prepareDirs(cfg, stranger); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"workspaces", "store/spaces"} { // as the keeper does
		if err := os.Chmod(filepath.Join(cfg.StateDir, name), 0o740); err != nil {
			t.Fatal(err)
		}
	}
	if err := prepareDirs(cfg, identity{0, 0}); err != nil {
		t.Fatal(err)
	}
	for path, got := range owners(t, cfg.StateDir) {
		if got != (identity{0, 0}) {
			t.Errorf("%q belongs to %v, want got == identity{0, 0}", path, got)
		}
	}
	for _, path := range []string{cfg.StateDir, cfg.StateDir + "/sessions", cfg.StateDir + "/workspaces", cfg.StateDir + "/store/spaces", cfg.RuntimeDir + "/keeper"} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("%s: info = %v, err = %v, want no error and info.Mode().Perm() == 0o700", path, info, err)
		}
	}
	// Programs that other tests are just starting may still hold the lock of prepareDirs.
	lock, err := lockState(cfg.StateDir, linux.StartPatience)
	if err != nil {
		t.Fatal(err)
	}
	lock.Close()
}

// Files that belong to the user already are not changed: a compromised boxd could have placed links to any file there.
func TestADirectoryThatBoxdOwnsAlreadyIsNotWalkedAgain(t *testing.T) {
	t.Parallel()
	boxtest.RequireRoot(t)
	cfg := &Daemon{StateDir: filepath.Join(t.TempDir(), "state"), RuntimeDir: t.TempDir()}
	if err := prepareDirs(cfg, stranger); err != nil {
		t.Fatal(err)
	}
	secret, planted := filepath.Join(cfg.StateDir, "store.img"), filepath.Join(cfg.StateDir, "sessions/x.json")
	if err := os.WriteFile(secret, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(secret, planted); err != nil {
		t.Fatal(err)
	}
	mark := filepath.Join(cfg.StateDir, "sessions/mark") // of which a second look would change the group
	if err := os.WriteFile(mark, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(mark, stranger.uid, 0); err != nil {
		t.Fatal(err)
	}
	if err := prepareDirs(cfg, stranger); err != nil {
		t.Fatal(err)
	}
	all := owners(t, cfg.StateDir)
	if all["store.img"] != (identity{0, 0}) || all["sessions/mark"] != (identity{stranger.uid, 0}) {
		t.Errorf("the file of the keeper belongs to %v, that of boxd to %v", all["store.img"], all["sessions/mark"])
	}
}

// What has another name, perhaps among the keeper's files, is not given, but for the versions of skills and drives.
func TestAHardLinkedFileIsNotChowned(t *testing.T) {
	t.Parallel()
	boxtest.RequireRoot(t)
	cfg := &Daemon{StateDir: filepath.Join(t.TempDir(), "state"), RuntimeDir: t.TempDir()}
	fill(t, cfg.StateDir, "host-quotas", "usage/own", "skills/u/trees/a/f", "skills/u/trees/b/g")
	for name, to := range map[string]string{"usage/planted": "host-quotas", "skills/u/trees/b/f": "skills/u/trees/a/f"} {
		if err := os.Link(filepath.Join(cfg.StateDir, to), filepath.Join(cfg.StateDir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := prepareDirs(cfg, stranger); err != nil {
		t.Fatal(err)
	}
	all := owners(t, cfg.StateDir)
	for path, want := range map[string]identity{"host-quotas": {0, 0}, "usage/planted": {0, 0}, "usage/own": stranger, "skills/u/trees/b/f": stranger} {
		if all[path] != want {
			t.Errorf("%s belongs to %v, want %v", path, all[path], want)
		}
	}
}

// A directory of a third user, who could change it meanwhile, and one that is elsewhere are left to the administrator.
func TestADirectoryOfAThirdUserIsNotChowned(t *testing.T) {
	t.Parallel()
	boxtest.RequireRoot(t)
	elsewhere := t.TempDir()
	for name, make := range map[string]func(path string) error{
		"belongs to uid 64399": func(path string) error { return errors.Join(os.MkdirAll(path, 0o700), os.Chown(path, 64399, 0)) },
		"is a symbolic link to what belongs to uid 0": func(path string) error {
			return errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.Symlink(elsewhere, path))
		},
	} {
		cfg := &Daemon{StateDir: filepath.Join(t.TempDir(), "state"), RuntimeDir: t.TempDir()}
		if err := make(filepath.Join(cfg.StateDir, "audit")); err != nil {
			t.Fatal(err)
		}
		if err := prepareDirs(cfg, stranger); err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), "chown -R") {
			t.Errorf("%v, want %q", err, name)
		}
	}
	if err := os.Chown(elsewhere, stranger.uid, stranger.gid); err != nil {
		t.Fatal(err)
	}
	cfg := &Daemon{StateDir: filepath.Join(t.TempDir(), "state"), RuntimeDir: t.TempDir()}
	fill(t, cfg.StateDir, "store.img")
	if err := os.Link(filepath.Join(cfg.StateDir, "store.img"), filepath.Join(cfg.StateDir, "lock")); err != nil {
		t.Fatal(err)
	}
	if err := prepareDirs(cfg, stranger); err == nil || !strings.Contains(err.Error(), "lock has more than one hard link") || owners(t, cfg.StateDir)["store.img"] != (identity{0, 0}) {
		t.Errorf(`a lock that is the keeper's file: err = %v, want an error containing "lock has more than one hard link" and owners(t, cfg.StateDir)["store.img"] == identity{0, 0}`,
			err)
	}
	cfg = &Daemon{StateDir: filepath.Join(t.TempDir(), "state"), RuntimeDir: t.TempDir()}
	if err := errors.Join(os.MkdirAll(cfg.StateDir, 0o700), os.Symlink(elsewhere, filepath.Join(cfg.StateDir, "audit")), prepareDirs(cfg, stranger)); err != nil {
		t.Error(err)
	}
}

// A give that was interrupted is completed by the next: the directory itself is the user's only when all in it is.
func TestAnInterruptedChownIsCompleted(t *testing.T) {
	t.Parallel()
	boxtest.RequireRoot(t)
	cfg := &Daemon{StateDir: filepath.Join(t.TempDir(), "state"), RuntimeDir: t.TempDir()}
	fill(t, cfg.StateDir, "sessions/a.json", "sessions/b.json")
	if err := os.Chown(filepath.Join(cfg.StateDir, "sessions/a.json"), stranger.uid, stranger.gid); err != nil {
		t.Fatal(err)
	}
	if err := prepareDirs(cfg, stranger); err != nil {
		t.Fatal(err)
	}
	for path, got := range owners(t, filepath.Join(cfg.StateDir, "sessions")) {
		if got != stranger {
			t.Errorf("%q belongs to %v, want got == %v", path, got, stranger)
		}
	}
}

// If a file cannot be chowned, its directory is not either: the next attempt must check it again.
func TestADirectoryIsChownedAfterItsContents(t *testing.T) {
	t.Parallel()
	boxtest.RequireRoot(t)
	cfg := &Daemon{StateDir: filepath.Join(t.TempDir(), "state"), RuntimeDir: t.TempDir()}
	fill(t, cfg.StateDir, "sessions/a.json")
	f, err := os.Open(filepath.Join(cfg.StateDir, "sessions/a.json"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	immutable := func(flags int) error { // ioctl_iflags(2)
		return unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, flags)
	}
	if err := immutable(fsImmutable); err != nil {
		boxtest.Missing(t, "a filesystem whose files can be made immutable")
	}
	defer func() { _ = immutable(0) }()
	if err := prepareDirs(cfg, stranger); err == nil {
		t.Error("no error, though a file could not be chowned")
	}
	if got := owners(t, cfg.StateDir)["sessions"]; got != (identity{0, 0}) {
		t.Errorf("the directory belongs to %v, want identity{0, 0}", got)
	}
	if err := errors.Join(immutable(0), prepareDirs(cfg, stranger)); err != nil {
		t.Fatal(err)
	}
	if all := owners(t, cfg.StateDir); all["sessions"] != stranger || all["sessions/a.json"] != stranger {
		t.Errorf("in the end they belong to %v and %v", all["sessions"], all["sessions/a.json"])
	}
}

// fsImmutable is FS_IMMUTABLE_FL of <linux/fs.h>.
const fsImmutable = 0x10

func TestAUserThatDoesNotExistIsRefused(t *testing.T) {
	t.Parallel()
	if _, err := userOf("nobody-at-all"); err == nil || !strings.Contains(err.Error(), "-user nobody-at-all") || !strings.Contains(err.Error(), "systemd-sysusers") {
		t.Errorf(`err = %v, want an error containing "-user nobody-at-all" and err containing "systemd-sysusers"`, err)
	}
	if who, err := userOf(""); err != nil || who != (identity{os.Geteuid(), os.Getegid()}) {
		t.Errorf("who = %v, err = %v, want no error and who == identity{os.Geteuid(), os.Getegid()}", who, err)
	}
}

// handedVariable makes the test binary a child of another user that requests files; its value is the socket and the files.
const handedVariable = "BOXD_TEST_HANDED"

// A boxd that is not root gets the files of root that the configuration names, and no others.
func TestFilesOfRootAreHandedOver(t *testing.T) {
	t.Parallel()
	if list := os.Getenv(handedVariable); list != "" {
		handed(strings.Split(list, ","))
	}
	boxtest.RequireRoot(t)
	dir := boxtest.TempDir(t)
	at := func(name string) string { return filepath.Join(dir, name) }
	fill(t, dir, "closed/key", "tokens", "other", "box.toml.d/x.toml")
	for link, to := range map[string]string{"link": "other", "named": "tokens"} {
		if err := os.Symlink(at(to), at(link)); err != nil {
			t.Fatal(err)
		}
	}
	text := "[daemon]\nprivate_key = \"" + at("closed/key") + "\"\ncertificate = \"" + at("missing") + "\"\nclient_ca = \"" + at("link") + "\"\n[access]\ntokens = \"" + at("named") + "\"\n"
	if err := os.WriteFile(at("box.toml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var writing atomic.Bool // the configuration is being written
	load := func() (cfg Config, err error) {
		if writing.Load() {
			return cfg, errors.New("not now")
		}
		return cfg, cfg.decode(at("box.toml"), text)
	}
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	files := &fileServer{path: at("box.toml"), load: load, log: log, named: map[string]bool{}}
	socket := at("s")
	serve := func(boxdUser identity) (end func()) {
		t.Helper()
		root, err := os.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer root.Close()
		fd, err := fdpass.Bind(int(root.Fd()), "s")
		if err == nil {
			err = os.Chmod(socket, 0o666) // the unit gives it to boxd alone; here the service looks itself
		}
		if err != nil {
			t.Fatal(err)
		}
		listener, err := fdpass.NewListener(fd)
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error)
		go func() {
			ended <- (&helper{unit: "boxd-files", boxdUser: boxdUser, serve: files.serve, log: log}).accept(t.Context(), listener)
		}()
		return func() {
			listener.Close()
			<-ended
			if err := os.Remove(socket); err != nil {
				t.Error(err)
			}
		}
	}
	ask := func() string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestFilesOfRootAreHandedOver$")
		cmd.Env = append(os.Environ(), handedVariable+"="+strings.Join([]string{socket, at("closed/key"), at("named"), at("tokens"), at("link"), at("other"), at("missing"), at("box.toml"), at("box.toml.d/x.toml"), "/etc/shadow"}, ","))
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(stranger.uid), Gid: uint32(stranger.gid)}}
		said, err := cmd.Output()
		if err != nil {
			t.Fatalf("%v: %s", err, said)
		}
		return string(said)
	}
	end := serve(stranger)
	const only = ": boxd-files.service opens only files that the configuration names\n"
	want := "closed/key is closed/key\nnamed is tokens\nopen " + at("tokens") + only + "link is other\nopen " + at("other") + only + "open " + at("missing") + ": no such file or directory\n" +
		"box.toml is " + text + "\nbox.toml.d/x.toml is box.toml.d/x.toml\nopen /etc/shadow" + only
	if got := strings.ReplaceAll(ask(), dir+"/closed", "closed"); got != strings.ReplaceAll(want, dir+"/closed", "closed") {
		t.Errorf("the program prints\n%s, want\n%s", got, want)
	}
	// While the configuration is being written, the files that it named before can be read.
	writing.Store(true)
	if got := ask(); !strings.Contains(got, "named is tokens\n") || !strings.Contains(got, "open /etc/shadow: the configuration cannot be read: not now\n") {
		t.Errorf("without a configuration the program prints\n%s", got)
	}
	end()
	end = serve(identity{stranger.uid + 1, 0})
	defer end()
	if got := ask(); strings.Contains(got, " is ") || !strings.Contains(got, "permission denied") {
		t.Errorf(`another user gets %s, want got without " is " and got containing "permission denied"`, got)
	}
}

// handed requests files from a service and prints what it gets.
func handed(list []string) {
	for _, path := range list[1:] {
		f, err := durable.OpenAt(list[0], path)
		if err != nil {
			os.Stdout.WriteString(err.Error() + "\n")
			continue
		}
		text := make([]byte, 4096)
		n, _ := f.Read(text)
		if _, err := f.Write(text[:1]); err == nil {
			os.Stdout.WriteString("it can be written to: ")
		}
		os.Stdout.WriteString(strings.TrimPrefix(path, filepath.Dir(list[0])+"/") + " is " + string(text[:n]) + "\n")
		_ = f.Close()
	}
	os.Exit(0)
}
