// SPDX-License-Identifier: Apache-2.0

// Package bare_test runs the commands of README.md on a Debian that only has git and make.
package bare_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/boxd-dev/boxd/internal/boxtest"
)

// host is a root directory that enter.sh turns into a host, with this repository in /boxd.
type host struct{ root string }

// debian creates a host of a Debian suite. Its apt and Go use the same archives and proxies as this host.
func debian(t *testing.T, suite string) host {
	t.Helper()
	boxtest.RequireRoot(t)
	boxtest.RequireProgram(t, "mmdebstrap")
	root := filepath.Join(boxtest.TempDir(t), suite)
	if err := os.Mkdir(root, 0o755); err != nil {
		t.Fatal(err)
	}
	output(t, "tar", "--numeric-owner", "--xattrs", "-C", root, "-xf", base(t, suite))
	output(t, "cp", "--remove-destination", "-L", "/etc/resolv.conf", "/etc/hosts", filepath.Join(root, "etc"))
	if own, _ := filepath.Glob("/usr/local/share/ca-certificates/*.crt"); len(own) > 0 {
		output(t, "cp", append(own, filepath.Join(root, "usr/local/share/ca-certificates"))...)
		output(t, "env", "-u", "TMPDIR", "chroot", root, "update-ca-certificates")
	}
	output(t, "git", "clone", "--quiet", "--no-hardlinks", "../..", filepath.Join(root, "boxd"))
	// Uncommitted changes are tested too.
	output(t, "bash", "-c", `set -o pipefail; git -C ../.. diff --binary HEAD | git -C "$0" apply --allow-empty`, filepath.Join(root, "boxd"))
	return host{root}
}

// base returns an archive of a suite made by mmdebstrap. It is cached by its inputs, since that takes a minute; like a real host,
// it ages.
func base(t *testing.T, suite string) string {
	t.Helper()
	args := []string{"--quiet", "--format=tar", "--variant=minbase", "--include=git,make,ca-certificates"}
	for line := range strings.Lines(output(t, "apt-config", "dump", "--no-empty")) {
		if way.MatchString(line) {
			args = append(args, "--aptopt="+strings.TrimSuffix(strings.TrimSpace(line), ";"))
		}
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(cache, "boxd-bare")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	archive := filepath.Join(dir, fmt.Sprintf("%s-%.8x.tar", suite, sha256.Sum256([]byte(strings.Join(args, "\n")))))
	if _, err := os.Stat(archive); err == nil {
		return archive
	}
	unfinished := fmt.Sprintf("%s.%d", archive, os.Getpid())
	t.Cleanup(func() { os.Remove(unfinished) })
	output(t, "mmdebstrap", append(args, suite, unfinished)...)
	if err := os.Rename(unfinished, archive); err != nil {
		t.Fatal(err)
	}
	return archive
}

// way matches apt settings about access to archives, and whether their dates are checked.
var way = regexp.MustCompile(`^Acquire::((?i:https?)::|Check-|ForceIPv|Retries)`)

// variables returns the environment variables with proxies for Go and other downloads.
func variables(t *testing.T) []string {
	t.Helper()
	env := []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LC_ALL=C.UTF-8"}
	for _, name := range []string{"GOPROXY", "GOSUMDB", "GONOSUMDB", "GONOPROXY", "GOPRIVATE", "GOINSECURE"} {
		if value := strings.TrimSpace(output(t, "go", "env", name)); value != "" {
			env = append(env, name+"="+value)
		}
	}
	for _, name := range []string{"http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"} {
		if value, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+value)
		}
	}
	return env
}

// output runs a program of this host that must succeed.
func output(t *testing.T, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s%s", name, args, err, out, &stderr)
	}
	return string(out)
}

// running is a running command on a host.
type running struct {
	host
	cmd *exec.Cmd
	out string // path of its output file
}

