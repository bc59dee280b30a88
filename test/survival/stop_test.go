// SPDX-License-Identifier: Apache-2.0

package survival_test

import (
	"bufio"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
)

// A boxd that is asked to end while it takes boxes over leaves them to the next one.
func TestNoSessionIsLostByAStopDuringTheTakeover(t *testing.T) {
	d := start(t)
	pids := map[string]uint32{}
	for i := range 40 {
		id := fmt.Sprint("s", i)
		s, _, err := d.Create(t.Context(), &api.SessionRequest{ID: id})
		if err != nil {
			t.Fatal(err)
		}
		pids[id] = s.PID
	}
	d.Kill()
	early := 0
	for range 10 {
		if taken := interrupted(t, d); taken < len(pids) {
			early++
		}
	}
	if early == 0 {
		t.Error("no boxd was asked to end before it had taken all over")
	}
	d.Restart()
	for id, pid := range pids {
		if s, err := d.Session(t.Context(), id); err != nil || s.PID != pid {
			t.Errorf("%s: %v, its box of %d is that of %d", id, err, pid, s.PID)
		}
	}
}

// interrupted starts a boxd, asks it to end when it has taken a box over, and counts those it has taken.
func interrupted(t *testing.T, d *boxtest.Daemon) (taken int) {
	t.Helper()
	cmd := exec.Command(filepath.Join(boxtest.Programs(t), "boxd"), "-config", d.Config)
	out, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	lines := bufio.NewScanner(io.TeeReader(out, &log))
	for lines.Scan() {
		if !strings.Contains(lines.Text(), "session taken over") {
			continue
		}
		if taken++; taken == 1 {
			_ = cmd.Process.Signal(syscall.SIGTERM) // or it has ended, which Wait tells
		}
	}
	_ = cmd.Wait() // one that did not come as far as to serve says so
	if taken == 0 {
		t.Fatalf("boxd has taken nothing over:\n%s", log.String())
	}
	return taken
}
