// SPDX-License-Identifier: Apache-2.0

// Package install_test installs the packages as an administrator does, then does to boxd what happens to system services. It
// changes the host, so it runs in the virtual machine only, and first.
package install_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
)

// packagesVariable names the directory of the packages under test. Setting it permits changes to the host.
const packagesVariable = "BOXD_TEST_PACKAGES"

// Users of the host: one may use boxd, and the other may not.
const (
	member   = "alice"
	stranger = "mallory"
)

// Units of the package.
const (
	socket  = "boxd.socket"
	service = "boxd.service"
	keeper  = "boxd-keeper.service"
	anchor  = "boxd-boxes.service"
)

// The two builds: the one under test, and an earlier one.
const (
	this     = "boxd.deb"
	previous = "boxd-previous.deb"
)

// pkg returns the path of a package. Without packages the host must not be changed.
func pkg(t *testing.T, name string) string {
	t.Helper()
	dir := os.Getenv(packagesVariable)
	if dir == "" {
		boxtest.Missing(t, "packages that "+packagesVariable+" names: this test changes the host, so it is run in the virtual machine")
	}
	return filepath.Join(dir, name)
}

// result is the outcome of a command.
type result struct {
	code           int
	stdout, stderr string
}

func try(t *testing.T, argv ...string) result {
	t.Helper()
	var out, errs strings.Builder
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), argv[0], argv[1:]...) // it may run in a clean-up
	cmd.Stdout, cmd.Stderr = &out, &errs
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C.UTF-8")
	err := cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
		t.Fatalf("%q: err = %v, want no error or ok == true", argv, err)
	} else if ok {
		return result{exit.ExitCode(), out.String(), errs.String()}
	}
	return result{0, out.String(), errs.String()}
}

// run runs a command that must succeed, and returns its output.
func run(t *testing.T, argv ...string) string {
	t.Helper()
	r := try(t, argv...)
	if r.code != 0 {
		t.Fatalf("%q: exit %d\n%s%s", argv, r.code, r.stdout, r.stderr)
	}
	return strings.TrimSpace(r.stdout)
}

// as returns the arguments that run a command as a user, with the user's current groups.
func as(user string, argv ...string) []string {
	return append([]string{"runuser", "-u", user, "--"}, argv...)
}

// boxctl runs boxctl as the member; it must succeed.
func boxctl(t *testing.T, args ...string) string {
	t.Helper()
	return run(t, as(member, append([]string{"boxctl"}, args...)...)...)
}

// apt installs from a file, or removes, as an administrator does without a network.
func apt(t *testing.T, args ...string) result {
	t.Helper()
	r := try(t, append([]string{"apt-get", "-y", "--allow-downgrades", "-o", "Dpkg::Use-Pty=0"}, args...)...)
	if r.code != 0 {
		t.Fatalf("apt-get %q: exit %d\n%s%s", args, r.code, r.stdout, r.stderr)
	}
	return r
}

// users creates the users of the tests.
func users(t *testing.T) {
	t.Helper()
	for _, name := range []string{member, stranger} {
		if try(t, "id", name).code != 0 {
			run(t, "useradd", "--create-home", "--shell", "/bin/bash", name)
		}
	}
}

// installed makes sure that a package is installed, and that nothing of an earlier test is visible.
func installed(t *testing.T, name string) {
	t.Helper()
	file := pkg(t, name)
	users(t)
	want := run(t, "dpkg-deb", "--field", file, "Version")
	if r := try(t, "dpkg-query", "--show", "--showformat=${db:Status-Abbrev}${Version}", "boxd"); r.stdout != "ii "+want {
		run(t, "dpkg", "--install", file) // apt, which takes a quarter longer, is for the tests of it
	}
	run(t, "usermod", "-aG", "boxd", member)
	reset(t)
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		for _, unit := range []string{socket, service, keeper, anchor} {
			t.Logf("%s", try(t, "systemctl", "status", "--no-pager", "--full", "--lines=25", unit).stdout)
		}
	})
}

// put writes files and their directories, until the test has ended.
func put(t *testing.T, texts map[string]string) {
	t.Helper()
	for name, text := range texts {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := os.Remove(name); err != nil {
				t.Error(err)
			}
		})
	}
}

// reset ends all boxes, and starts the socket as after a boot.
func reset(t *testing.T) {
	t.Helper()
	run(t, "systemctl", "stop", socket, service, keeper, anchor)
	_ = try(t, "systemctl", "reset-failed", socket, service, keeper, anchor)
	run(t, "systemctl", "start", socket)
}

// state returns the state of a unit, such as "active".
func state(t *testing.T, unit string) string {
	t.Helper()
	return boxtest.UnitProperty(t, unit, "ActiveState")
}

// alive is a box with a counting program in it.
type alive struct {
	session api.Session
	process api.Process
}

// live creates a box that must not notice what happens.
func live(t *testing.T) alive {
	t.Helper()
	boxctl(t, "create", "--ttl", "1h", "alive")
	boxctl(t, "start", "alive", "count", "--", "sh", "-c", "i=0; while :; do i=$((i+1)); echo $i; sleep 0.5; done")
	return alive{inspect(t), process(t)}
}

func inspect(t *testing.T) (s api.Session) {
	t.Helper()
	decode(t, boxctl(t, "inspect", "--json", "alive"), &s)
	return s
}

func process(t *testing.T) api.Process {
	t.Helper()
	var list api.ProcessList
	decode(t, boxctl(t, "ps", "--json", "alive"), &list)
	if len(list.Processes) != 1 {
		t.Fatalf("processes: list = %+v, want len(list.Processes) == 1", list)
	}
	return list.Processes[0]
}

func decode(t *testing.T, text string, into any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), into); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
}

// initLives reports whether PID 1 of the box lives, without asking boxd.
func (a alive) initLives() bool { return boxtest.Lives(int(a.session.PID)) }

// unharmed checks through boxd, which may be a new process, that the box and its program have gone on.
func (a alive) unharmed(t *testing.T, after string) {
	t.Helper()
	if !a.initLives() {
		t.Fatalf("after %s: the box is dead", after)
	}
	before := process(t)
	boxtest.Eventually(t, "after "+after+" the program goes on", func() bool {
		return process(t).Output[0].Bytes > before.Output[0].Bytes
	})
	if s := inspect(t); s.PID != a.session.PID || s.Group != a.session.Group {
		t.Errorf("after %s: the box is %+v, want s.PID == %v and s.Group == %v",
			after, s, a.session.PID, a.session.Group)
	}
	if p := process(t); p.PID != a.process.PID || p.Starts != 1 || p.State != "running" {
		t.Errorf(`after %s: the program is %+v, want p.PID == %v and p.Starts == 1 and p.State == "running"`,
			after, p, a.process.PID)
	}
	boxctl(t, "exec", "alive", "--", "true")
}
