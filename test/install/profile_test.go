// SPDX-License-Identifier: Apache-2.0

package install_test

import (
	"os"
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
)

// boxd is confined by the AppArmor profile of its package, and can do everything that boxes need; the profile does not apply to
// keeper, boxes and other programs.
func TestBoxdIsConfinedByItsProfile(t *testing.T) {
	if _, err := os.Stat("/sys/kernel/security/apparmor"); err != nil {
		boxtest.Missing(t, "a kernel with AppArmor")
	}
	installed(t, this)
	lend(t)
	run(t, "dmesg", "--clear")
	a := live(t)
	confined := func(unit string) string {
		text, err := os.ReadFile("/proc/" + boxtest.UnitProperty(t, unit, "MainPID") + "/attr/apparmor/current")
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(text))
	}
	if got := confined(service); got != "boxd (enforce)" {
		t.Errorf(`boxd is %q, want "boxd (enforce)"`, got)
	}
	for _, unit := range []string{keeper, anchor} {
		if got := confined(unit); got != "unconfined" {
			t.Errorf(`%s is %q, want got == "unconfined"`, unit, got)
		}
	}
	if got := boxctl(t, "exec", "alive", "--", "cat", "/proc/self/attr/current"); got != "unconfined" {
		t.Errorf(`a program in a box is %q, want "unconfined"`, got)
	}
	// All kinds of output and input, a terminal, a process that is followed, usage, a change and the doctor.
	boxctl(t, "exec", "alive", "--", "sh", "-c", "head -c 3000000 /dev/zero | wc -c; echo x >&2")
	run(t, "sh", "-c", "echo hello | su "+member+" -c 'boxctl exec -i alive -- cat'")
	run(t, "script", "-qec", "su "+member+" -c 'boxctl exec -it alive -- tty'", "/dev/null")
	boxctl(t, "create", "other")
	boxctl(t, "start", "other", "server", "--", "sh", "-c", "echo up; sleep 1000")
	boxctl(t, "logs", "other", "server")
	boxctl(t, "set", "alive", "--memory", "80MiB")
	boxctl(t, "doctor")
	run(t, "systemctl", "reload", service)
	run(t, "systemctl", "restart", service)
	boxctl(t, "ps", "other")
	a.unharmed(t, "a restart of a confined boxd")
	// A secret is read from a credential of the unit and goes to boxnames; the host's certificates go into the box.
	if got := boxctl(t, "run", "--network-rule", "api.example.com", "--secret", "key", "--", "sh", "-c", `echo "$API_KEY"; grep -c BEGIN "$SSL_CERT_FILE"`); !strings.HasPrefix(got, "boxd-secret-") || len(strings.Fields(got)) != 2 || strings.HasSuffix(got, "\n1") {
		t.Errorf(`a box with a secret has %q, want got starting with "boxd-secret-" and len(strings.Fields(got)) == 2 and got not ending with "\n1"`,
			got)
	}
	// The kernel logs what it has refused.
	if log := run(t, "sh", "-c", `dmesg | grep 'apparmor="DENIED"' | grep 'profile="boxd"' || true`); log != "" {
		t.Errorf("the AppArmor profile refuses accesses that boxd needs:\n%s", log)
	}
	// It refuses what boxd does not need: a shell under the profile can read public files, and nothing else.
	for file, allowed := range map[string]bool{"/etc/passwd": true, "/etc/boxd/box.toml": true, "/etc/shadow": false, "/root/.profile": false, "/var/lib/dpkg/status": false, "/var/lib/boxd/store.img": false} {
		r := try(t, "aa-exec", "-p", "boxd", "--", "/bin/sh", "-c", "read line <"+file)
		if (r.code == 0) != allowed {
			t.Errorf("%s, allowed %v: r = %+v, want (r.code == 0) == allowed", file, allowed, r)
		}
	}
	run(t, "setpriv", "--reuid=boxd-daemon", "--regid=boxd-daemon", "--clear-groups", "aa-exec", "-p", "boxd", "--", "/bin/sh", "-c", "read line </var/lib/boxd/daemon/previews.json")
	if r := try(t, "aa-exec", "-p", "boxd", "--", "/bin/sh", "-c", "/bin/cat /etc/passwd"); r.code == 0 || !strings.Contains(r.stderr, "Permission denied") {
		t.Errorf(`another program is executed: r = %+v, want r.code != 0 and r.stderr containing "Permission denied"`,
			r)
	}
}

// lend configures the secret "key" and networks for boxes.
func lend(t *testing.T) {
	t.Helper()
	again := func() {
		run(t, "systemctl", "daemon-reload")
		reset(t)
	}
	t.Cleanup(again) // after the files are removed
	put(t, map[string]string{
		"/etc/boxd/box.toml.d/50-key.toml":                  "network.resolvers = [\"192.0.2.1\"]\n[policy.default]\nsecrets = [\"key\"]\n[secrets.key]\ncredential = \"key\"\nhosts = [\"api.example.com\"]\nenv = \"API_KEY\"\n",
		"/etc/boxd-key":                                     "precious-value\n",
		"/etc/systemd/system/" + service + ".d/50-key.conf": "[Service]\nLoadCredential=key:/etc/boxd-key\n",
	})
	run(t, "sysctl", "-w", "net.ipv4.ip_forward=1")
	again()
}
