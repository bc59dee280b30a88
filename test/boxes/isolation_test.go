// SPDX-License-Identifier: Apache-2.0

package boxes_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/BurntSushi/toml"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
)

func TestRootHoldsTheImageAndNothingElse(t *testing.T) {
	b := newBox(t, start(t))
	want := []string{
		"app", "code", "data", "dev", "drives", "etc", "home", "media", "mnt", "opt", "proc", "root", "run", "skills", "src", "srv", "sys", "tmp", "usr", "var", "work", "workspace",
	}
	for _, name := range []string{"bin", "sbin", "lib", "lib32", "lib64", "libx32"} {
		if _, err := os.Lstat("/" + name); err == nil {
			want = append(want, name)
		}
	}
	slices.Sort(want)
	for dir, want := range map[string][]string{
		"/": want, "/home": {"box"}, "/var": {"lib", "run", "tmp"}, "/var/lib": {"boxd"}, "/var/lib/boxd": {"boxfiles"}, "/workspace": nil, "/tmp": nil, "/home/box": nil, "/srv": nil, "/root": nil, "/run": {"box"},
		"/dev": {"fd", "full", "null", "ptmx", "pts", "random", "shm", "stderr", "stdin", "stdout", "tty", "urandom", "zero"},
	} {
		if diff := cmp.Diff(want, lines(b.run("ls", "-A1", dir)), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", dir, diff)
		}
	}
	// The same programs as on the host, shared and not copied.
	host := statOf(t, "/usr/bin/env")
	if got, want := strings.Fields(b.run("stat", "-c", "%i %s", "/usr/bin/env")), []string{decimal(host.Ino), decimal(host.Size)}; !slices.Equal(got, want) {
		t.Errorf("/usr/bin/env in the box is %v, on the host %v", got, want)
	}
}

func TestNothingOutsideTheWritableRootsCanBeWritten(t *testing.T) {
	b := newBox(t, start(t))
	want := []string{
		"/dev/full", "/dev/null", "/dev/pts/ptmx", "/dev/random", "/dev/shm", "/dev/tty", "/dev/urandom", "/dev/zero",
		"/home/box", "/run", "/tmp", "/workspace",
	}
	if diff := cmp.Diff(want, b.ask("writable", "/")); diff != "" {
		t.Errorf("writable paths (-want +got):\n%s", diff)
	}
	b.try(all("EROFS",
		"create=/x", "mkdir=/usr/x", "rename=/usr/bin/env,/usr/bin/other", "remove=/etc/passwd", "create=/etc/shadow",
		"mkdir=/home/other", "create=/dev/x", "remove=/dev/null", "mkdir=/var/x", "create=/mnt/x", "create=/opt/x",
	)...)
	// boxd's own files in /run are not writable for the box user, though /run is.
	b.try(
		attempt{"create=/run/box/x", "EACCES"}, attempt{"write=/run/box/hosts", "EACCES"}, attempt{"remove=/run/box/hosts", "EACCES"},
		attempt{"rename=/run/box,/run/other", "EPERM"}, attempt{"remove=/run/box", "EPERM"},
	)
	if got := b.run("stat", "-c", "%n %a %U", "/tmp", "/dev/shm", "/run", "/home/box", "/workspace"); got !=
		"/tmp 1777 root\n/dev/shm 1777 root\n/run 1777 root\n/home/box 755 box\n/workspace 700 box\n" {
		t.Errorf("modes and owners:\n%s", got)
	}
	b.try(all("OK", "create=/tmp/x", "create=/var/tmp/y", "create=/dev/shm/x", "create=/run/x", "create=/home/box/x", "create=/workspace/x")...)
}

