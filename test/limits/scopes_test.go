// SPDX-License-Identifier: Apache-2.0

package limits_test

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/limits"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
)

// startScoped starts a private boxd whose sessions are scopes.
func startScoped(t *testing.T) *boxtest.Daemon {
	t.Helper()
	if _, err := os.Stat("/run/systemd/system"); err != nil { // sd_booted(3)
		boxtest.Missing(t, "systemd as the service manager")
	}
	return start(t, groups(parent(t, "scoped", ""))+"driver = \"systemd\"\n")
}

// scopes are the scopes of boxes that systemd has, and their cgroups.
func scopes(t *testing.T) string {
	t.Helper()
	left, err := filepath.Glob("/sys/fs/cgroup/box.slice/box-*.scope")
	if err != nil {
		t.Fatal(err)
	}
	return boxtest.Systemctl(t, "list-units", "--all", "--plain", "--no-legend", "box-*.scope") + strings.Join(left, " ")
}

func noScopes(t *testing.T) {
	t.Helper()
	left := ""
	defer func() {
		if left != "" {
			t.Logf("scopes left: %s", left)
		}
	}()
	boxtest.Eventually(t, "there is no scope of a box", func() bool {
		left = scopes(t)
		return left == ""
	})
}

func TestScopeOfASession(t *testing.T) {
	d := startScoped(t)
	d.Warm()
	noScopes(t)
	before := d.Look()
	s := d.NewSession(t, api.SessionRequest{ID: "s1", Patch: limits.Patch{Memory: new(64 * quantity.MiB), Pids: new(40), CPUWeight: new(30)}})
	unit := filepath.Base(s.Group)
	if got := boxtest.Systemctl(t, "show", "--value", "-p", "ControlGroup", unit); s.Group != "/sys/fs/cgroup"+got || !strings.HasPrefix(got, "/box.slice/box-") {
		t.Errorf("the cgroup of the unit is %q, of the session %q", got, s.Group)
	}
	if got := boxtest.Systemctl(t, "is-active", unit); got != "active" || s.Enforcement["memory"] != "cgroup2" {
		t.Errorf(`%s is %s, %v, want got == "active" and s.Enforcement["memory"] == "cgroup2"`,
			unit, got, s.Enforcement)
	}
	limits := map[string]string{
		"memory.max": strconv.Itoa(192 << 20), "pids.max": "104", "cpu.weight": "30",
		"work/memory.max": strconv.Itoa(64 << 20), "work/pids.max": "40", "work/memory.swap.max": "0", "work/cpu.max": "100000 100000",
		"cgroup.procs": "", "init/cgroup.procs": strconv.Itoa(int(s.PID)), "hold/cgroup.procs": "", "cgroup.max.descendants": "1024",
	}
	boxtest.GroupHas(t, "at the start", s.Group, limits)
	boxtest.Systemctl(t, "daemon-reload")
	boxtest.GroupHas(t, "after a reload", s.Group, limits)
	if got := d.Sh(t, "s1", "echo here"); got != "here\n" {
		t.Errorf(`got %q, want "here\n"`, got)
	}
	if status := boxtest.Systemctl(t, "status", "--no-pager", unit); !strings.Contains(status, "A box of boxd") || !strings.Contains(status, "boxinit") {
		t.Errorf(`status = %s, want status containing "A box of boxd" and status containing "boxinit"`, status)
	}
	r := d.Result(t, "s1", api.ExecRequest{Language: "python", Code: new("x = b'x' * (300 << 20)"), Timeout: boxtest.Duration("1m")})
	if r.Status != "oom_killed" || r.OOM == nil || r.OOM.Of != "session" || r.OOM.Limit != 64*quantity.MiB {
		t.Errorf(`r = %s, want r.Status == "oom_killed" and r.OOM != nil and r.OOM.Of == "session" and r.OOM.Limit == 64 * quantity.MiB`,
			boxtest.Show(r))
	}
	if now, err := d.Session(t.Context(), "s1"); err != nil || now.Usage == nil || now.Usage.OOMKills == 0 || now.PID != s.PID {
		t.Errorf("now = %+v, err = %v, want no error and now.Usage != nil and now.Usage.OOMKills != 0 and now.PID == %v",
			now, err, s.PID)
	}
	if c := level(t, d, "systemd scopes"); c.Level != "ok" {
		t.Errorf(`c = %+v, want c.Level == "ok"`, c)
	}
	if err := d.DeleteSession(t.Context(), "s1"); err != nil {
		t.Fatal(err)
	}
	if left := scopes(t); left != "" {
		t.Errorf(`left are %s, want ""`, left)
	}
	d.NothingLeft(before)
}

