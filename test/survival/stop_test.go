// SPDX-License-Identifier: Apache-2.0

package survival_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/relay/api"
)

// A boxd that is asked to end while it takes boxes over leaves them to the next one.
func TestNoSessionIsLostByAStopDuringTheTakeover(t *testing.T) {
	stopped(t, start(t), (*boxtest.Daemon).Kill)
}

// So it does where boxes end with a boxd that is killed: the one before has told them to stay.
func TestNoSessionIsLostByAStopDuringTheTakeoverWithoutAGrace(t *testing.T) {
	stopped(t, boxtest.StartWith(t, "adopt_grace = \"0s\"", boxtest.Kept, boxtest.BestEffort), (*boxtest.Daemon).Stop)
}

// stopped has boxds stopped that take boxes over, after the end of the one that has made them.
func stopped(t *testing.T, d *boxtest.Daemon, end func(*boxtest.Daemon)) {
	t.Helper()
	pids := map[string]uint32{}
	for i := range 40 {
		id := fmt.Sprint("s", i)
		s, _, err := d.Create(t.Context(), &api.SessionRequest{ID: id})
		if err != nil {
			t.Fatal(err)
		}
		pids[id] = s.PID
	}
	end(d)
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

// What an earlier boxd has left and nobody can remove keeps no boxd from serving all others.
func TestABoxdStartsWhereSomethingCannotBeCleanedUp(t *testing.T) {
	d := start(t)
	s, _, err := d.Create(t.Context(), &api.SessionRequest{ID: "s1"})
	if err != nil {
		t.Fatal(err)
	}
	d.Kill()
	left := filepath.Join(d.State, "workspaces", strings.Repeat("0", isolation.KeyLen))
	busy := filepath.Join(left, "busy")
	if err := os.MkdirAll(busy, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("busy", busy, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	free := sync.OnceFunc(func() {
		if err := unix.Unmount(busy, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	defer free()
	d.Restart()
	if now, err := d.Session(t.Context(), "s1"); err != nil || now.PID != s.PID {
		t.Errorf("the box of %d is that of %d, %v", s.PID, now.PID, err)
	}
	if _, err := os.Stat(busy); err != nil {
		t.Error(err) // or the test has shown nothing
	}
	d.Kill()
	free()
	d.Restart()
	if _, err := os.Stat(left); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the next boxd has not removed it: %v", err)
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
