// SPDX-License-Identifier: Apache-2.0

package install_test

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
)

// Variables of test/vm/guest.sh: printing a line that begins with the first cuts this machine's power; the rest of the line is
// what was promised. When the machine is back, the test runs again, and the second variable has that text.
const (
	cutVariable      = "BOXD_TEST_CUT"
	promisedVariable = "BOXD_TEST_PROMISED"
)

// stops is how many sessions are stopped before the power cut.
const stops = 5

// rest returns the content of a stopped session's file.
func rest(i int) string { return strings.Repeat(fmt.Sprintf("session %d ", i), 1+3000*i) }

// After a power cut a machine still has every session whose stop was answered and every named workspace, each with its files.
// Sessions that were running are reported as lost, and nothing of them is left.
func TestAMachineThatIsCutOffHasWhatItPromised(t *testing.T) {
	cut := os.Getenv(cutVariable)
	if cut == "" {
		boxtest.Missing(t, "a machine that can be cut off")
	}
	if promised := os.Getenv(promisedVariable); promised != "" {
		n, err := strconv.Atoi(promised)
		if err != nil || n < stops {
			t.Fatalf("%s is %q, want no error and n >= stops", promisedVariable, promised)
		}
		checkMachine(t, n)
		return
	}
	installed(t, this)
	live(t)
	boxctl(t, "workspaces", "create", "kept")
	boxctl(t, "run", "--workspace", "kept", "--", "sh", "-c", "echo kept >file")
	run(t, "sync") // this covers older data; boxd itself must sync what it promises from here on
	boxctl(t, "exec", "alive", "--", "sh", "-c", "echo running >file")
	for i := range stops {
		name := fmt.Sprint("stopped-", i)
		boxctl(t, "create", name)
		if r := try(t, "sh", "-c", `printf %s "$2" | runuser -u `+member+` -- boxctl exec -i "$1" -- tee file >/dev/null`, "sh", name, rest(i)); r.code != 0 {
			t.Fatalf("r = %+v, want r.code == 0", r)
		}
		boxctl(t, "stop", name)
	}
	fmt.Printf("\n%s %d\n", cut, stops)
	<-time.After(5 * time.Minute)
	t.Error("the machine was not powered off")
}

// checkMachine checks a machine that is back.
func checkMachine(t *testing.T, promised int) {
	t.Helper()
	if got := state(t, socket); got != "active" { // as after every boot
		t.Errorf(`%s is %s, want got == "active"`, socket, got)
	}
	var list api.SessionList
	decode(t, boxctl(t, "ls", "--json"), &list)
	for i := range promised {
		name := fmt.Sprint("stopped-", i)
		at := slices.IndexFunc(list.Sessions, func(s api.Session) bool { return s.ID == name })
		if at < 0 || list.Sessions[at].State != "stopped" {
			t.Errorf(`%s is not there, or not stopped: list.Sessions = %+v, want at >= 0 and list.Sessions[at].State == "stopped"`,
				name, list.Sessions)
			continue
		}
		boxctl(t, "start", name)
		if got := boxctl(t, "exec", name, "--", "cat", "file"); got != strings.TrimSpace(rest(i)) {
			t.Errorf("the file of %s has %d bytes, not %d", name, len(got), len(rest(i)))
		}
		boxctl(t, "rm", name)
	}
	if slices.ContainsFunc(list.Sessions, func(s api.Session) bool { return s.ID == "alive" }) {
		t.Errorf("a box is listed as running: %+v", list.Sessions)
	}
	if r := try(t, as(member, "boxctl", "exec", "alive", "--", "true")...); r.code == 0 || !strings.Contains(r.stderr, "(lost)") {
		t.Errorf(`the owner of the session that ran gets %+v, want r.code != 0 and r.stderr containing "(lost)"`,
			r)
	}
	if got := boxctl(t, "run", "--workspace", "kept", "--", "cat", "file"); got != "kept" {
		t.Errorf(`the workspace has %q, want "kept"`, got)
	}
	if r := try(t, "boxctl", "audit", "verify", "/var/lib/boxd/audit"); r.code != 0 && !strings.Contains(r.stdout+r.stderr, "incomplete") {
		t.Errorf(`the audit log: r = %+v, want r.code == 0 or r.stdout + r.stderr containing "incomplete"`, r)
	}
	var d api.Doctor
	decode(t, boxctl(t, "doctor", "--json"), &d)
	if !d.OK {
		t.Errorf("the answer of boxctl doctor is %+v, want d.OK == true", d)
	}
	boxctl(t, "workspaces", "rm", "kept")
	left, err := os.ReadDir("/var/lib/boxd/workspaces")
	if err != nil || len(left) != 0 {
		t.Errorf("workspaces without a session: left = %v, err = %v, want no error and len(left) == 0", left, err)
	}
}
