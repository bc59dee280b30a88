// SPDX-License-Identifier: Apache-2.0

package install_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
)

// runCompromised runs a shell line as a compromised boxd could: as its user, with the files that boxd sees.
func runCompromised(t *testing.T, line string) result {
	t.Helper()
	return try(t, "nsenter", "--mount", "--target", boxtest.UnitProperty(t, service, "MainPID"), "--",
		"setpriv", "--reuid=boxd-daemon", "--regid=boxd-daemon", "--clear-groups", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs", "sh", "-c", line)
}

// A compromised boxd is a user of its own, and in addition cannot connect to the host's services. It cannot change which processes
// are boxes.
func TestABoxdThatIsTakenOverReachesNoServiceOfTheHost(t *testing.T) {
	installed(t, this)
	a := live(t)
	records, err := filepath.Glob("/run/boxd/boxes/*/record")
	if err != nil || len(records) == 0 {
		t.Fatalf("records of boxes: records = %q, err = %v, want no error and len(records) != 0", records, err)
	}
	before, err := os.ReadFile(records[0])
	if err != nil {
		t.Fatal(err)
	}
	run(t, "sh", "-c", "[ -S /run/systemd/private ]") // otherwise the test would prove nothing
	const keepers = "/var/lib/boxd/host-quotas.lock"
	work := strings.TrimSpace(run(t, "sh", "-c", "ls -d /var/lib/boxd/workspaces/*/ /var/lib/boxd/store/workspaces/*/ 2>/dev/null | head -1"))
	run(t, "ls", work, keepers)
	for _, line := range []string{
		"test -e /run/systemd/private", "test -e /run/dbus", "test -e /var/run/dbus/system_bus_socket", "test -e /run/systemd/userdb",
		"SYSTEMCTL_FORCE_BUS=1 systemctl list-units", "systemctl list-units", "systemctl start nothing.service", "systemd-run true",
		"ls /run/boxd/boxes", "cat " + records[0], "echo x >" + records[0], "mkdir /run/boxd/boxes/x", "rmdir /run/boxd/boxes", "mv /run/boxd/boxes /run/boxd/other",
		"touch /run/boxd/box.toml.d/x.toml", "mkdir /run/boxd/box.toml.d/x", "rmdir /run/boxd/box.toml.d", "mv /run/boxd/box.toml.d /run/boxd/other", "touch /usr/lib/boxd/box.toml.d/x.toml", "chmod 0755 /var/lib/boxd/workspaces", "touch /var/lib/boxd/workspaces/x",
		"chmod 0666 " + keepers, "truncate -s 0 " + keepers, "cat " + keepers, "touch /etc/boxd/box.toml.d/x.toml",
		"mount -t tmpfs none /run", "touch /run/x", "touch /run/boxd/own", "rm /run/boxd/boxd.sock", "touch /var/lib/boxd/own", "ls /var/lib/boxd", "mv /var/lib/boxd/audit /var/lib/boxd/other", "ls " + work, "touch " + work + "/x", "cat /etc/shadow", "kill -0 1", "touch /etc/x", "touch /usr/lib/systemd/system/x.service",
	} {
		if r := runCompromised(t, line); r.code == 0 {
			t.Errorf("%s succeeds: r = %+v, want r.code != 0", line, r)
		}
	}
	for _, line := range []string{"test -S /run/boxd/boxd.sock", "test -S /run/systemd/notify", "touch /var/lib/boxd/daemon/own && rm /var/lib/boxd/daemon/own", "ls " + filepath.Dir(filepath.Clean(work))} {
		if r := runCompromised(t, line); r.code != 0 {
			t.Errorf("%s, which boxd needs: r = %+v, want r.code == 0", line, r)
		}
	}
	// find(1) needs more access than that process has.
	sockets := runCompromised(t, `for f in /run/* /run/*/* /run/*/*/* /run/*/*/*/*; do [ ! -S "$f" ] || echo "$f"; done`).stdout
	for path := range strings.FieldsSeq(sockets) {
		if path != "/run/systemd/notify" && !strings.HasPrefix(path, "/run/systemd/journal/") && !strings.HasPrefix(path, "/run/boxd/") {
			t.Errorf("boxd sees the socket %s", path)
		}
	}
	if !strings.Contains(sockets, "/run/systemd/notify") {
		t.Errorf(`the sockets that boxd sees are %q, want sockets containing "/run/systemd/notify"`, sockets)
	}
	// It has dropped signals to other processes, and access to files that it does not need, as far as the kernel's Landlock
	// supports that.
	if environ, err := os.ReadFile("/proc/" + boxtest.UnitProperty(t, service, "MainPID") + "/environ"); err != nil || !strings.Contains(string(environ), "BOXD_CONFINED=1") || !strings.Contains(string(environ), "TMPDIR=/var/lib/boxd/daemon") {
		t.Errorf(`boxd has not confined itself: err = %v, want no error and environ containing "BOXD_CONFINED=1" and environ containing "TMPDIR=/var/lib/boxd/daemon"`,
			err)
	}
	lsm, err := os.ReadFile("/sys/kernel/security/lsm")
	if err != nil {
		t.Fatal(err)
	}
	if r := try(t, as(member, "boxctl", "doctor")...); strings.Contains(string(lsm), "landlock") != strings.Contains(r.stdout, "boxd opens its own files") {
		t.Errorf(`doctor: r.stdout = %s, want strings.Contains(string(lsm), "landlock") == strings.Contains(r.stdout, "boxd opens its own files")`,
			r.stdout)
	}
	if after, err := os.ReadFile(records[0]); err != nil || string(after) != string(before) {
		t.Errorf("the record has changed: err = %v, want no error and after == string(before)", err)
	}
	a.unharmed(t, "all that")
}

// Boxes are put into systemd scopes if the configuration says so, though boxd cannot reach systemd.
func TestAConfinedBoxdHasScopesMade(t *testing.T) {
	installed(t, this)
	t.Cleanup(func() { run(t, "systemctl", "restart", service) })
	put(t, map[string]string{"/etc/boxd/box.toml.d/50-scopes.toml": "[cgroups]\ndriver = \"systemd\"\n"})
	run(t, "systemctl", "restart", service)
	a := live(t)
	unit := filepath.Base(a.session.Group)
	if !strings.HasPrefix(unit, "box-") || !strings.HasSuffix(unit, ".scope") || state(t, unit) != "active" {
		t.Errorf("the box is in %s", a.session.Group)
	}
	boxctl(t, "set", "alive", "--memory", "80MiB")
	if r := try(t, as(member, "boxctl", "doctor")...); strings.Contains(r.stdout, "cannot create a systemd scope") {
		t.Errorf(`doctor: r.stdout = %s, want r.stdout without "cannot create a systemd scope"`, r.stdout)
	}
	run(t, "systemctl", "restart", service)
	a.unharmed(t, "a restart of boxd")
	boxctl(t, "rm", "alive")
	boxtest.Eventually(t, "the scope is gone", func() bool { return state(t, unit) == "inactive" })
	for _, line := range []string{"systemctl stop " + service, "test -e /run/dbus"} {
		if r := runCompromised(t, line); r.code == 0 {
			t.Errorf("%s succeeds: r = %+v, want r.code != 0", line, r)
		}
	}
}

// sockets prints, for each socket family, whether the kernel creates a socket, and for two addresses whether it sends to them.
const sockets = `import errno, socket
for name, family, kind in [("unix", 1, 1), ("inet", 2, 1), ("inet6", 10, 1), ("netlink", 16, 3), ("packet", 17, 3), ("alg", 38, 5), ("vsock", 40, 1), ("key", 15, 3), ("bluetooth", 31, 1), ("can", 29, 3), ("tipc", 30, 1), ("xdp", 44, 3)]:
    try:
        socket.socket(family, kind).close()
        print(name, "opens")
    except OSError as e:
        print(name, errno.errorcode[e.errno])
for host in "127.0.0.1", "192.0.2.7":
    try:
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", (host, 9))
        print(host, "opens")
    except OSError as e:
        print(host, errno.errorcode[e.errno])
`

// A compromised unit can only open the sockets that the unit allows, and reach only the allowed addresses.
func TestUnitsOpenNoOtherSockets(t *testing.T) {
	installed(t, this)
	a := live(t)
	run(t, "ip", "link", "add", "boxd-test", "type", "dummy")
	t.Cleanup(func() { run(t, "ip", "link", "del", "boxd-test") })
	run(t, "ip", "address", "add", "192.0.2.7/32", "dev", "boxd-test")
	run(t, "ip", "link", "set", "boxd-test", "up")
	script := "/usr/lib/boxd/sockets.py" // the units can read it there
	put(t, map[string]string{script: sockets})
	run(t, "chmod", "644", script)
	t.Cleanup(func() { run(t, "systemctl", "daemon-reload") }) // after the files below are removed
	said := func(text string) map[string]string {
		t.Helper()
		all := map[string]string{}
		for line := range strings.Lines(text) {
			if name, what, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
				all[name] = what
			}
		}
		if len(all) != 14 {
			t.Fatalf("the program prints %q, want len(all) == 14", text)
		}
		return all
	}
	free := said(run(t, "python3", script))
	for _, name := range []string{"unix", "inet", "inet6", "netlink", "packet", "127.0.0.1", "192.0.2.7"} { // or this would prove nothing
		if free[name] != "opens" {
			t.Fatalf(`outside of the units %s: free[name] = %s, want "opens"`, name, free[name])
		}
	}
	for unit, allowed := range map[string][]string{service: {"unix"}, keeper: {"unix", "inet", "inet6", "netlink", "127.0.0.1"}} {
		out := "/var/lib/boxd/daemon/sockets-of-" + unit
		put(t, map[string]string{"/etc/systemd/system/" + unit + ".d/sockets.conf": "[Service]\nAppArmorProfile=\nExecStartPost=/bin/sh -c 'exec python3 " + script + " >" + out + "'\n"})
		run(t, "systemctl", "daemon-reload")
		run(t, "systemctl", "restart", unit)
		text, err := os.ReadFile(out)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(out); err != nil {
			t.Fatal(err)
		}
		for name, what := range said(string(text)) {
			want := free[name]
			if !slices.Contains(allowed, name) {
				want = "EAFNOSUPPORT"
				if strings.Contains(name, ".") && slices.Contains(allowed, "inet") {
					want = "EPERM" // from the address filter
				}
			}
			if what != want {
				t.Errorf("%s, %s: %s, not %s", unit, name, what, want)
			}
		}
	}
	a.unharmed(t, "restarts of the units")
}