func TestScopeAndBoxChangeTogether(t *testing.T) {
	d := startScoped(t)
	s := d.NewSession(t, api.SessionRequest{ID: "s1", Patch: limits.Patch{Memory: new(128 * quantity.MiB), Pids: new(40)}})
	if _, err := d.ChangeSession(t.Context(), "s1", &api.SessionChange{Patch: limits.Patch{Memory: new(256 * quantity.MiB), Pids: new(60), CPUWeight: new(20), CPUs: new(0.5)}}); err != nil {
		t.Fatal(err)
	}
	inGroup := map[string]string{
		"memory.max": strconv.Itoa(384 << 20), "pids.max": "124", "cpu.weight": "20",
		"work/memory.max": strconv.Itoa(256 << 20), "work/pids.max": "60", "work/cpu.max": "50000 100000",
	}
	boxtest.GroupHas(t, "after a change", s.Group, inGroup)
	hold := make(chan api.ExecResult, 1)
	go func() {
		req := api.ExecRequest{Language: "python", Code: new("x = b'x' * (200 << 20)\nopen('/workspace/up', 'w')\nimport time\ntime.sleep(1000)"), Timeout: boxtest.Duration("10m")}
		hold <- d.Result(t, "s1", req)
	}()
	d.Sh(t, "s1", "until [ -e /workspace/up ]; do sleep 0.1; done")
	// The new limit is below the usage of the box, by more than what the scope adds for PID 1: no process may be killed for that.
	_, err := d.ChangeSession(t.Context(), "s1", &api.SessionChange{Patch: limits.Patch{Memory: new(32 * quantity.MiB), CPUWeight: new(50)}})
	boxtest.Refused(t, err, http.StatusConflict, "memory")
	boxtest.GroupHas(t, "after a refused change", s.Group, inGroup)
	boxtest.Systemctl(t, "daemon-reload")
	boxtest.GroupHas(t, "after a reload", s.Group, inGroup)
	if err := d.DeleteSession(t.Context(), "s1"); err != nil {
		t.Fatal(err)
	}
	if r := <-hold; r.Status != "canceled" && r.Status != "lost" {
		t.Errorf(`r = %s, want r.Status == "canceled" or r.Status == "lost"`, boxtest.Show(r))
	}
	noScopes(t)
}

