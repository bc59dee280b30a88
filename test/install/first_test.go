// SPDX-License-Identifier: Apache-2.0

package install_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

// From nothing to the first program in a box: install, join the group, run.
func TestAFreshInstallation(t *testing.T) {
	file := pkg(t, this)
	users(t)
	apt(t, "install", file)
	for unit, want := range map[string]string{socket: "active", service: "inactive", keeper: "inactive", anchor: "inactive"} {
		if got := state(t, unit); got != want {
			t.Errorf("after the installation %s is %s, want %s", unit, got, want)
		}
	}
	if got := run(t, "systemctl", "is-enabled", socket); got != "enabled" {
		t.Errorf(`%s is %s, want got == "enabled"`, socket, got)
	}
	group, err := user.LookupGroup("boxd")
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat("/run/boxd/boxd.sock")
	if err != nil {
		t.Fatal(err)
	}
	st := info.Sys().(*syscall.Stat_t)
	if info.Mode() != os.ModeSocket|0o660 || st.Uid != 0 || strconv.Itoa(int(st.Gid)) != group.Gid {
		t.Errorf("the socket is %v of %d:%d", info.Mode(), st.Uid, st.Gid)
	}
	refusesStrangers(t, member) // not yet a member
	run(t, "usermod", "-aG", "boxd", member)
	if got := boxctl(t, "run", "--", "sh", "-c", "id -un; id -u"); got != "box\n1000" {
		t.Errorf(`the first program prints %q, want "box\n1000"`, got)
	}
	for _, unit := range []string{socket, service, keeper, anchor} {
		if got := state(t, unit); got != "active" {
			t.Errorf(`after the first program %s is %s, want got == "active"`, unit, got)
		}
	}
	refusesStrangers(t, stranger)
	var d api.Doctor
	decode(t, boxctl(t, "doctor", "--json"), &d)
	if !d.OK {
		t.Errorf("the answer of boxctl doctor is %+v, want d.OK == true", d)
	}
	for _, c := range d.Checks {
		if c.Level != "ok" {
			t.Errorf(`the doctor says %+v, want c.Level == "ok"`, c)
		}
	}
	if got := boxctl(t, "version"); strings.Count(got, run(t, "dpkg-deb", "--field", file, "Version")) != 2 {
		t.Errorf(`boxctl version: got %s, want strings.Count(got, run(t, "dpkg-deb", "--field", file, "Version")) == 2`,
			got)
	}
}

func refusesStrangers(t *testing.T, name string) {
	t.Helper()
	for _, args := range [][]string{{"ls"}, {"run", "--", "true"}} {
		r := try(t, as(name, append([]string{"boxctl"}, args...)...)...)
		if r.code == 0 || r.stdout != "" || !strings.Contains(r.stderr, "permission denied") || !strings.Contains(r.stderr, "hint:") ||
			!strings.Contains(r.stderr, "usermod -aG boxd "+name) {
			t.Errorf("boxctl %q of a user outside the group: %+v", args, r)
		}
	}
}

// On such a host the kernel enforces every limit, and the units restrict boxd in nothing that it needs.
func TestAnInstalledBoxdDoesAllItCan(t *testing.T) {
	installed(t, this)
	boxctl(t, "create", "--memory", "64MiB", "alive")
	s := inspect(t)
	for limit, by := range map[string]string{"memory": "cgroup2", "pids": "cgroup2", "cpu": "cgroup2", "workspace": "project-quota"} {
		if s.Enforcement[limit] != by {
			t.Errorf("%s is enforced by %q", limit, s.Enforcement[limit])
		}
	}
	// Names of processes killed for memory are only in the kernel's log, which the unit must let boxd read.
	r := try(t, as(member, "boxctl", "exec", "alive", "--", "python3", "-c", "b = bytearray(1 << 28)")...)
	if r.code != 137 || !strings.Contains(r.stderr, "python3") {
		t.Errorf(`out of memory: r = %+v, want r.code == 137 and r.stderr containing "python3"`, r)
	}
	// Listening sockets of a box can be reached from outside.
	boxctl(t, "start", "alive", "web", "--", "python3", "-m", "http.server", "8000", "--bind", "127.0.0.1")
	c := client.New(client.DefaultSocket)
	c.Owner = s.Owner // root acts for the member
	boxtest.Eventually(t, "the port of the box is reached", func() bool {
		conn, err := c.OpenPort(t.Context(), "alive", 8000)
		if e, ok := errors.AsType[*client.Error](err); ok && e.Type == api.ProblemType+"conflict" {
			return false // it does not listen yet
		} else if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := io.WriteString(conn, "GET / HTTP/1.0\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		answer, err := io.ReadAll(conn)
		return err == nil && strings.HasPrefix(string(answer), "HTTP/1.0 200 ")
	})
	// Files that a box writes into a directory of its user belong to that user.
	work := fmt.Sprintf("/home/%s/work", member)
	run(t, as(member, "mkdir", "-p", work)...)
	run(t, as(member, "sh", "-c", "cd "+work+" && boxctl run --here -- sh -c 'echo hello >file'")...)
	if got := run(t, "stat", "-c", "%U %s", work+"/file"); got != member+" 6" {
		t.Errorf(`the file of the box is %s, want member + " 6"`, got)
	}
	if got := boxctl(t, "exec", "alive", "--", "sh", "-c", "ls /home/"+member+" 2>&1; true"); !strings.Contains(got, "No such file") {
		t.Errorf("a box sees %q", got)
	}
	// What a workspace uses is known, also while its box is stopped.
	boxctl(t, "exec", "alive", "--", "sh", "-c", "head -c 20000000 /dev/zero >used")
	boxctl(t, "stop", "alive")
	if r := try(t, as(member, "boxctl", "set", "alive", "--workspace-quota", "8MiB")...); r.code == 0 || !strings.Contains(r.stderr, "which is used") {
		t.Errorf(`a quota below the usage: r = %+v, want r.code != 0 and r.stderr containing "which is used"`, r)
	}
	boxctl(t, "rm", "alive") // a stopped box outlives the units
}