// said returns its output so far.
func (r running) said(t *testing.T) string {
	t.Helper()
	out, err := os.ReadFile(r.out)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// start starts a command in a shell, after the script prepare has prepared the host.
func (h host) start(t *testing.T, prepare, command string) running {
	t.Helper()
	enter, err := filepath.Abs("enter.sh")
	if err != nil {
		t.Fatal(err)
	}
	out, err := os.Create(filepath.Join(boxtest.TempDir(t), "output"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	r := running{host: h, out: out.Name()}
	r.cmd = exec.CommandContext(t.Context(), enter, h.root, prepare, "sh", "-c", "exec "+command)
	r.cmd.Env = variables(t)
	r.cmd.Stdout, r.cmd.Stderr = out, out
	// All of it ends with PID 1, and that with this test.
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID, Setsid: true, Pdeathsig: syscall.SIGKILL}
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return r
}

// process waits until the command has printed a text and its PID namespace has a process of this name, and returns that process's
// pid here.
func (r running) process(t *testing.T, said, name string) (pid int) {
	t.Helper()
	namespace := func(pid string) string {
		found, _ := os.Readlink("/proc/" + pid + "/ns/pid") // "": it has ended
		return found
	}
	ours := namespace(strconv.Itoa(r.cmd.Process.Pid))
	for ctx := t.Context(); ctx.Err() == nil; {
		comms, _ := filepath.Glob("/proc/[0-9]*/comm")
		for _, comm := range comms {
			found, _ := os.ReadFile(comm)
			pid := filepath.Base(filepath.Dir(comm))
			if strings.TrimSpace(string(found)) == name && namespace(pid) == ours && strings.Contains(r.said(t), said) {
				n, _ := strconv.Atoi(pid)
				return n
			}
		}
		if namespace(strconv.Itoa(r.cmd.Process.Pid)) == "" {
			t.Fatalf("the command has ended before %s has run; output:\n%s", name, r.said(t))
		}
		select {
		case <-ctx.Done():
		case <-time.After(5 * time.Millisecond):
		}
	}
	t.Fatal(t.Context().Err())
	return 0
}

// end waits for the command, returns its output and whether it succeeded, and fails the test if it has left something.
func (r running) end(t *testing.T) (out string, succeeded bool) {
	t.Helper()
	err := r.cmd.Wait()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	left, missing := os.ReadFile(filepath.Join(r.root, "left"))
	if missing != nil {
		t.Fatalf("%v; output:\n%s", errors.Join(err, missing), r.said(t))
	}
	if len(left) > 0 {
		t.Errorf("left behind:\n%s", left)
	}
	if t.Failed() {
		t.Logf("output:\n%s", r.said(t))
	}
	if err := os.Remove(filepath.Join(r.root, "left")); err != nil {
		t.Fatal(err)
	}
	return r.said(t), err == nil
}

// sentences returns the lines of an output that say why the command failed: without make's messages about recipes and errors, and
// without announcements.
func sentences(out string) (lines []string) {
	for line := range strings.Lines(out) {
		if line = strings.TrimSpace(line); line != "" && !announced.MatchString(line) {
			lines = append(lines, line)
		}
	}
	return lines
}

var announced = regexp.MustCompile(`^(make(\[\d+\])?: |setup: (installing|looking for|fetching) |CGO_ENABLED=0 |Terminated$)`)

// wantOne fails the test unless the command has failed with one sentence.
func wantOne(t *testing.T, out string, succeeded bool, sentence string) {
	t.Helper()
	got := sentences(out)
	if succeeded || len(got) != 1 || !regexp.MustCompile("^"+sentence+"$").MatchString(got[0]) {
		t.Errorf("succeeded: %t; the sentences are %q, and should be one, %q; output:\n%s", succeeded, got, sentence, out)
	}
}

// TestABareHost takes a host from bare to one that has run the demo, and at each stage tries what may go wrong there.
func TestABareHost(t *testing.T) {
	for _, suite := range []string{"bookworm", "trixie"} {
		t.Run(suite, func(t *testing.T) {
			h := debian(t, suite)
			failures(t, h, failuresOfBare)
			interrupts(t, h, momentsOfBare)
			t.Run("git that distrusts the owner", func(t *testing.T) { version(t, h) })
			if !t.Run("demo", func(t *testing.T) { demo(t, h) }) {
				return
			}
			t.Run("all is there", func(t *testing.T) { nothingToDo(t, h) })
			t.Run("stale lists of packages", func(t *testing.T) { stale(t, h) })
			failures(t, h, failuresWithGo)
			interrupts(t, h, momentsWithGo)
		})
	}
}

// failure is a command that fails on a host after prepare; mounts made by prepare end with the command.
type failure struct{ name, prepare, command, sentence string }

func failures(t *testing.T, h host, all []failure) {
	for _, f := range all {
		t.Run(f.name, func(t *testing.T) {
			out, succeeded := h.start(t, f.prepare, f.command).end(t)
			wantOne(t, out, succeeded, f.sentence)
		})
	}
}

// smallUsr has 100 MiB left in /usr, and discards changes there and in /var.
const smallUsr = `
	for dir in usr var; do
		mount -t tmpfs -o size=${size=100m} tmpfs /mnt
		mkdir /mnt/upper /mnt/work
		mount -t overlay -o lowerdir=/$dir,upperdir=/mnt/upper,workdir=/mnt/work overlay /$dir
		size=1g
	done`

var failuresOfBare = []failure{
	{
		"no root", "", "setpriv --reuid=65534 --regid=65534 --clear-groups make demo",
		`setup: missing: root, which starts boxes, and sudo, .*`,
	},
	{
		"no root, but sudo", "ln -s /bin/true /run/sudo", "setpriv --reuid=65534 --regid=65534 --clear-groups env PATH=$PATH:/run make demo",
		`setup: missing: root, which starts boxes: use sudo`,
	},
	{
		"no root and no Go", "", "setpriv --reuid=65534 --regid=65534 --clear-groups env HOME=/tmp make build",
		`setup: missing: Go; root can have them installed, .*`,
	},
	{
		"no network", "", "unshare --net make demo",
		`setup: missing: /usr/bin/python3 /usr/bin/gcc Go; the lists of packages cannot be fetched: .*`,
	},
	{
		"no Debian", "mount -t tmpfs tmpfs /mnt; cp -a /usr/bin /mnt; rm /mnt/bin/apt-get; mount --bind /mnt/bin /usr/bin", "make demo",
		`setup: missing: /usr/bin/python3 /usr/bin/gcc Go; install them, .* \(in Debian the packages are python3 gcc libc6-dev golang, .*`,
	},
	{
		"a home that is read-only", "mount -t tmpfs -o ro tmpfs /root", "make demo",
		`setup: missing: a place for what Go fetches and builds, since /root cannot be written: .*`,
	},
	{
		"no home", "", "env -u HOME make demo",
		`setup: missing: a place for what Go fetches and builds, since HOME is not set: .*`,
	},
	{
		"no temporary files", "mount -t tmpfs -o ro tmpfs /tmp", "make demo DISK=0",
		`setup: missing: a place for temporary files, since /tmp takes none: .*`,
	},
	{
		"a small disk for Go", "mount -t tmpfs -o size=64m tmpfs /root", "make demo",
		`setup: missing: disk space, of which /root must have \d+ MiB and has 64 MiB: .*`,
	},
	{
		"a small disk for temporary files", "mount -t tmpfs -o size=64m tmpfs /tmp", "make demo",
		`setup: missing: disk space, of which /tmp must have \d+ MiB and has 64 MiB: .*`,
	},
	{
		"a small disk for packages", smallUsr, "make demo",
		`setup: missing: disk space, of which /usr must have \d+ MiB and has \d+ MiB: .*`,
	},
	{
		"a disk that packages fill up", smallUsr, "make demo DISK=0",
		`setup: missing: /usr/bin/python3 /usr/bin/gcc Go; .* cannot be installed: .*No space left on device.*`,
	},
	{
		"a disk that downloads fill up", "mount -t tmpfs -o size=1m tmpfs /tmp", "make demo DISK=0",
		`setup: missing: /usr/bin/python3 /usr/bin/gcc Go; .*(No space left on device|enough free space|has 0 MiB left).*`,
	},
}

var failuresWithGo = []failure{
	{
		"Go that may not fetch another", "", "env GOTOOLCHAIN=local make demo",
		`setup: missing: what go\.mod names; /usr/lib/go-1\.\d+/bin/go cannot fetch it: .*GOTOOLCHAIN=local.*`,
	},
	{
		"no network for Go", "mkdir -p /root/go; mount -t tmpfs tmpfs /root/go", "unshare --net make demo",
		`setup: missing: what go\.mod names; /usr/lib/go-1\.\d+/bin/go cannot fetch it: .*`,
	},
	{
		"a disk that Go fills up", "mount -t tmpfs -o size=64m tmpfs /root", "make demo DISK=0",
		`setup: missing: what go\.mod names; .* cannot fetch it: .*no space left on device.*`,
	},
}

// version checks root's build in a checkout of another user, which git rejects unless that user has called sudo.
func version(t *testing.T, h host) {
	out, succeeded := h.start(t, "", `bash -c 'chown -R 1000 . && make -n build && SUDO_UID=1000 make -n build; chown -R 0 .'`).end(t)
	if !succeeded || !regexp.MustCompile(`(?s)^[^\n]*main\.version=0\.1\.0~devel'[^\n]*\n[^\n]*main\.version=[0-9.]+~git[^\n]*\n$`).MatchString(out) {
		t.Errorf("succeeded: %t; output:\n%s", succeeded, out)
	}
}

// demo runs the first command of README.md.
func demo(t *testing.T, h host) {
	out, succeeded := h.start(t, "", "make demo").end(t)
	if !succeeded || !strings.Contains(out, "boxd has stopped.") {
		t.Fatalf("succeeded: %t; output:\n%s", succeeded, out)
	}
	for _, announced := range []string{"setup: installing python3 gcc libc6-dev golang\n", "setup: fetching what go.mod names"} {
		if !strings.Contains(out, announced) {
			t.Errorf("the output lacks %q:\n%s", announced, out)
		}
	}
}

// nothingToDo needs no network if everything is installed. A Go in /usr/local precedes that of a package; it is used as it is if
// it is new enough, as is one in PATH.
func nothingToDo(t *testing.T, h host) {
	out, succeeded := h.start(t, "", `unshare --net bash -c 'test/setup.sh root disk:1 tmp:1 usr:1 go gcc:gcc+libc6-dev /usr/bin/git:git -- go env GOROOT && make build'`).end(t)
	if !succeeded || !regexp.MustCompile(`^/root/go/pkg/mod/golang\.org/toolchain\S+\nCGO_ENABLED=0 [^\n]*\n$`).MatchString(out) {
		t.Errorf("succeeded: %t; output:\n%s", succeeded, out)
	}
	for name, where := range map[string]string{"/usr/local": "/usr/local/go", "PATH": "/run/go"} {
		out, succeeded := h.start(t, "mkdir -p "+where+"; mount --bind /root/go/pkg/mod/golang.org/toolchain* "+where,
			`unshare --net env PATH=$PATH:/run/go/bin test/setup.sh go -- sh -c 'command -v go; go env GOROOT'`).end(t)
		if want := where + "/bin/go\n" + where + "\n"; !succeeded || out != want {
			t.Errorf("Go in %s: succeeded: %t; output:\n%s", name, succeeded, out)
		}
	}
}

// stale installs on a host whose package lists name files that the archive no longer has.
func stale(t *testing.T, h host) {
	out, succeeded := h.start(t, `
		sed -i 's/^\(Filename: .*\)\.deb$/\1-gone.deb/' /var/lib/apt/lists/*_Packages
		rm /var/lib/apt/lists/*InRelease
		if apt-get -qq install -y bc; then echo 'the lists are not stale'; exit 1; fi >/dev/null 2>&1
		`, "test/setup.sh bc:bc -- bc --version").end(t)
	if !succeeded || !strings.Contains(out, "Free Software Foundation") {
		t.Errorf("succeeded: %t; output:\n%s", succeeded, out)
	}
}

// moment is when a command is interrupted: once it has printed said and a process of this name exists.
type moment struct{ name, prepare, said, process, sentence string }

var momentsOfBare = []moment{
	// On a slow host packages may be unpacked by the time this is noticed.
	{"lists are fetched", "rm -rf /var/lib/apt/lists/*", "setup: installing ", "apt-get", `setup: interrupted; (missing: /usr/bin/python3 /usr/bin/gcc Go|dpkg ends what it has begun)`},
}

var momentsWithGo = []moment{
	{"packages are unpacked", "apt-get -qq -y purge 'golang-*' >/dev/null 2>&1 || true", "setup: installing ", "dpkg-deb", `setup: interrupted; dpkg ends what it has begun`},
	{"modules and Go are fetched", "mkdir -p /root/go; mount -t tmpfs tmpfs /root/go", "setup: fetching ", "go", `setup: interrupted; missing: what go\.mod names`},
	{"programs are built", "mkdir -p /root/.cache; mount -t tmpfs tmpfs /root/.cache", "CGO_ENABLED=0 ", "compile", ""}, // by make alone
	{"the demo runs", "", "A private boxd", "boxd", "demo: interrupted"},
}

// interrupts interrupts a demo, by ctrl-c, which all its processes get, and by kill, which only make gets.
func interrupts(t *testing.T, h host, moments []moment) {
	for _, when := range moments {
		t.Run("ctrl-c while "+when.name, func(t *testing.T) { interrupt(t, h, when, -1, syscall.SIGINT) })
		t.Run("kill while "+when.name, func(t *testing.T) { interrupt(t, h, when, 1, syscall.SIGTERM) })
	}
}

func interrupt(t *testing.T, h host, when moment, to int, sig syscall.Signal) {
	r := h.start(t, when.prepare, "make demo")
	maker := r.process(t, "", "make")
	r.process(t, when.said, when.process)
	if err := syscall.Kill(to*maker, sig); err != nil {
		t.Fatal(err)
	}
	out, succeeded := r.end(t)
	if succeeded || !strings.Contains(out, "make: ***") {
		t.Errorf("interrupted, it has succeeded: %t; output:\n%s", succeeded, out)
	}
	if when.sentence != "" {
		got := sentences(out)
		if len(got) == 0 || !regexp.MustCompile("^"+when.sentence+"$").MatchString(got[len(got)-1]) {
			t.Errorf("the sentence is not %q; output:\n%s", when.sentence, out)
		}
	}
	// No package is left half installed.
	if audit := output(t, "dpkg", "--root="+h.root, "--audit"); audit != "" {
		t.Errorf("packages are half installed:\n%s", audit)
	}
}
