// SPDX-License-Identifier: Apache-2.0

package survival_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/internal/hashchain"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

// victims are other processes to kill, besides boxd and its keeper, with what is known about them.
type victims struct {
	t      *testing.T
	killed map[string]int
	made   int
}

// kill kills one at random. It reports what it finds wrong.
func (v *victims) kill(d *boxtest.Daemon) {
	switch n := rand.IntN(10); {
	case n < 3:
		v.killed["boxd"]++
		d.Kill()
		d.Restart()
	case n < 5:
		v.killed["the keeper"]++
		_ = unix.Kill(d.Keeper(), unix.SIGKILL) // it may just be starting
	case n < 6:
		for _, pid := range d.Zygotes() {
			v.killed["a zygote"]++
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	case n < 7:
		v.killed["boxd and its keeper"]++
		keeper := d.Keeper()
		d.Kill()
		_ = unix.Kill(keeper, unix.SIGKILL)
		d.Restart()
	case n < 8:
		v.killed["a client"]++
		v.client(d)
	default:
		v.killed["PID 1 of a box"]++
		v.box(d)
	}
}

// box kills PID 1 of a box of its own: that session is lost and says so, its files are removed, and a new session can have its
// name at once.
func (v *victims) box(d *boxtest.Daemon) {
	v.t.Helper()
	v.made++
	id := fmt.Sprint("victim-", v.made)
	s := d.NewSession(v.t, api.SessionRequest{ID: id})
	d.NewProcess(v.t, id, "p", &api.ProcessRequest{Argv: []string{"sleep", "100000"}})
	if err := unix.Kill(int(s.PID), unix.SIGKILL); err != nil {
		v.t.Fatal(err)
	}
	boxtest.Eventually(v.t, "boxd has seen that a box is dead", func() bool {
		_, err := d.Session(v.t.Context(), id)
		return errors.Is(err, client.NotFound)
	})
	again := d.NewSession(v.t, api.SessionRequest{ID: id})
	if again.PID == s.PID {
		v.t.Errorf("%s: the box of %d is dead", id, s.PID)
	}
	if got := d.Sh(v.t, id, "ls -A /workspace; echo here"); got != "here\n" {
		v.t.Errorf(`%s: the new box has %q, want got == "here\n"`, id, got)
	}
	if err := d.DeleteSession(v.t.Context(), id); err != nil {
		v.t.Errorf("%s: %v", id, err)
	}
}

// client kills boxctl while its program runs in a box of its own: the program ends, and the box goes on.
func (v *victims) client(d *boxtest.Daemon) {
	v.t.Helper()
	v.made++
	id := fmt.Sprint("client-", v.made)
	d.NewSession(v.t, api.SessionRequest{ID: id})
	cmd := d.Boxctl(v.t, "exec", "-c", "touch /workspace/runs; trap '' TERM HUP INT PIPE; sleep 100000", id)
	if err := cmd.Start(); err != nil {
		v.t.Fatal(err)
	}
	boxtest.Eventually(v.t, "the program of boxctl runs", func() bool { return d.Sh(v.t, id, "ls /workspace") == "runs\n" })
	if err := cmd.Process.Kill(); err != nil {
		v.t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed above
	boxtest.Eventually(v.t, "the program has ended with boxctl", func() bool {
		s, err := d.Session(v.t.Context(), id)
		return err == nil && s.Running == 0
	})
	if got := d.Sh(v.t, id, "ls /workspace"); got != "runs\n" {
		v.t.Errorf(`%s has %q, want got == "runs\n"`, id, got)
	}
	if err := d.DeleteSession(v.t.Context(), id); err != nil {
		v.t.Errorf("%s: %v", id, err)
	}
}

// Processes are killed in any order, under load of every kind: no byte of a stream is lost or duplicated, no command runs twice, no
// session is lost except those whose PID 1 was killed, the audit log is intact, and nothing is left.
func TestNothingIsLostWhateverIsKilled(t *testing.T) {
	v := &victims{t: t, killed: map[string]int{}}
	times := 8
	if os.Getenv("SURVIVAL_KILLS") != "" {
		times = kills()
	}
	var audit string
	under(t, times, func(d *boxtest.Daemon) {
		audit = filepath.Join(d.State, "audit")
		v.kill(d)
	})
	report, err := hashchain.Verify(os.DirFS(audit), nil)
	if err != nil || len(report.Problems) > 0 || report.Lost > 0 || report.First != 1 {
		t.Errorf("the audit log: err = %v, report = %+v, want no error and len(report.Problems) == 0 and report.Lost <= 0 and report.First == 1",
			err, report)
	}
	t.Logf("killed: %v; %d records of the audit log", v.killed, report.Records)
}

// A full disk of boxd, or one that is read-only when boxd starts, fails what needs it, with an error, and loses nothing that
// existed: once there is space again, everything works as before.
func TestNothingIsLostWhenTheDiskOfBoxdFails(t *testing.T) {
	disk := boxtest.TempDir(t)
	if err := unix.Mount("tmpfs", disk, "tmpfs", 0, "size=64m,nr_inodes=20000,mode=755"); err != nil {
		boxtest.Missing(t, "mount: "+err.Error())
	}
	t.Cleanup(func() { _ = unix.Unmount(disk, unix.MNT_DETACH) })
	d := boxtest.StartWith(t, fmt.Sprintf("state_dir = %q\n", filepath.Join(disk, "state")), boxtest.Kept, boxtest.BestEffort, "[host]\nkeep_free_disk = \"1MiB\"\n")
	d.NewSession(t, api.SessionRequest{ID: "s"})
	d.Sh(t, "s", "echo kept > file")
	d.NewProcess(t, "s", "p", boxtest.ShellProcess("echo begun; sleep 100000"))
	s, err := d.Session(t.Context(), "s")
	if err != nil {
		t.Fatal(err)
	}
	whole := func(when string) {
		t.Helper()
		now, err := d.Session(t.Context(), "s")
		if err != nil || now.PID != s.PID {
			t.Fatalf("%s: the session is of %d, was of %d: err = %v, want no error and now.PID == s.PID",
				when, now.PID, s.PID, err)
		}
		if p, err := d.Process(t.Context(), "s", "p", 0); err != nil || p.State != "running" || p.Starts != 1 {
			t.Errorf(`%s: the process is %+v, %v, want no error and p.State == "running" and p.Starts == 1`,
				when, p, err)
		}
		if got := d.Sh(t, "s", "cat file"); got != "kept\n" {
			t.Errorf(`%s: the file has %q, want got == "kept\n"`, when, got)
		}
	}
	filler := filepath.Join(disk, "filler")
	if err := fillUp(filler); err != nil {
		t.Fatal(err)
	}
	refused := false
	for i := 0; i < 50 && !refused; i++ { // what still fits succeeds
		_, _, err := d.CreateSession(t.Context(), &api.SessionRequest{ID: fmt.Sprint("full-", i)})
		if refused = err != nil; refused && boxtest.StatusOf(err) < 500 {
			t.Errorf("a session is refused with %v", err)
		}
	}
	if !refused {
		t.Error("a session was created on a full disk")
	}
	if now, err := d.Session(t.Context(), "s"); err != nil || now.PID != s.PID {
		t.Errorf("on a disk that is full the session is %+v, %v, want no error and now.PID == %v", now, err, s.PID)
	}
	d.Kill() // while it is full
	d.Restart()
	if now, err := d.Session(t.Context(), "s"); err != nil || now.PID != s.PID {
		t.Errorf("after a kill on a disk that is full the session is %+v, %v, want no error and now.PID == %v",
			now, err, s.PID)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	whole("after a disk that was full")
	list, err := d.Sessions(t.Context(), true)
	if err != nil {
		t.Fatal(err)
	}
	for _, made := range list {
		if made.ID != "s" {
			if err := d.DeleteSession(t.Context(), made.ID); err != nil {
				t.Errorf("remove %s: %v", made.ID, err)
			}
		}
	}
	keeper := d.Keeper() // it has a file of the disk open
	d.Kill()
	_ = unix.Kill(keeper, unix.SIGKILL)
	boxtest.Eventually(t, "the keeper has ended", func() bool { return !boxtest.Lives(keeper) })
	// Processes that the keeper has just forked have its descriptors until they exec, so the mount may still be open for writing,
	// mount(2): EBUSY.
	boxtest.Eventually(t, "the disk is read-only", func() bool {
		err := unix.Mount("", disk, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, "")
		if err != nil && !errors.Is(err, unix.EBUSY) {
			t.Fatal(err)
		}
		return err == nil
	})
	out, err := exec.CommandContext(t.Context(), filepath.Join(boxtest.Programs(t), "boxd"), "-config", d.Config).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "read-only file system") || !strings.Contains(string(out), disk) {
		t.Errorf("on a read-only disk boxd fails with %v:\n%s", err, out)
	}
	if err := unix.Mount("", disk, "", unix.MS_REMOUNT|unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	d.Restart()
	whole("after a disk that was read-only")
	if err := d.DeleteSession(t.Context(), "s"); err != nil {
		t.Error(err)
	}
}

// fillUp fills all free space with a file.
func fillUp(path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	block := make([]byte, 64<<10)
	for len(block) > 0 {
		switch _, err := f.Write(block); {
		case errors.Is(err, unix.ENOSPC):
			block = block[:len(block)/2]
		case err != nil:
			return err
		}
	}
	return nil
}
