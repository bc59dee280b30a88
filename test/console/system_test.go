// SPDX-License-Identifier: Apache-2.0

package console_test

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
)

// packagesVariable names the directory of the packages under test. Setting it permits changes to the host.
const packagesVariable = "BOXD_TEST_PACKAGES"

// Where Cockpit listens through systemd's socket.
const cockpitAddress = "127.0.0.1:9090"

// system runs a command as an administrator, even after the test has ended, and returns its output.
func system(t *testing.T, argv ...string) string {
	t.Helper()
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C.UTF-8")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%q: %v\n%s", argv, err, out)
	}
	return string(out)
}

// On a host where boxd, the console and Cockpit are installed from packages and started by systemd, a person logs in through PAM
// in a browser, finds the boxes in Cockpit's menu, creates one and works in it as that person, and logs out.
func TestAPersonLogsInAtTheInstalledCockpit(t *testing.T) {
	requireBrowser(t)
	file := filepath.Join(os.Getenv(packagesVariable), "boxd-cockpit.deb")
	if _, err := os.Stat(file); os.Getenv(packagesVariable) == "" || err != nil {
		boxtest.Missing(t, "packages that "+packagesVariable+" names: this test changes the host, so it is run in the virtual machine")
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the journal:\n%s", system(t, "journalctl", "-b", "--no-pager", "-n", "200"))
		}
		system(t, "systemctl", "stop", "cockpit.socket", "cockpit.service", "boxd.socket", "boxd.service", "boxd-keeper.service", "boxd-boxes.service")
		system(t, "sh", "-c", "loginctl terminate-user anna; while pgrep -u anna; do sleep 0.2; done; userdel --remove anna")
		system(t, "apt-get", "-qq", "-y", "purge", "boxd-cockpit")
	})
	system(t, "apt-get", "-qq", "-y", "-o", "Dpkg::Use-Pty=0", "install", file)
	system(t, "useradd", "--create-home", "--shell", "/bin/bash", "--groups", "boxd", "anna")
	system(t, "sh", "-c", "echo 'anna:geheim, ü' | chpasswd")
	system(t, "systemctl", "start", "boxd.socket", "cockpit.socket")
	boxtest.Eventually(t, "Cockpit listens", func() bool {
		conn, err := net.Dial("tcp", cockpitAddress)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
	browse(t, "login.mjs", "https://"+cockpitAddress+"/", acts{
		"boxctl": func(line string) string { // as anna, who has logged in
			return system(t, append([]string{"runuser", "-u", "anna", "--", "boxctl"}, strings.Fields(line)...)...)
		},
		"systemctl": func(line string) string { return system(t, append([]string{"systemctl"}, strings.Fields(line)...)...) },
		"group": func(id string) string {
			return system(t, "sh", "-c", `cat "$(runuser -u anna -- boxctl inspect --json `+id+` | sed -n 's/.*"group": *"\([^"]*\)".*/\1/p')"/work/memory.max`)
		},
	})
}
