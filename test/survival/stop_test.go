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

// A boxd that is told to exit while it adopts boxes leaves them to the next one.
func TestNoSessionIsLostByAStopDuringTheTakeover(t *testing.T) {
	stopped(t, start(t), (*boxtest.Daemon).Kill)
}

// So it does with adopt_grace = 0, where boxes end with a killed boxd: the previous boxd has told them to stay.
func TestNoSessionIsLostByAStopDuringTheTakeoverWithoutAGrace(t *testing.T) {
	stopped(t, boxtest.StartWith(t, "adopt_grace = \"0s\"", boxtest.Kept, boxtest.BestEffort), (*boxtest.Daemon).Stop)
}

// The last request of a boxd that shuts down tells a box to stay. It is not lost if PID 1 is late and sees the next boxd's
// connection before it has read that request.
func TestTheLastRequestOfABoxdIsRead(t *testing.T) {
	d := boxtest.StartWith(t, "adopt_grace = \"0s\"", boxtest.Kept, boxtest.BestEffort, "[sessions]\nping = \"1s\"\nunhealthy = \"keep\"\n") // the box does not answer for as long as a stop of boxd takes
	s := d.NewSession(t, api.SessionRequest{ID: "s"})
	if err := syscall.Kill(int(s.PID), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	<-time.After(1500 * time.Millisecond) // meanwhile it gets a ping, which it reads first
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

// boxes returns how many boxes a boxd is connected to: it has a pidfd of PID 1 of each (pidfd_open(2)).
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

// stopped starts boxds that are told to exit while they adopt boxes, after the end of the boxd that created them.
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
	for i := 0; i < 10 || early == 0 && i < 100; i++ { // on a busy host the signal may come when it has taken all over
		if taken := interrupted(t, d); taken < len(pids) {
			early++
		}
	}
	if early == 0 {
		t.Error("no boxd was stopped before it had restored all sessions")
	}
	d.Restart()
	for id, pid := range pids {
		if s, err := d.Session(t.Context(), id); err != nil || s.PID != pid {
			t.Errorf("%s: %v, its box of %d is that of %d", id, err, pid, s.PID)
		}
	}
}

// A boxd without descriptors treats no box as dead, or as unknown, because it cannot inspect it.
func TestNoSessionIsLostByABoxdWithoutDescriptors(t *testing.T) {
	d := boxtest.Start(t, boxtest.Kept, "[profiles.default]\nwarm = 3\n")
	boxtest.Eventually(t, "three preforked boxes are ready", func() bool {
		s, err := d.Status(t.Context())
		return err == nil && len(s.Warm) == 1 && s.Warm[0].Ready == 3
	})
	pids := map[string]uint32{}
	for i := range 6 { // some get a preforked box, which has another key
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
		t.Error("no boxd ran out of descriptors")
	}
	d.Restart()
	for id, pid := range pids {
		if s, err := d.Session(t.Context(), id); err != nil || s.PID != pid {
			t.Errorf("%s: %v, its box of %d is that of %d", id, err, pid, s.PID)
		}
		if p, err := d.Process(t.Context(), id, "p", 0); err != nil || p.State != "running" || p.Starts != 1 {
			t.Errorf(`%s: %v, its process is %+v, want no error and p.State == "running" and p.Starts == 1`, id, err, p)
		}
	}
}

// servesWith starts a boxd with a limit of descriptors, and stops it once it serves, if it ever does.
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
			_ = cmd.Process.Signal(syscall.SIGTERM) // unless it has exited, which Wait reports
		}
	}
	_ = cmd.Wait() // one that does not serve exits with an error
	return serves
}

// Leftovers of an earlier boxd that cannot be removed do not prevent boxd from serving everything else.
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
	removed, was := filepath.Join(d.State, "removed"), busy
	boxtest.Eventually(t, "the busy directory is renamed", func() bool { // otherwise the test proves nothing
		moved, err := filepath.Glob(filepath.Join(removed, "*", "busy"))
		if err == nil && len(moved) == 1 {
			busy = moved[0]
		}
		return busy != was
	})
	free()
	if err := d.DeleteSession(t.Context(), "s1"); err != nil { // a later removal
		t.Fatal(err)
	}
	boxtest.Eventually(t, "the busy directory is removed", func() bool {
		list, err := os.ReadDir(removed)
		return err == nil && len(list) == 0
	})
	if _, err := os.Stat(left); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the busy directory is left: err = %v, want err is fs.ErrNotExist", err)
	}
}

// interrupted starts a boxd, tells it to exit after it has adopted a box, and counts the boxes it has adopted.
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
			_ = cmd.Process.Signal(syscall.SIGTERM) // unless it has exited, which Wait reports
		}
	}
	_ = cmd.Wait() // one that was not serving yet exits with an error
	if taken == 0 {
		t.Fatalf("boxd has restored nothing:\n%s", log.String())
	}
	return taken
}
