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
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

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

// The last thing a boxd that stops tells a box is to stay. It is not lost where PID 1 is late and hears of the next boxd
// before it has read that.
func TestTheLastRequestOfABoxdIsRead(t *testing.T) {
	d := boxtest.StartWith(t, "adopt_grace = \"0s\"", boxtest.Kept, boxtest.BestEffort, "[sessions]\nping = \"1s\"\n")
	s := d.NewSession(t, api.SessionRequest{ID: "s"})
	if err := syscall.Kill(int(s.PID), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	<-time.After(1500 * time.Millisecond) // it is asked for a sign of life, which it reads before what comes after
	d.Stop()
	next := exec.Command(filepath.Join(boxtest.Programs(t), "boxd"), "-config", d.Config)
	if err := next.Start(); err != nil {
		t.Fatal(err)
	}
	boxtest.Eventually(t, "the next boxd connects to the box", func() bool { return boxes(next.Process.Pid) > 0 })
	if err := next.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = next.Wait()
	if err := syscall.Kill(int(s.PID), syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	d.Restart()
	if now, err := d.Session(t.Context(), "s"); err != nil || now.PID != s.PID {
		t.Errorf("%v, its box of %d is that of %d", err, s.PID, now.PID)
	}
}

// boxes is how many boxes a boxd is connected with: it has a descriptor of PID 1 of each (pidfd_open(2)).
func boxes(pid int) (n int) {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0
	}
	for _, e := range entries {
		if to, err := os.Readlink(filepath.Join(dir, e.Name())); err == nil && to == "anon_inode:[pidfd]" {
			n++
		}
	}
	return n
}

// stopped has boxds stopped that take boxes over, after the end of the one that has made them.
func stopped(t *testing.T, d *boxtest.Daemon, end func(*boxtest.Daemon)) {
	t.Helper()
	pids := map[string]uint32{}
	for i := range 40 {
		id := fmt.Sprint("s", i)
		s := d.NewSession(t, api.SessionRequest{ID: id})
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

// A boxd that lacks descriptors takes no box for dead, or for nobody's, which it cannot look at.
func TestNoSessionIsLostByABoxdWithoutDescriptors(t *testing.T) {
	d := boxtest.Start(t, boxtest.Kept, "[profiles.default]\nwarm = 3\n")
	boxtest.Eventually(t, "boxes are ahead of need", func() bool {
		s, err := d.Status(t.Context())
		return err == nil && len(s.Warm) == 1 && s.Warm[0].Ready == 3
	})
	pids := map[string]uint32{}
	for i := range 6 { // some of which have a box that was made ahead, and whose key is another
		id := fmt.Sprint("s", i)
		s := d.NewSession(t, api.SessionRequest{ID: id})
		d.NewProcess(t, id, "p", &api.ProcessRequest{Argv: []string{"sleep", "1000"}})
		pids[id] = s.PID
	}
	d.Kill()
	failed := 0
	for n := 16; n < 80; n += 9 {
		if !servesWith(t, d, n) {
			failed++
		}
	}
	if failed == 0 {
		t.Error("no boxd has lacked descriptors")
	}
	d.Restart()
	for id, pid := range pids {
		if s, err := d.Session(t.Context(), id); err != nil || s.PID != pid {
			t.Errorf("%s: %v, its box of %d is that of %d", id, err, pid, s.PID)
		}
		if p, err := d.Process(t.Context(), id, "p", 0); err != nil || p.State != "running" || p.Starts != 1 {
			t.Errorf("%s: %v, its process is %+v", id, err, p)
		}
	}
}

// servesWith starts a boxd that may have so many descriptors, and ends it once it serves, if it ever does.
func servesWith(t *testing.T, d *boxtest.Daemon, descriptors int) (serves bool) {
	t.Helper()
	cmd := exec.Command("sh", "-c", `ulimit -n "$2"; exec "$0" -config "$1"`, filepath.Join(boxtest.Programs(t), "boxd"), d.Config, strconv.Itoa(descriptors))
	out, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if strings.Contains(lines.Text(), "boxd serves") {
			serves = true
			_ = cmd.Process.Signal(syscall.SIGTERM) // or it has ended, which Wait tells
		}
	}
	_ = cmd.Wait() // one that does not serve says so
	return serves
}

// What an earlier boxd has left and nobody can remove keeps no boxd from serving all others.
func TestABoxdStartsWhereSomethingCannotBeCleanedUp(t *testing.T) {
	d := start(t)
	s := d.NewSession(t, api.SessionRequest{ID: "s1"})
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
