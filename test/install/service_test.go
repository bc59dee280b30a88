// SPDX-License-Identifier: Apache-2.0

package install_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
)

// Boxes survive what an administrator does to the services.
func TestBoxesOutliveTheirServices(t *testing.T) {
	installed(t, this)
	a := live(t)
	holder := boxtest.UnitProperty(t, anchor, "MainPID")
	for _, c := range []struct {
		name string
		argv []string
		gone []string // units whose processes are replaced or stopped
	}{
		{"a restart of boxd", []string{"systemctl", "restart", service}, []string{service, keeper}},
		{"a restart of the keeper", []string{"systemctl", "restart", keeper}, []string{keeper}},
		{"a kill of boxd", []string{"systemctl", "kill", "--signal=KILL", "--kill-whom=main", service}, []string{service}},
		{"a kill of the keeper", []string{"systemctl", "kill", "--signal=KILL", "--kill-whom=main", keeper}, []string{keeper}},
		{"a kill of all of both", []string{"systemctl", "kill", "--signal=KILL", service, keeper}, []string{service, keeper}},
		{"a stop of boxd", []string{"systemctl", "stop", service}, []string{service, keeper}},
		{"a stop of boxd and its socket", []string{"sh", "-c", "systemctl stop " + socket + " && systemctl start " + socket}, []string{service, keeper}},
		{"a reload of systemd", []string{"systemctl", "daemon-reload"}, nil},
		{"a start of systemd anew", []string{"systemctl", "daemon-reexec"}, nil},
	} {
		before := map[string]string{}
		for _, unit := range c.gone {
			before[unit] = boxtest.UnitProperty(t, unit, "MainPID")
		}
		if c.argv[0] == "systemctl" {
			boxtest.Systemctl(t, c.argv[1:]...)
		} else {
			run(t, c.argv...)
		}
		for _, unit := range c.gone {
			boxtest.Eventually(t, "after "+c.name+" the process of "+unit+" is another or none", func() bool {
				return boxtest.UnitProperty(t, unit, "MainPID") != before[unit]
			})
		}
		if !a.initLives() {
			t.Fatalf("the box has died with %s", c.name)
		}
		a.unharmed(t, c.name) // also starts what was stopped
	}
	if got := boxtest.UnitProperty(t, anchor, "MainPID"); got != holder {
		t.Errorf("the anchor's process was %s and is %s, want got == holder", holder, got)
	}
	run(t, "systemctl", "stop", anchor)
	// systemd is done when the cgroup is empty, which a process leaves a little before it is dead: see do_exit in kernel/exit.c.
	boxtest.Eventually(t, "the box ends with the unit that holds it", func() bool { return !a.initLives() })
	for _, unit := range []string{service, keeper} {
		if got := state(t, unit); got != "inactive" {
			t.Errorf(`after the end of all boxes %s is %s, want got == "inactive"`, unit, got)
		}
	}
	boxctl(t, "run", "--", "true")
}

// Masked units are not started, and what runs goes on.
func TestMaskedUnits(t *testing.T) {
	installed(t, this)
	a := live(t)
	run(t, "systemctl", "mask", "--now", socket, service)
	r := try(t, as(member, "boxctl", "ls")...)
	if r.code == 0 || !strings.Contains(r.stderr, "hint:") || !strings.Contains(r.stderr, socket) {
		t.Errorf(`with masked units: r = %+v, want r.code != 0 and r.stderr containing "hint:" and r.stderr containing socket`,
			r)
	}
	if !a.initLives() {
		t.Error("the box has ended")
	}
	run(t, "systemctl", "unmask", socket, service)
	run(t, "systemctl", "start", socket)
	a.unharmed(t, "the units were masked")
}