func TestScopesOfFortySessionsLeaveNone(t *testing.T) {
	d := startScoped(t)
	d.Warm()
	before := d.Look()
	for n := range 40 {
		id := "s" + strconv.Itoa(n%2)
		d.NewSession(t, api.SessionRequest{ID: id})
		if n%4 == 0 {
			d.Sh(t, id, "true")
		}
		if err := d.DeleteSession(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		if left := scopes(t); left != "" {
			t.Fatalf(`left are %s, want ""`, left)
		}
	}
	d.NothingLeft(before)
}

func TestScopesOfAKilledBoxd(t *testing.T) {
	d := startScoped(t)
	s := d.NewSession(t, api.SessionRequest{ID: "s1"})
	d.NewSession(t, api.SessionRequest{ID: "s2"})
	d.Kill()
	noScopes(t) // they end with their boxes
	// The scope that has that name now is not boxd's, though boxd has a record of a box with that name.
	unit := filepath.Base(s.Group)
	other := exec.CommandContext(t.Context(), "systemd-run", "-q", "--scope", "--slice=box.slice", "--unit="+unit, "sleep", "1000")
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	boxtest.Eventually(t, "a scope is there", func() bool { return scopes(t) != "" })
	d.Restart()
	if got := boxtest.Systemctl(t, "is-active", unit); got != "active" {
		t.Errorf(`%s is %s, want got == "active"`, unit, got)
	}
	d.NewSession(t, api.SessionRequest{ID: "s2"})
	boxtest.Systemctl(t, "stop", unit)
	if err := other.Wait(); err == nil {
		t.Error("the process of the scope was not killed")
	}
	d.NewSession(t, api.SessionRequest{ID: "s1"})
}

func TestScopeStoppedByAnAdministrator(t *testing.T) {
	d := startScoped(t)
	d.Warm()
	before := d.Look()
	s := d.NewSession(t, api.SessionRequest{ID: "s1"})
	boxtest.Systemctl(t, "stop", filepath.Base(s.Group))
	boxtest.Eventually(t, "the session has ended", func() bool {
		_, err := d.Session(t.Context(), "s1")
		return err != nil
	})
	boxtest.Eventually(t, "the log says that the session was lost", func() bool { return strings.Contains(d.Log(), "reason=lost") })
	noScopes(t)
	d.NothingLeft(before)
	d.NewSession(t, api.SessionRequest{ID: "s1"})
}

// If the name of a scope is in use by another program, that scope is left alone.
func TestScopeNameInUse(t *testing.T) {
	d := startScoped(t)
	s := d.NewSession(t, api.SessionRequest{ID: "s1"})
	if err := d.DeleteSession(t.Context(), "s1"); err != nil {
		t.Fatal(err)
	}
	unit := filepath.Base(s.Group)
	other := exec.CommandContext(t.Context(), "systemd-run", "-q", "--scope", "--slice=box.slice", "--unit="+unit, "sleep", "1000")
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	boxtest.Eventually(t, "a scope is there", func() bool { return scopes(t) != "" })
	_, _, err := d.CreateSession(t.Context(), &api.SessionRequest{ID: "s1"})
	boxtest.Refused(t, err, http.StatusServiceUnavailable, "")
	if got := boxtest.Systemctl(t, "is-active", unit); got != "active" {
		t.Errorf(`%s is %s, want got == "active"`, unit, got)
	}
	boxtest.Systemctl(t, "stop", unit)
	if err := other.Wait(); err == nil {
		t.Error("the process of the scope was not killed")
	}
	noScopes(t)
	d.NewSession(t, api.SessionRequest{ID: "s1"})
}

// hideSystemd removes every way to systemd from a boxd without a bus: its connection, which ends when systemd re-executes itself,
// and the socket for root. The result restores it.
func hideSystemd(t *testing.T) (show func()) {
	t.Helper()
	const private = "/run/systemd/private"
	boxtest.Systemctl(t, "daemon-reexec")
	boxtest.Eventually(t, "systemd is back", func() bool {
		return exec.CommandContext(t.Context(), "systemctl", "show", "--property=Version").Run() == nil
	})
	if err := unix.Mount("/dev/null", private, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	hidden := true
	show = func() {
		if !hidden {
			return
		}
		hidden = false
		if err := unix.Unmount(private, unix.MNT_DETACH); err != nil { // whoever is just connecting keeps it busy
			t.Error(err)
		}
	}
	t.Cleanup(show)
	return show
}

func TestScopesWithoutDBus(t *testing.T) {
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", "unix:path=/nonexistent")
	d := startScoped(t)
	d.Warm()
	s := d.NewSession(t, api.SessionRequest{ID: "s1", Patch: limits.Patch{Memory: new(64 * quantity.MiB)}})
	d.AwaitPrefork(1)
	show := hideSystemd(t)
	before := d.Look()
	_, _, err := d.CreateSession(t.Context(), &api.SessionRequest{ID: "s2"})
	if e := boxtest.Refused(t, err, http.StatusServiceUnavailable, ""); !strings.Contains(e.Detail, "D-Bus") || !strings.Contains(e.Hint, "cgroups.driver") {
		t.Errorf(`e = %+v, want e.Detail containing "D-Bus" and e.Hint containing "cgroups.driver"`, e)
	}
	if c := level(t, d, "systemd scopes"); c.Level != "fail" || !strings.Contains(c.Hint, "D-Bus") {
		t.Errorf(`c = %+v, want c.Level == "fail" and c.Hint containing "D-Bus"`, c)
	}
	d.NothingLeft(before)
	// A change is undone, and the box works on.
	_, err = d.ChangeSession(t.Context(), "s1", &api.SessionChange{Patch: limits.Patch{Memory: new(128 * quantity.MiB)}})
	boxtest.Refused(t, err, http.StatusServiceUnavailable, "")
	boxtest.GroupHas(t, "after a change without D-Bus", s.Group, map[string]string{"memory.max": strconv.Itoa(192 << 20), "work/memory.max": strconv.Itoa(64 << 20)})
	if now, err := d.Session(t.Context(), "s1"); err != nil || now.Memory != 64*quantity.MiB {
		t.Errorf("now = %+v, err = %v, want no error and now.Memory == 64 * quantity.MiB", now, err)
	}
	d.Sh(t, "s1", "true")
	// A change that does not concern systemd does not need it.
	if _, err := d.ChangeSession(t.Context(), "s1", &api.SessionChange{Patch: limits.Patch{CPUs: new(0.5)}}); err != nil {
		t.Error(err)
	}
	if err := d.DeleteSession(t.Context(), "s1"); err != nil {
		t.Error(err)
	}
	show()
	d.NewSession(t, api.SessionRequest{ID: "s2"}) // stops what could not be stopped
	if err := d.DeleteSession(t.Context(), "s2"); err != nil {
		t.Error(err)
	}
	noScopes(t)
}
