// SPDX-License-Identifier: Apache-2.0

package limits_test

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/limits"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
)

// systemd restarts, kills and stops boxd, and its keeper with it, which is in the same unit here: boxes are in the cgroup of the
// anchor and survive, with their limits.
func TestSystemdRestartsBoxdAndItsKeeper(t *testing.T) {
	d := start(t, boxtest.Kept)
	s := d.NewSession(t, api.SessionRequest{ID: "s1", Patch: limits.Patch{Memory: new(128 * quantity.MiB)}})
	d.Stop()
	if err := unix.Kill(d.Keeper(), unix.SIGKILL); err != nil { // the next one is of the unit
		t.Fatal(err)
	}
	const unit = "boxd-life.service"
	defer func() { // systemd forgets a transient unit that has been stopped
		if t.Failed() {
			text, _ := exec.CommandContext(t.Context(), "journalctl", "-o", "cat", "--unit="+unit).CombinedOutput()
			t.Logf("journal of the unit:\n%s", text)
		}
		_ = exec.CommandContext(t.Context(), "systemctl", "stop", unit).Run()
		d.Restart() // to be ended in order
	}()
	out, err := exec.CommandContext(t.Context(), "systemd-run", "-q", "--unit="+unit, "-p", "Type=notify", "-p", "Restart=always", "-p", "RestartSec=100ms", "-p", "StartLimitIntervalSec=0",
		filepath.Join(boxtest.Programs(t), "boxd"), "-config", d.Config).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	process := func() api.Process {
		t.Helper()
		var p api.Process
		boxtest.Eventually(t, "boxd answers", func() bool {
			var err error
			p, err = d.Process(t.Context(), "s1", "p", 0)
			return err == nil
		})
		return p
	}
	boxtest.Eventually(t, "boxd is up", func() bool { return d.Ready(t.Context()) == nil })
	script := "i=0; while :; do i=$((i+1)); echo $i; sleep 0.05; done"
	d.NewProcess(t, "s1", "p", &api.ProcessRequest{Command: &script})
	first := process()
	for _, how := range [][]string{{"restart", unit}, {"kill", "--signal=KILL", "--kill-whom=main", unit}, {"restart", unit}, {"kill", "--signal=KILL", unit}, {"restart", unit}} {
		before := process()
		boxtest.Systemctl(t, how...)
		boxtest.Eventually(t, "the process writes on", func() bool {
			p, err := d.Process(t.Context(), "s1", "p", 0)
			return err == nil && p.Output[0].Bytes > before.Output[0].Bytes+8
		})
		if p := process(); p.State != "running" || p.PID != first.PID || p.Starts != 1 {
			t.Errorf(`after %v: p = %+v, want p.State == "running" and p.PID == %v and p.Starts == 1`,
				how, p, first.PID)
		}
		now, err := d.Session(t.Context(), "s1")
		if err != nil || now.PID != s.PID || now.Group != s.Group {
			t.Errorf("after %v: now = %+v, err = %v, want no error and now.PID == %v and now.Group == %v",
				how, now, err, s.PID, s.Group)
		}
		if got := boxtest.GroupFile(t, s.Group, "work/memory.max"); got != "134217728" {
			t.Errorf(`after %v memory.max is %s, want got == "134217728"`, how, got)
		}
	}
	if _, err := d.ChangeSession(t.Context(), "s1", &api.SessionChange{Patch: limits.Patch{Memory: new(64 * quantity.MiB)}}); err != nil || boxtest.GroupFile(t, s.Group, "work/memory.max") != "67108864" {
		t.Errorf(`%v: memory.max is %s, want no error and boxtest.GroupFile(t, s.Group, "work/memory.max") == "67108864"`,
			err, boxtest.GroupFile(t, s.Group, "work/memory.max"))
	}
	stopped, err := d.StopProcess(t.Context(), "s1", "p")
	if err != nil || stopped.State != "ended" {
		t.Errorf(`stopped = %+v, err = %v, want no error and stopped.State == "ended"`, stopped, err)
	}
	logs, err := d.Process(t.Context(), "s1", "p", 0)
	if err != nil || logs.Result == nil || !strings.HasPrefix(logs.Result.Status, "signaled") {
		t.Errorf(`logs = %+v, err = %v, want no error and logs.Result != nil and logs.Result.Status starting with "signaled"`,
			logs, err)
	}
	if err := d.DeleteSession(t.Context(), "s1"); err != nil {
		t.Error(err)
	}
}
