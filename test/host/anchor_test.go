// SPDX-License-Identifier: Apache-2.0

package host_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/boxtest"
)

const (
	unitDir     = "../../systemd/units"
	groupMount  = "/sys/fs/cgroup"
	anchorUnit  = "boxd-boxes.service"
	anchorShare = groupMount + "/box.slice/" + anchorUnit
)

// requireSystemd skips a test, or fails it if skipping is not allowed, on a host without systemd or without cgroup v2.
func requireSystemd(t *testing.T) {
	t.Helper()
	boxtest.RequireRoot(t)
	if _, err := os.Stat("/run/systemd/system"); err != nil {
		boxtest.Missing(t, "systemd")
	}
	var mount unix.Statfs_t
	if err := unix.Statfs(groupMount, &mount); err != nil || mount.Type != unix.CGROUP2_SUPER_MAGIC {
		boxtest.Missing(t, "cgroup v2 at "+groupMount)
	}
}

// installUnits installs the shipped units into the running system, with the keeper under test, unless the package has done that.
func installUnits(t *testing.T) {
	t.Helper()
	t.Cleanup(func() { // runs last: systemd forgets the removed units
		boxtest.Systemctl(t, "stop", "box.slice")
		boxtest.Systemctl(t, "daemon-reload")
	})
	for _, name := range []string{anchorUnit, "box.slice"} {
		switch path := boxtest.UnitProperty(t, name, "FragmentPath"); path {
		case "":
		case filepath.Join("/usr/lib/systemd/system", name), filepath.Join("/lib/systemd/system", name):
			continue
		default:
			t.Fatalf("%s is installed here: %s", name, path)
		}
		path := filepath.Join("/run/systemd/system", name)
		text, err := os.ReadFile(filepath.Join(unitDir, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, text, 0o644); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.Remove(path) })
	}
	dropIn := filepath.Join("/run/systemd/system", anchorUnit+".d")
	if err := os.MkdirAll(dropIn, 0o755); err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("[Service]\nExecStart=\nExecStart=%s/boxkeeper anchor\n", boxtest.Programs(t))
	if err := os.WriteFile(filepath.Join(dropIn, "tested.conf"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		boxtest.Systemctl(t, "stop", anchorUnit)
		os.RemoveAll(dropIn)
	})
	boxtest.Systemctl(t, "daemon-reload")
	t.Cleanup(func() { exec.Command("systemctl", "reset-failed", anchorUnit).Run() })
}

// startAnchor starts the anchor unit and returns its process once controllers are enabled.
func startAnchor(t *testing.T) (pid string) {
	t.Helper()
	installUnits(t)
	boxtest.Systemctl(t, "start", anchorUnit)
	boxtest.Eventually(t, "the anchor has switched controllers on", func() bool {
		text, err := os.ReadFile(filepath.Join(anchorShare, "cgroup.subtree_control"))
		if err == nil && len(text) <= 1 && boxtest.UnitProperty(t, anchorUnit, "ActiveState") != "active" {
			t.Fatal(boxtest.Systemctl(t, "show", "-p", "Result,ExecMainStatus", anchorUnit))
		}
		return err == nil && len(text) > 1
	})
	return boxtest.UnitProperty(t, anchorUnit, "MainPID")
}

func writeGroup(t *testing.T, group, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(group, name), []byte(text), 0); err != nil {
		t.Fatal(err)
	}
}

// ignoresTerm starts a process that ignores SIGTERM, in a cgroup or in the test's own.
func ignoresTerm(t *testing.T, group string) (pid int, ended <-chan syscall.WaitStatus) {
	t.Helper()
	cmd := exec.Command("/bin/sh", "-c", `trap "" TERM; echo; exec sleep 1000`)
	if group != "" {
		dir, err := os.Open(group)
		if err != nil {
			t.Fatal(err)
		}
		defer dir.Close()
		cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd())}
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 1)); err != nil { // the trap is set
		t.Fatal(err)
	}
	status, done := make(chan syscall.WaitStatus, 1), make(chan struct{})
	go func() {
		cmd.Wait()
		status <- cmd.ProcessState.Sys().(syscall.WaitStatus)
		close(done)
	}()
	t.Cleanup(func() { cmd.Process.Kill(); <-done })
	return cmd.Process.Pid, status
}

func wantKilled(t *testing.T, ended <-chan syscall.WaitStatus) {
	t.Helper()
	if s := <-ended; !s.Signaled() || s.Signal() != syscall.SIGKILL {
		t.Errorf("the process has ended with %v, not by SIGKILL", s)
	}
}

func TestUnitsAreCleanForSystemd(t *testing.T) {
	requireSystemd(t)
	dir := t.TempDir()
	args := []string{"verify", "--man=no"} // man is not installed
	for _, name := range []string{anchorUnit, "box.slice"} {
		text, err := os.ReadFile(filepath.Join(unitDir, name))
		if err != nil {
			t.Fatal(err)
		}
		// Only the installed program is missing on this host.
		text = []byte(strings.ReplaceAll(string(text), "/usr/lib/boxd", boxtest.Programs(t)))
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			t.Fatal(err)
		}
		args = append(args, filepath.Join(dir, name))
	}
	if out, err := exec.Command("systemd-analyze", args...).CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("%v: out = %s, want no error and len(out) == 0", err, out)
	}
}