// A boxd that fails to start is not restarted forever, logs the reason, and costs no box.
func TestACrashLoop(t *testing.T) {
	installed(t, this)
	a := live(t)
	broken := "/etc/boxd/box.toml.d/broken.toml"
	if err := os.MkdirAll(filepath.Dir(broken), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(filepath.Dir(broken)) })
	if err := os.WriteFile(broken, []byte("[daemon]\nahed = 2\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if r := try(t, "systemctl", "restart", service); r.code == 0 {
		t.Error("systemctl restart succeeded with an invalid configuration")
	}
	again := func() (n int) { n, _ = strconv.Atoi(boxtest.UnitProperty(t, service, "NRestarts")); return n }
	boxtest.Eventually(t, "systemd starts it again and again", func() bool { return again() > 3 || state(t, service) == "failed" })
	boxtest.Eventually(t, "systemd gives up", func() bool { return state(t, service) == "failed" })
	if got := again(); got < 3 {
		t.Errorf("it was started again %d times", got)
	}
	log := run(t, "journalctl", "--no-pager", "--output=cat", "--unit="+service, "--lines=50")
	if !strings.Contains(log, `unknown key daemon.ahed; did you mean "ahead"?`) {
		t.Errorf("the journal has\n%s", log)
	}
	if !a.initLives() {
		t.Error("the box has ended")
	}
	if err := os.Remove(broken); err != nil {
		t.Fatal(err)
	}
	run(t, "systemctl", "reset-failed", service)
	_ = try(t, "systemctl", "reset-failed", socket)
	run(t, "systemctl", "start", socket)
	a.unharmed(t, "a crash loop")
}

// Without work boxd exits, and the keeper with it, both successfully; the next client starts both. A box keeps them running.
func TestAnIdleBoxdAndItsKeeperExit(t *testing.T) {
	installed(t, this)
	dropIn := "/etc/boxd/box.toml.d/idle.toml"
	if err := os.MkdirAll(filepath.Dir(dropIn), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		os.RemoveAll(filepath.Dir(dropIn))
		run(t, "systemctl", "try-restart", service)
	})
	if err := os.WriteFile(dropIn, []byte("[daemon]\nidle_exit = \"2s\"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		boxctl(t, "run", "--", "true")
		boxtest.Eventually(t, "boxd and its keeper have ended", func() bool {
			return state(t, service) == "inactive" && state(t, keeper) == "inactive"
		})
		if got := boxtest.UnitProperty(t, service, "Result"); got != "success" || state(t, socket) != "active" {
			t.Errorf(`boxd ended with %s, and the socket is %s, want got == "success" and state(t, socket) == "active"`,
				got, state(t, socket))
		}
	}
	a := live(t)
	pid := boxtest.UnitProperty(t, service, "MainPID")
	run(t, "sleep", "4") // twice the idle time
	if got := boxtest.UnitProperty(t, service, "MainPID"); got != pid {
		t.Errorf("with a box boxd was process %s and is %s, want got == pid", pid, got)
	}
	a.unharmed(t, "a while without a caller")
}

// A boxd that no longer answers is replaced.
func TestTheWatchdog(t *testing.T) {
	installed(t, this)
	a := live(t)
	pid, err := strconv.Atoi(boxtest.UnitProperty(t, service, "MainPID"))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	boxtest.Eventually(t, "systemd replaces it", func() bool {
		now := boxtest.UnitProperty(t, service, "MainPID")
		return now != "0" && now != strconv.Itoa(pid)
	})
	// The reason is there besides the goroutine dump that boxd prints on the watchdog's signal.
	if r := try(t, "journalctl", "--no-pager", "--output=cat", "--unit="+service, "--grep=Watchdog timeout"); r.stdout == "" {
		t.Errorf(`the journal lacks the reason: r = %+v, want r.stdout != ""`, r)
	}
	a.unharmed(t, "the watchdog's kill")
}

// A reload applies a valid configuration, and refuses an invalid one without any change.
func TestAReload(t *testing.T) {
	installed(t, this)
	a := live(t)
	pid := boxtest.UnitProperty(t, service, "MainPID")
	dropIn := "/etc/boxd/box.toml.d/mine.toml"
	if err := os.MkdirAll(filepath.Dir(dropIn), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		os.RemoveAll(filepath.Dir(dropIn))
		_ = try(t, "systemctl", "reload", service)
	})
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(dropIn, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("[sessions]\nmaxx = 7\n")
	if r := try(t, "systemctl", "reload", service); r.code == 0 {
		t.Error("systemctl reload succeeded with an invalid configuration")
	}
	if got := state(t, service); got != "active" {
		t.Errorf(`after that boxd is %s, want "active"`, got)
	}
	write("[sessions]\nmax = 7\n")
	run(t, "systemctl", "reload", service)
	boxtest.Eventually(t, "the new limit is known", func() bool {
		return strings.Contains(boxctl(t, "status", "--json"), `"max_sessions": 7`)
	})
	if got := boxtest.UnitProperty(t, service, "MainPID"); got != pid {
		t.Errorf("the reload has replaced process %s by %s", pid, got)
	}
	a.unharmed(t, "a reload")
}
