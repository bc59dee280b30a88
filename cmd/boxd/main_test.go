// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/internal/linux"
	"github.com/boxd-dev/boxd/supervisor/policy"
)

// quiet returns a log and its content.
func quiet() (*slog.Logger, *bytes.Buffer) {
	var text bytes.Buffer
	return slog.New(slog.NewTextHandler(&text, nil)), &text
}

// Not parallel: listen briefly changes the umask of the process.
func TestOnlyAStaleSocketIsReplaced(t *testing.T) {
	log, _ := quiet()
	socket := func(t *testing.T) string { return filepath.Join(t.TempDir(), "run", "s") }
	t.Run("nothing there", func(t *testing.T) {
		path := socket(t)
		ln, err := listen(t.Context(), path, "no such group", log)
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("mode %v, %v: without a group the socket must be its owner's alone", info, err)
		}
	})
	t.Run("left by a dead boxd", func(t *testing.T) {
		path := socket(t)
		if err := os.Mkdir(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		dead.SetUnlinkOnClose(false)
		dead.Close()
		ln, err := listen(t.Context(), path, "no such group", log)
		if err != nil {
			t.Fatal(err)
		}
		ln.Close()
	})
	t.Run("a living boxd's", func(t *testing.T) {
		path := socket(t)
		cfg := Daemon{Socket: path, SocketGroup: "no such group"}
		ln, err := listen(t.Context(), cfg.Socket, cfg.SocketGroup, log)
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		if _, err := listen(t.Context(), cfg.Socket, cfg.SocketGroup, log); err == nil || !strings.Contains(err.Error(), "in use by another boxd") {
			t.Errorf(`err = %v, want an error containing "in use by another boxd"`, err)
		}
		if conn, err := net.Dial("unix", path); err != nil {
			t.Errorf("the first has lost its socket: %v", err)
		} else {
			conn.Close()
		}
	})
	t.Run("something else", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "passwd")
		if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := listen(t.Context(), path, "", log); err == nil || !strings.Contains(err.Error(), "path is not a socket") {
			t.Errorf(`err = %v, want an error containing "path is not a socket"`, err)
		}
		if data, err := os.ReadFile(path); err != nil || string(data) != "precious" {
			t.Errorf(`data = %q, err = %v, want no error and data == "precious"`, data, err)
		}
	})
}

func TestTheStateDirectoryIsPrivateAndLocked(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	lock, err := lockState(dir, 0)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("info = %v, err = %v, want no error and info.Mode().Perm() == 0o700", info, err)
	}
	if _, err := lockState(dir, 0); err == nil || !strings.Contains(err.Error(), dir+" is in use by another boxd") {
		t.Errorf(`locked twice: err = %v, want an error containing dir + " is in use by another boxd"`, err)
	}
	lock.Close()
	if lock, err = lockState(dir, linux.StartPatience); err != nil {
		t.Fatalf("after the first has released it: %v", err)
	}
	lock.Close()
	if err := os.Chmod(dir, 0o750); err != nil {
		t.Fatal(err)
	}
	if _, err := lockState(dir, 0); err == nil || !strings.Contains(err.Error(), "want mode 0700") {
		t.Errorf(`open to a group: err = %v, want an error containing "want mode 0700"`, err)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	if _, err := lockState(link, 0); err == nil {
		t.Error("a symbolic link was accepted as state directory")
	}
}

func TestTheRuntimeDirectoryIsLockedAndTheKeepersPrivate(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run", "boxd")
	lock, err := lockRun(dir, 0)
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]os.FileMode{dir: 0o755, filepath.Join(dir, "keeper"): 0o700} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v, want %v", path, info, err, want)
		}
	}
	if _, err := lockRun(dir, 0); err == nil || !strings.Contains(err.Error(), dir+" is in use by another boxd") {
		t.Errorf(`locked twice: err = %v, want an error containing dir + " is in use by another boxd"`, err)
	}
	lock.Close()
	if err := os.Chmod(filepath.Join(dir, "keeper"), 0o770); err != nil {
		t.Fatal(err)
	}
	if _, err := lockRun(dir, 0); err == nil || !strings.Contains(err.Error(), "want mode 0700") {
		t.Errorf(`open to a group: err = %v, want an error containing "want mode 0700"`, err)
	}
}

func TestASocketForEverybodyIsRefused(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s")
	ln, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	for mode, want := range map[os.FileMode]bool{0o600: true, 0o660: true, 0o755: true, 0o662: false, 0o666: false, 0o777: false} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		if err := closedSocket(path); (err == nil) != want {
			t.Errorf("mode %o: err = %v, want (err == nil) == %v", mode, err, want)
		}
	}
	if err := closedSocket("@abstract"); err != nil {
		t.Error(err)
	}
}