func TestEveryMountIsClosedToWhatItIsNotFor(t *testing.T) {
	d := start(t)
	rw, ro := d.MountSource(t, "rw", owner), d.MountSource(t, "ro", owner)
	b := newBox(t, d, withMounts(api.Mount{Source: rw, Target: "/mnt/rw", Mode: "rw"}, api.Mount{Source: ro, Target: "/mnt/ro", Mode: "ro"}))
	writable := []string{"/dev/pts", "/dev/shm", "/home/box", "/mnt", "/mnt/rw", "/proc", "/run", "/tmp", "/workspace"}
	devices := []string{"/", "/dev/pts"} // the template's few nodes, and the masks in /proc that are one of them
	known := []string{"tmpfs", "proc", "devpts", hostType(t, "/usr"), hostType(t, d.Dir)}
	seen := map[string]bool{}
	for _, l := range lines(b.run("cat", "/proc/self/mountinfo")) {
		before, after, _ := strings.Cut(l, " - ")
		f := strings.Fields(before)
		target, flags, fstype := f[4], strings.Split(f[5], ","), strings.Fields(after)[0]
		seen[target] = true
		if len(f) > 6 {
			t.Errorf("%s has a peer: f[6:] = %v, want len(f) <= 6", target, f[6:])
		}
		if !slices.Contains(flags, "nosuid") {
			t.Errorf("%s is not nosuid", target)
		}
		if !slices.Contains(flags, "nodev") && !slices.Contains(devices, target) && !strings.HasPrefix(target, "/proc/") {
			t.Errorf("%s is not nodev", target)
		}
		if slices.Contains(flags, "rw") != slices.Contains(writable, target) {
			t.Errorf(`%s is %s, want slices.Contains(flags, "rw") == slices.Contains(writable, target)`,
				target, flags[0])
		}
		if !slices.Contains(known, fstype) {
			t.Errorf("%s is a %s", target, fstype)
		}
	}
	for _, target := range append(writable, "/", "/usr", "/proc/sys", "/mnt/ro", probeDir) {
		if !seen[target] {
			t.Errorf("nothing is mounted on %s", target)
		}
	}
}

// hostType returns the filesystem type of a host directory, as in /proc/mounts.
func hostType(t *testing.T, dir string) string {
	t.Helper()
	text, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	best, fstype := "", ""
	for _, l := range lines(string(text)) {
		f := strings.Fields(l)
		if rel, err := filepath.Rel(f[1], dir); err == nil && rel != ".." && !strings.HasPrefix(rel, "../") && len(f[1]) >= len(best) {
			best, fstype = f[1], f[2]
		}
	}
	return fstype
}

// ownEtc returns the files that boxd itself puts into /etc.
func ownEtc() []string {
	return []string{"gitconfig", "group", "hostname", "hosts", "mtab", "nsswitch.conf", "os-release", "passwd", "resolv.conf", "shells"}
}

// fromPackage reports whether a path of /etc is world-readable, and is not private to a service or to logins.
func fromPackage(path string) bool {
	info, err := os.Lstat(path)
	private := regexp.MustCompile("^/etc/(boxd|ssh|sudoers|pam|security|systemd|shadow|machine-id|cron|profile|apt|network)")
	return err == nil && (info.Mode()&0o004 != 0) && !private.MatchString(path)
}

// The configuration installed by packages is present without being listed, unless it is excluded.
func TestConfigurationOfPackagesIsShown(t *testing.T) {
	boxtest.RequireProgram(t, "dpkg-query")
	out, err := exec.CommandContext(t.Context(), "dpkg-query", "-W", "-f", "${Conffiles}\n", "base-files").Output()
	if err != nil || !strings.Contains(string(out), "/etc/debian_version") {
		t.Fatalf(`%v: out = %s, want no error and out containing "/etc/debian_version"`, err, out)
	}
	d := start(t)
	if got := newBox(t, d).run("sh", "-c", "cat /etc/debian_version; ls /etc/sudoers /etc/ssh /etc/cron.daily 2>/dev/null || true"); strings.Count(got, "\n") != 1 {
		t.Errorf(`got %q, want strings.Count(got, "\n") == 1`, got)
	}
	c, err := d.Doctor(t.Context())
	if err != nil || !slices.ContainsFunc(c.Checks, func(c api.Check) bool { return c.Name == "/etc links" && c.Level == "ok" }) {
		t.Errorf("err = %v, c = %+v", err, c)
	}
	d = start(t, "[image]\netc = [\"@packages\", \"!debian_version\"]\n")
	if got := newBox(t, d).run("sh", "-c", "ls /etc/debian_version 2>&1 || true"); !strings.Contains(got, "No such file") {
		t.Errorf(`got %q, want got containing "No such file"`, got)
	}
}