func TestAnchorTakesItsUnitIntoPossession(t *testing.T) {
	requireSystemd(t)
	pid := startAnchor(t)
	if got := boxtest.GroupFile(t, anchorShare, "anchor/cgroup.procs"); got != pid {
		t.Errorf("in the anchor's group are %q, want %s", got, pid)
	}
	on := strings.Fields(boxtest.GroupFile(t, anchorShare, "cgroup.subtree_control"))
	for _, name := range []string{"cpu", "io", "memory", "pids"} {
		if !slices.Contains(on, name) {
			t.Errorf("%s is not among the controllers that are on: on = %v, want on containing name", name, on)
		}
	}
	if got := boxtest.GroupFile(t, anchorShare, "pids.max"); got != "max" {
		t.Errorf(`pids.max of the unit is %s, want "max"`, got)
	}
	if got := boxtest.GroupFile(t, "/proc/"+pid, "oom_score_adj"); got != "-1000" {
		t.Errorf(`oom_score_adj of the anchor is %s, want "-1000"`, got)
	}
	slice := filepath.Dir(anchorShare)
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		t.Fatal(err)
	}
	most, total := groupNumber(t, slice, "memory.max"), float64(info.Totalram)*float64(info.Unit)
	if part := float64(most) / total; part < 0.79 || part > 0.81 {
		t.Errorf("memory.max of box.slice is %d of %.0f, not 80 %%", most, total)
	}
	if got := boxtest.GroupFile(t, slice, "cpu.weight"); got != "50" {
		t.Errorf(`cpu.weight of box.slice is %s, want "50"`, got)
	}
	if n := groupNumber(t, slice, "pids.max"); n == 0 {
		t.Errorf("pids.max of box.slice is %d, want n != 0", n)
	}
}

func groupNumber(t *testing.T, group, name string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(boxtest.GroupFile(t, group, name), 10, 64)
	if err != nil {
		t.Fatalf("%s/%s: %v", group, name, err)
	}
	return n
}

func TestBoxesBelowTheAnchorOutliveReloadAndEndWithIt(t *testing.T) {
	requireSystemd(t)
	anchor := startAnchor(t)
	box := filepath.Join(anchorShare, "box-byhand")
	work := filepath.Join(box, "work")
	limits := map[string]string{"memory.max": "67108864", "memory.high": "50331648", "pids.max": "20", "cpu.max": "30000 20000", "cpu.weight": "20"}
	if err := os.Mkdir(box, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range limits {
		writeGroup(t, box, name, text)
	}
	writeGroup(t, box, "cgroup.subtree_control", "+memory +pids")
	if err := os.Mkdir(work, 0o755); err != nil {
		t.Fatal(err)
	}
	pid, ended := ignoresTerm(t, work)
	for _, verb := range []string{"daemon-reload", "daemon-reexec", "daemon-reload"} {
		boxtest.Systemctl(t, verb)
		for name, want := range limits {
			if got := boxtest.GroupFile(t, box, name); got != want {
				t.Errorf("after %s %s is %q, want %s", verb, name, got, want)
			}
		}
		if got := boxtest.GroupFile(t, work, "cgroup.procs"); got != strconv.Itoa(pid) {
			t.Errorf("after %s the box has %q, want %d", verb, got, pid)
		}
		if got := boxtest.GroupFile(t, box, "cgroup.subtree_control"); got != "memory pids" {
			t.Errorf(`after %s controllers of the box are %q, want got == "memory pids"`, verb, got)
		}
		if got := boxtest.UnitProperty(t, anchorUnit, "MainPID"); got != anchor {
			t.Errorf("after %s the anchor is %s, want %s", verb, got, anchor)
		}
	}
	boxtest.Systemctl(t, "stop", anchorUnit)
	wantKilled(t, ended)
	if _, err := os.Stat(anchorShare); err == nil {
		t.Errorf("%s is still there", anchorShare)
	}
	if got := boxtest.UnitProperty(t, anchorUnit, "ActiveState"); got != "inactive" {
		t.Errorf("it has ended as %s", got)
	}
	boxtest.Systemctl(t, "start", anchorUnit) // nothing of its last run is in the way
	boxtest.Eventually(t, "the anchor starts again", func() bool {
		text, err := os.ReadFile(filepath.Join(anchorShare, "anchor/cgroup.procs"))
		return err == nil && len(text) > 1
	})
}

func TestAnchorRefusesAGroupThatIsNotItsOwn(t *testing.T) {
	requireSystemd(t)
	keeper := filepath.Join(boxtest.Programs(t), "boxkeeper")
	for _, tc := range []struct {
		name, want string
		args       []string
	}{
		{"not delegated", "is not delegated: systemctl start boxd-boxes.service", []string{keeper, "anchor"}},
		{"shared", "other processes are in", []string{"-p", "Delegate=yes", "/bin/sh", "-c", keeper + " anchor; exit $?"}},
		{"not writable", "make the anchor's group: ", []string{"-p", "Delegate=yes", "-p", "ProtectControlGroups=yes", keeper, "anchor"}},
	} {
		args := append([]string{"--quiet", "--wait", "--pipe", "--collect"}, tc.args...)
		out, err := exec.Command("systemd-run", args...).CombinedOutput()
		if err == nil || !strings.Contains(string(out), tc.want) {
			t.Errorf("%s: %v: %s, want %s", tc.name, err, out, tc.want)
		}
	}
}