// A policy that names principals but applies to none is a mistake in the file.
func TestAPolicyThatAppliesToNobodyIsRefused(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"[policy.a]\nprincipals = [\"no-such-user\"]\n": `policy.a.principals = "no-such-user": must be the name of a table [principals.NAME], uid:N, or a user of this host`,
		"[policy.a]\nsessions = 1\n":                    "policy.a: must have principals, groups or roles",
		"[principals.d]\nuser = \"daemon\"\n[policy.a]\nprincipals = [\"d\"]\n[policy.b]\nprincipals = [\"uid:1\"]\n": `policy.b.principals = "uid:1": must be in one table only, and is also in policy.a`,
		"[principals.a]\nuser = \"no-such-user\"\n":                                          `principals.a matches no caller: `,
		"[traces]\nendpoint = \"http://127.0.0.1:4318\"\nheaders_file = \"/no/such/file\"\n": "traces.headers_file: ",
		"[policy.a]\nprincipals = [\"daemon\", \"uid:7\"]\n[access]\ntokens = \"\"\n":        "",
	} {
		path := filepath.Join(t.TempDir(), "box.toml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		err := run(t.Context(), []string{"-check", "-config", path})
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// Settings without effect are reported when a configuration is checked and at startup, and are no failure.
func TestSettingsWithoutEffectAreReported(t *testing.T) {
	t.Parallel()
	cfg := defaultConfig()
	cfg.Image.Etc = append(cfg.Image.Etc, "no-such-*/x", "!passwd", "hostname*")
	cfg.Mounts.Allow = append(cfg.Mounts.Allow, Rule{Path: "/no/such/directory"}, Rule{Path: "/usr"})
	cfg.Mounts.QuotaRoots = []string{"/no/such/root"}
	cfg.E2B.Fleet, cfg.LangBot.Fleet = true, true
	p := cfg.Profiles["default"]
	p.NetworkRules = []string{"no-such-host.invalid", "*.example.org", "10.0.0.0/8 tcp"}
	cfg.Profiles = map[string]policy.Profile{"default": p}
	got := strings.Join(cfg.idle(), "\n")
	want := "image.etc has \"no-such-*/x\", which matches no file in /etc\nmounts.allow has \"/no/such/directory\": stat /no/such/directory: no such file or directory\n" +
		"mounts.quota_roots has \"/no/such/root\": stat /no/such/root: no such file or directory\ne2b.fleet, as fleet.gateways names no gateway\nlangbot.fleet, as fleet.gateways names no gateway"
	if got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
	if all := cfg.unresolved(t.Context()); len(all) != 1 || !strings.HasPrefix(all[0], `profiles.default.network_rules has "no-such-host.invalid": `) {
		t.Errorf("all = %q, want len(all) == 1 and all[0] starting with `profiles.default.network_rules has \"no-such-host.invalid\": `",
			all)
	}
}

// What a configuration takes away from existing owners is reported before it applies.
func TestConfigCheckReportsWhatExistingOwnersLose(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "box.toml")
	text := "[access]\ntokens = \"\"\n[principals.d]\nrole = \"none\"\nuser = \"daemon\"\n[sessions]\nmax = 9\nmax_per_owner = 9\n[profiles.default]\nlocked = [\"memory\"]\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := loadConfig(path, true, nil)
	if err != nil {
		t.Fatal(err)
	}
	state, err := prepareGate(&cfg, &cfg.Daemon, "", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	kept := `"network":"off","image":"host","read_only_root":true,"cpus":1,"oom":"program","pids":128,"cpu_weight":100,"io_weight":100,"tmp":1048576,"workspace_quota":1073741824,"workspace_inodes":1000,` +
		`"enforcement":{"memory":"cgroup2","cpu":"cgroup2","pids":"cgroup2","workspace":"store"}`
	in := `{"settings":[{"key":"sessions.max","value":"256"},{"key":"no.more","value":"1"},{"key":"profiles.default.home","value":"\"/home/box\""}],"sessions":[` +
		`{"id":"fine","owner":"uid:0","owner_uid":0,"profile":"default","memory":536870912,` + kept + `},` +
		`{"id":"big","owner":"uid:0","owner_uid":0,"profile":"default","memory":1073741824,` + kept + `},` +
		`{"id":"lost","owner":"was","owner_uid":65534,"profile":"no-more","memory":536870912,` + kept + `},` +
		`{"id":"out","owner":"uid:1","owner_uid":1,"profile":"default","memory":536870912,` + kept + `}]}`
	var out strings.Builder
	if err := against(&cfg, state, strings.NewReader(in), &out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"changed: sessions.max = 9, was 256\n", "gone: no.more = 1\n", "loses access: was; processes end\n", "loses access: uid:1; processes end\n", "renamed: uid:1 becomes d and loses access",
		`ends when boxd restarts: session "big" of uid:0: memory = 1GiB: must be 512MiB, as profile "default" locks it` + "\n", `ends when boxd restarts: session "lost" of was: profile = "no-more"`,
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, out.String())
		}
	}
	for _, not := range []string{`session "fine"`, `session "out"`, "shut out: uid:0", "renamed: uid:0", "renamed: was"} {
		if strings.Contains(out.String(), not) {
			t.Errorf("%q is in\n%s", not, out.String())
		}
	}
	if err := against(&cfg, state, strings.NewReader("x"), &out); err == nil {
		t.Error("no error for an answer that is not boxd's")
	}
}