func TestEtcHoldsBoxdsFilesAndWhatIsListed(t *testing.T) {
	shipped := struct{ Image struct{ Etc []string } }{}
	if _, err := toml.DecodeFile("../../box.toml", &shipped); err != nil {
		t.Fatal(err)
	}
	for name, list := range map[string][]string{
		"as shipped":     shipped.Image.Etc,
		"nothing":        {},
		"files and more": {"ld.so.cache", "alternatives", "ssl/certs", "host.c*f", "no-such-thing", "no/such/thing", "no*thing", "no*/thing", "*/certs", "alternatives"},
	} {
		t.Run(name, func(t *testing.T) {
			want := map[string]bool{}
			for _, e := range ownEtc() {
				want["/etc/"+e] = true
			}
			packages := slices.Contains(list, "@packages")
			for _, pattern := range list {
				found, err := filepath.Glob("/etc/" + pattern)
				if err != nil {
					t.Fatal(err)
				}
				for _, path := range found {
					for ; path != "/etc"; path = filepath.Dir(path) {
						want[path] = true
					}
				}
			}
			config := "[image]\netc = [\"" + strings.Join(list, `", "`) + "\"]\n"
			if len(list) == 0 {
				config = "[image]\netc = []\n"
			}
			b := newBox(t, start(t, config))
			// A directory that matches as a whole brings all its content, which find does not enter.
			got := lines(b.run("find", "/etc", "-xdev", "-mindepth", "1"))
			for _, path := range got {
				if !want[path] && (!packages || !fromPackage(path)) {
					t.Errorf("%s exists", path)
				}
				delete(want, path)
			}
			for path := range want {
				t.Errorf("%s is missing", path)
			}
		})
	}
}

