// SPDX-License-Identifier: Apache-2.0

package survival_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
)

// ownDisk is a separate filesystem, in a file: it can be frozen, vanish and come back.
type ownDisk struct {
	t          *testing.T
	dir, image string
}

func newDisk(t *testing.T) *ownDisk {
	t.Helper()
	boxtest.RequireRoot(t)
	dir := boxtest.TempDir(t)
	o := &ownDisk{t, filepath.Join(dir, "disk"), filepath.Join(dir, "image")}
	if err := os.Mkdir(o.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(o.image, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(o.image, 96<<20); err != nil {
		t.Fatal(err)
	}
	must(t, "mke2fs", "-qF", "-t", "ext4", o.image)
	attach(t, o.image, o.dir)
	t.Cleanup(func() { _ = unix.Unmount(o.dir, unix.MNT_DETACH) })
	return o
}

// ioctl(2) requests for a filesystem, from linux/fs.h and fs/ext4/ext4.h.
const (
	freezeFilesystem   = 0xc0045877 // FIFREEZE
	thawFilesystem     = 0xc0045878 // FITHAW
	shutdownFilesystem = 0x8004587d // EXT4_IOC_SHUTDOWN
	shutdownNoSync     = 2          // nothing more is written, as if the disk were gone
)

func (o *ownDisk) control(request uint, value int) {
	o.t.Helper()
	f, err := os.Open(o.dir)
	if err != nil {
		o.t.Fatal(err)
	}
	defer f.Close()
	if err := unix.IoctlSetPointerInt(int(f.Fd()), request, value); err != nil {
		o.t.Fatalf("ioctl %#x of %s: %v", request, o.dir, err)
	}
}

// stand blocks every write until the returned function is called, like an overloaded disk, or one with a loose cable.
func (o *ownDisk) stand() (goOn func()) {
	o.t.Helper()
	o.control(freezeFilesystem, 0)
	goOn = sync.OnceFunc(func() { o.control(thawFilesystem, 0) })
	o.t.Cleanup(goOn) // otherwise blocked writers could not be killed
	return goOn
}

// start starts a boxd whose state is on this disk.
func (o *ownDisk) start() *boxtest.Daemon {
	o.t.Helper()
	return boxtest.StartWith(o.t, fmt.Sprintf("state_dir = %q\n", filepath.Join(o.dir, "state")), boxtest.Kept, boxtest.BestEffort, "[host]\nkeep_free_disk = \"1MiB\"\n")
}

// fill creates sessions: a running one with a process, and some stopped ones with a file.
func (o *ownDisk) fill(d *boxtest.Daemon, stopped ...string) (running api.Session) {
	o.t.Helper()
	d.NewSession(o.t, api.SessionRequest{ID: "running"})
	d.NewProcess(o.t, "running", "p", boxtest.ShellProcess("echo begun; sleep 100000"))
	for _, id := range stopped {
		d.NewSession(o.t, api.SessionRequest{ID: id})
		d.Sh(o.t, id, "echo "+id+" > file")
		if _, err := d.StopSession(o.t.Context(), id); err != nil {
			o.t.Fatal(err)
		}
	}
	running, err := d.Session(o.t.Context(), "running")
	if err != nil {
		o.t.Fatal(err)
	}
	return running
}

// answers checks that boxd still reports what it knows without its disk.
func answers(t *testing.T, d *boxtest.Daemon, want api.Session, when string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if now, err := d.Session(ctx, "running"); err != nil || now.PID != want.PID || now.State != want.State {
		t.Errorf("%s the session is %+v, %v, want no error and now.PID == %v and now.State == %v",
			when, now, err, want.PID, want.State)
	}
	if p, err := d.Process(ctx, "running", "p", 0); err != nil || p.State != "running" || p.Starts != 1 {
		t.Errorf(`%s the process is %+v, %v, want no error and p.State == "running" and p.Starts == 1`, when, p, err)
	}
	if list, err := d.Sessions(ctx, true); err != nil || len(list) == 0 {
		t.Errorf("%s the list has %d sessions, %v", when, len(list), err)
	}
	if _, err := d.Status(ctx); err != nil {
		t.Errorf("%s the status: %v", when, err)
	}
}

// A disk that blocks writes for a while delays what has to be written, and nothing else. Pending requests are done once it
// continues; a boxd killed meanwhile has done each or not, and a retry shows which.
func TestADiskThatStandsStillLosesNothing(t *testing.T) {
	o := newDisk(t)
	d := o.start()
	running := o.fill(d, "begin", "change", "remove")
	for _, killed := range []bool{false, true} {
		goOn := o.stand()
		asked := map[string]func(context.Context) error{
			"make": func(ctx context.Context) error {
				_, _, err := d.CreateSession(ctx, &api.SessionRequest{ID: fmt.Sprint("made-", killed)})
				return err
			},
			"begin": func(ctx context.Context) error { _, err := d.StartSession(ctx, "begin"); return err },
			"change": func(ctx context.Context) error {
				_, err := d.ChangeSession(ctx, "change", &api.SessionChange{Labels: map[string]string{"is": "changed"}})
				return err
			},
			"remove": func(ctx context.Context) error { return gone(d.DeleteSession(ctx, "remove")) },
		}
		results := map[string]error{}
		var mu sync.Mutex
		var wg sync.WaitGroup
		for name, ask := range asked {
			wg.Go(func() {
				err := ask(t.Context())
				mu.Lock()
				defer mu.Unlock()
				results[name] = err
			})
		}
		boxtest.Eventually(t, "a thread of boxd waits for the disk", func() bool { return waits(d.PID()) })
		answers(t, d, running, "while the disk stands still")
		if killed {
			_ = unix.Kill(d.PID(), unix.SIGKILL)
		}
		goOn()
		wg.Wait()
		if killed {
			d.Kill()
			d.Restart()
			for name, ask := range asked { // retried, whether or not it was done
				results[name] = ask(t.Context())
			}
		}
		for name, err := range results {
			if err != nil {
				t.Errorf("killed %v: %s: %v", killed, name, err)
			}
		}
		answers(t, d, running, "when the disk goes on")
		if s, err := d.Session(t.Context(), "change"); err != nil || s.State != "stopped" || s.Labels["is"] != "changed" {
			t.Errorf(`killed %v: the session that was changed is %+v, %v, want no error and s.State == "stopped" and s.Labels["is"] == "changed"`,
				killed, s, err)
		}
		if _, err := d.Session(t.Context(), "remove"); gone(err) != nil || err == nil {
			t.Errorf("killed %v: the session that was removed: err = %v, want gone(err) == nil and an error",
				killed, err)
		}
		if got := d.Sh(t, "begin", "cat file"); got != "begin\n" {
			t.Errorf(`killed %v: the session that was started has %q, want got == "begin\n"`, killed, got)
		}
		for _, id := range []string{"begin", "change"} { // for the next round
			if err := d.DeleteSession(t.Context(), id); err != nil {
				t.Fatal(err)
			}
		}
		if err := d.DeleteSession(t.Context(), "running"); err != nil {
			t.Fatal(err)
		}
		if !killed {
			running = o.fill(d, "begin", "change", "remove")
		}
	}
	list, err := d.Sessions(t.Context(), true)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range list {
		if err := d.DeleteSession(t.Context(), s.ID); err != nil {
			t.Errorf("remove %s: %v", s.ID, err)
		}
	}
}

// waits reports whether a thread of a process is in uninterruptible sleep.
func waits(pid int) bool {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	for _, name := range threads {
		text, _ := os.ReadFile(name)
		if i := bytes.LastIndexByte(text, ')'); i > 0 && i+2 < len(text) && text[i+2] == 'D' {
			return true
		}
	}
	return false
}

// If its disk vanishes, boxd does nothing more that it could not record, and says so; it still reports what it knows. Once the
// disk is back and boxd restarted, stopped sessions exist.
func TestADiskThatVanishesLosesNothingThatWasStopped(t *testing.T) {
	o := newDisk(t)
	d := o.start()
	running := o.fill(d, "stopped")
	unix.Sync()
	o.control(shutdownFilesystem, shutdownNoSync)
	answers(t, d, running, "without its disk")
	if _, _, err := d.CreateSession(t.Context(), &api.SessionRequest{ID: "new"}); boxtest.StatusOf(err) < 500 {
		t.Errorf("without its disk a session is made: err = %v, want boxtest.StatusOf(err) >= 500", err)
	}
	if _, err := d.StartSession(t.Context(), "stopped"); boxtest.StatusOf(err) < 500 {
		t.Errorf("without its disk a session is started: err = %v, want boxtest.StatusOf(err) >= 500", err)
	}
	answers(t, d, running, "after requests without its disk")
	d.Kill()
	keeper := d.Keeper()
	_ = unix.Kill(keeper, unix.SIGKILL) // it has open files there
	boxtest.Eventually(t, "the keeper has ended", func() bool { return !boxtest.Lives(keeper) })
	if err := unix.Unmount(o.dir, unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	must(t, "cp", "--sparse=always", o.image, o.image+".back") // by the same file the kernel would find the dead disk, which boxes still have
	if err := os.Rename(o.image+".back", o.image); err != nil {
		t.Fatal(err)
	}
	must(t, "e2fsck", "-fy", o.image)
	attach(t, o.image, o.dir)
	d.Restart()
	if s, err := d.Session(t.Context(), "stopped"); err != nil || s.State != "stopped" {
		t.Errorf(`when the disk is back the session that was stopped is %+v, %v, want no error and s.State == "stopped"`,
			s, err)
	}
	if _, err := d.StartSession(t.Context(), "stopped"); err != nil {
		t.Fatal(err)
	}
	if got := d.Sh(t, "stopped", "cat file"); got != "stopped\n" {
		t.Errorf(`when the disk is back the file has %q, want "stopped\n"`, got)
	}
	for _, id := range []string{"stopped", "running"} {
		if err := d.DeleteSession(t.Context(), id); err != nil {
			t.Errorf("remove %s: %v", id, err)
		}
	}
}