// Git works in a mounted repository, though it belongs to another user.
func TestGitWorksInAMountedRepository(t *testing.T) {
	boxtest.RequireProgram(t, "git")
	d := start(t)
	dir := d.MountSource(t, "repo", 0)
	for _, args := range [][]string{{"init", "-q"}, {"-c", "user.name=x", "-c", "user.email=x@example.org", "commit", "-q", "--allow-empty", "-m", "first"}} {
		if out, err := exec.CommandContext(t.Context(), "git", append([]string{"-C", dir}, args...)...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
	}
	b := newBox(t, d, withMounts(api.Mount{Source: dir, Target: "/data/repo", Mode: "ro"}))
	if got := b.run("git", "-C", "/data/repo", "log", "--format=%s"); got != "first\n" {
		t.Errorf(`got %q, want "first\n"`, got)
	}
}

func TestEtcTellsNothingOfTheHost(t *testing.T) {
	b := newBox(t, start(t), func(r *api.SessionRequest) { r.ID = "known" })
	for path, want := range map[string]string{
		"/etc/passwd": "root:x:0:0:root:/root:/usr/sbin/nologin\nbox:x:1000:1000:box:/home/box:/bin/sh\n" +
			"nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
		"/etc/group":    "root:x:0:\ntty:x:5:\nbox:x:1000:root\nnogroup:x:65534:\n",
		"/etc/hostname": "known\n",
		"/etc/hosts":    "127.0.0.1\tlocalhost known\n::1\tlocalhost known\n",
	} {
		if got := b.run("cat", path); got != want {
			t.Errorf("%s is %q, want got == %q", path, got, want)
		}
	}
	b.try(all("ENOENT", "read=/etc/shadow", "read=/etc/machine-id", "list=/etc/ssh", "read=/etc/sudoers", "list=/boot", "list=/sys/kernel")...)
	if uname := strings.TrimSpace(b.run("uname", "-n")); uname != "known" || b.Hostname != "known" {
		t.Errorf("the host name is %q, in the answer %q", uname, b.Hostname)
	}
}

func TestHostnameIsALabelOfTheSessionID(t *testing.T) {
	d := start(t)
	for id, want := range map[string]string{
		"plain": "plain", "Mixed.Case_7": "mixed-case-7", "a/../b": "a----b", "日本": "box", "-": "box", strings.Repeat("x", 256): strings.Repeat("x", 63),
	} {
		b := newBox(t, d, func(r *api.SessionRequest) { r.ID = id })
		if got := strings.TrimSpace(b.run("uname", "-n")); got != want || b.ID != id {
			t.Errorf("session %q has the host name %q, want %q", b.ID, got, want)
		}
	}
}

func TestProcShowsTheBoxAlone(t *testing.T) {
	d := start(t)
	other := newBox(t, d)
	held := other.hold(probe, "hold")
	defer held.Release()
	b := newBox(t, d)
	// The shell itself lists them, so there is no other process.
	own := strings.Fields(b.sh(`echo $$; for p in /proc/[0-9]*; do echo ${p#/proc/}; done`))
	if len(own) != 2 || own[0] != own[1] {
		t.Errorf("process %s sees %v", own[0], own[1:])
	}
	b.try(all("ENOENT", "list=/proc/1", "read=/proc/1/status", "list=/proc/1/root/", "list=/proc/1/cwd/", "list=/sys/kernel")...)
	for _, name := range []string{"kcore", "keys", "kallsyms", "timer_list", "sched_debug", "latency_stats", "interrupts", "locks", "acpi", "asound", "scsi"} {
		host, err := os.Lstat("/proc/" + name)
		if err != nil {
			b.try(attempt{"read=/proc/" + name, "ENOENT"})
			continue
		}
		command := []string{"cat", "/proc/" + name}
		if host.IsDir() {
			command = []string{"ls", "-A", "/proc/" + name}
		}
		if got := b.run(command...); got != "" {
			t.Errorf("/proc/%s shows %q", name, got)
		}
	}
}

func TestDevHasHarmlessDevicesAndOwnTerminals(t *testing.T) {
	d := start(t)
	b := newBox(t, d)
	want := []string{"/dev/full 1:7", "/dev/null 1:3", "/dev/random 1:8", "/dev/tty 5:0", "/dev/urandom 1:9", "/dev/zero 1:5"}
	if diff := cmp.Diff(want, lines(b.sh(`for f in /dev/*; do if [ -c $f ] && [ ! -L $f ]; then stat -c "%n %t:%T" $f; fi; done`))); diff != "" {
		t.Errorf("devices (-want +got):\n%s", diff)
	}
	b.try(attempt{"write=/dev/null", "OK"}, attempt{"read=/dev/zero", "OK"}, attempt{"read=/dev/urandom", "OK"}, attempt{"read=/dev/tty", "ENXIO"})
	// Terminals of the host and of other boxes are not reachable: the first one here has number 0.
	host, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	newBox(t, d).ask("pty")
	if got := b.run("ls", "-A", "/dev/pts"); got != "ptmx\n" {
		t.Errorf(`/dev/pts has %q, want "ptmx\n"`, got)
	}
	if diff := cmp.Diff([]string{"name /dev/pts/0", "size 33 99", "echo OK"}, b.ask("pty")); diff != "" {
		t.Errorf("a new terminal (-want +got):\n%s", diff)
	}
}

func TestWorkspaceAndHomeLastAsLongAsTheSession(t *testing.T) {
	d := start(t)
	named := func(r *api.SessionRequest) { r.ID = "again" }
	b := newBox(t, d, named)
	b.sh("pwd > /workspace/a; echo home > ~/b; umask > /workspace/umask")
	if got := b.sh("cat /workspace/a ~/b /workspace/umask; cd /workspace && ls"); got != "/workspace\nhome\n0022\na\numask\n" {
		t.Errorf("a second program finds %q", got)
	}
	b.remove()
	if got := newBox(t, d, named).sh("ls -A /workspace ~"); got != "/home/box:\n\n/workspace:\n" && got != "/workspace:\n\n/home/box:\n" {
		t.Errorf("a new session of the same id finds %q", got)
	}
	boxtest.Eventually(t, "one workspace is left", func() bool { return len(d.Look().Files) == 2 })
}
