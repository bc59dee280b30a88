// SPDX-License-Identifier: Apache-2.0

package sessions_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
)

// onFilesystem starts a boxd whose state directory is on a new filesystem of the given kind.
func onFilesystem(t *testing.T, kind string, configuration ...string) *boxtest.Daemon {
	t.Helper()
	state := filepath.Join(boxtest.NewFilesystem(t, kind), "state")
	return boxtest.StartWith(t, append([]string{fmt.Sprintf("state_dir = %q\n", state), boxtest.BestEffort}, configuration...)...)
}

// snapshots returns the names of the snapshots of a session.
func snapshots(t *testing.T, d *boxtest.Daemon, id string) string {
	t.Helper()
	list, err := d.Snapshots(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, s := range list {
		names = append(names, s.Name)
	}
	return strings.Join(names, " ")
}

func snapshot(t *testing.T, d *boxtest.Daemon, id, name string) api.Snapshot {
	t.Helper()
	s, err := d.CreateSnapshot(t.Context(), id, name)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// nothingOfSnapshots fails the test if any file of a snapshot is left on disk.
func nothingOfSnapshots(t *testing.T, d *boxtest.Daemon) {
	t.Helper()
	left, err := filepath.Glob(filepath.Join(d.State, "snapshots", "*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left: left = %v, err = %v, want no error and len(left) == 0", left, err)
	}
}

// A stopped session can be restored to a snapshot of its workspace, root and home any number of times, and continues from there.
func TestAStoppedSessionGoesBackToASnapshot(t *testing.T) {
	for _, kind := range []string{"xfs", "btrfs"} {
		t.Run(kind, func(t *testing.T) {
			d := onFilesystem(t, kind, boxtest.Kept)
			for name, req := range map[string]api.SessionRequest{
				"plain":          {},
				"writable, home": {ReadOnlyRoot: new(false), HomeOnDisk: new(true)},
			} {
				t.Run(name, func(t *testing.T) {
					req.ID = "s"
					d.NewSession(t, req)
					all := "cd /workspace; cat a b 2>/dev/null; stat -c '%a %U %h' a; readlink out; getfattr -d --only-values a 2>/dev/null"
					write := "cd /workspace; echo one > a; ln a twin; chmod 640 a; ln -s /etc/passwd out"
					change := "cd /workspace; rm -f a out; echo two > a; echo b > b"
					if req.HomeOnDisk != nil {
						all += "; cat $HOME/f /usr/local/bin/mine /etc/mine; ls /usr/bin/env"
						write += "; echo home > $HOME/f; echo mine > /usr/local/bin/mine; echo etc > /etc/mine; rm /usr/bin/env"
						change += "; rm -f $HOME/f /etc/mine; echo other > /usr/local/bin/mine; ln -sf /bin/true /usr/bin/env"
					}
					d.Sh(t, "s", write)
					all += "; true"
					was := d.Sh(t, "s", all)
					stop(t, d, "s")
					one := snapshot(t, d, "s", "one")
					if one.Name != "one" || time.Since(one.CreatedAt).Abs() > time.Hour || one.Size == 0 || one.Size > 16*quantity.MiB || one.Files < 3 {
						t.Errorf(`it is %+v, want one.Name == "one" and time.Since(one.CreatedAt).Abs() <= time.Hour and one.Size != 0 and one.Size <= 16 * quantity.MiB and one.Files >= 3`,
							one)
					}
					startAgain(t, d, "s")
					d.Sh(t, "s", change)
					is := d.Sh(t, "s", all)
					if is == was {
						t.Fatalf("nothing has changed: is = %q, want is != %q", is, was)
					}
					stop(t, d, "s")
					snapshot(t, d, "s", "two")
					d.Stop() // snapshots do not depend on the boxd that took them
					d.Restart()
					for _, back := range []struct{ name, want string }{{"one", was}, {"two", is}, {"one", was}} {
						if s, err := d.RestoreSnapshot(t.Context(), "s", back.name); err != nil || s.State != "stopped" || s.ID != "s" {
							t.Fatalf(`s = %+v, err = %v, want no error and s.State == "stopped" and s.ID == "s"`,
								s, err)
						}
						startAgain(t, d, "s")
						if got := d.Sh(t, "s", all); got != back.want {
							t.Errorf("back at %s: %q, want %q", back.name, got, back.want)
						}
						d.Sh(t, "s", change)
						stop(t, d, "s")
					}
					if got := snapshots(t, d, "s"); got != "one two" {
						t.Errorf(`there are %s, want "one two"`, got)
					}
					if err := d.DeleteSession(t.Context(), "s"); err != nil {
						t.Fatal(err)
					}
					nothingOfSnapshots(t, d)
				})
			}
		})
	}
}

// Snapshots are taken and restored only of stopped sessions, are limited in number, and have unique names; a refusal says what to do.
func TestSnapshotsAreRefusedWithWhatToDo(t *testing.T) {
	d := onFilesystem(t, "xfs", "[sessions]\nmax_snapshots = 2\n")
	d.NewSession(t, api.SessionRequest{ID: "s"})
	running := func(what string, err error) {
		t.Helper()
		if e := boxtest.Refused(t, err, http.StatusConflict, ""); !strings.Contains(e.Hint, "boxctl stop") {
			t.Errorf(`%s of a session that runs: e = %+v, want e.Hint containing "boxctl stop"`, what, e)
		}
	}
	_, err := d.CreateSnapshot(t.Context(), "s", "a")
	running("a snapshot", err)
	stop(t, d, "s")
	for _, name := range []string{"", "..", "a/b", ".a", "-a", "a b", strings.Repeat("a", 65)} {
		_, err := d.CreateSnapshot(t.Context(), "s", name)
		boxtest.Refused(t, err, http.StatusBadRequest, "name")
	}
	snapshot(t, d, "s", "a")
	_, err = d.CreateSnapshot(t.Context(), "s", "a")
	boxtest.Refused(t, err, http.StatusConflict, "name")
	snapshot(t, d, "s", "b")
	_, err = d.CreateSnapshot(t.Context(), "s", "c")
	if e := boxtest.Refused(t, err, http.StatusTooManyRequests, ""); e.Denial == nil || e.Denial.Rule != "sessions.max_snapshots" {
		t.Errorf(`one too many: e = %+v, want e.Denial != nil and e.Denial.Rule == "sessions.max_snapshots"`, e)
	}
	_, err = d.RestoreSnapshot(t.Context(), "s", "none")
	boxtest.Refused(t, err, http.StatusNotFound, "")
	err = d.DeleteSnapshot(t.Context(), "s", "none")
	boxtest.Refused(t, err, http.StatusNotFound, "")
	startAgain(t, d, "s")
	_, err = d.RestoreSnapshot(t.Context(), "s", "a")
	running("a restore", err)
	if err := d.DeleteSnapshot(t.Context(), "s", "a"); err != nil {
		t.Errorf("while it runs: %v", err)
	}
	if got := snapshots(t, d, "s"); got != "b" {
		t.Errorf(`there are %s, want "b"`, got)
	}
	_, err = d.CreateWorkspace(t.Context(), &api.WorkspaceRequest{Name: "shared"})
	if err != nil {
		t.Fatal(err)
	}
	d.NewSession(t, api.SessionRequest{ID: "shared", Workspace: "shared"})
	stop(t, d, "shared")
	_, err = d.CreateSnapshot(t.Context(), "shared", "a")
	boxtest.Refused(t, err, http.StatusConflict, "")
	if _, err := d.KeepWorkspace(t.Context(), "s", "kept"); err != nil {
		t.Fatal(err)
	}
	nothingOfSnapshots(t, d)
}

// On a filesystem without shared blocks (reflinks) a snapshot is refused with the reason, and leaves nothing behind.
func TestASnapshotOnAnotherFilesystemIsRefused(t *testing.T) {
	d := onFilesystem(t, "ext4")
	d.NewSession(t, api.SessionRequest{ID: "s"})
	d.Sh(t, "s", "echo one > /workspace/a")
	stop(t, d, "s")
	_, err := d.CreateSnapshot(t.Context(), "s", "a")
	if e := boxtest.Refused(t, err, http.StatusNotImplemented, ""); !strings.Contains(e.Detail, "ext4") || !strings.Contains(e.Detail, "reflink") {
		t.Errorf(`e = %+v, want e.Detail containing "ext4" and e.Detail containing "reflink"`, e)
	}
	if got := snapshots(t, d, "s"); got != "" {
		t.Errorf(`there are %s, want ""`, got)
	}
	nothingOfSnapshots(t, d)
	startAgain(t, d, "s")
	if got := d.Sh(t, "s", "cat /workspace/a"); got != "one\n" {
		t.Errorf(`it has %q, want "one\n"`, got)
	}
}

// A keeper that is killed while it takes a snapshot leaves nothing partial; the next keeper takes the snapshot.
func TestASnapshotOutlivesItsKeeper(t *testing.T) {
	d := onFilesystem(t, "xfs", boxtest.Lasting)
	d.NewSession(t, api.SessionRequest{ID: "s"})
	d.Sh(t, "s", "cd /workspace; for i in $(seq 100); do mkdir $i; (cd $i; seq 100 | xargs touch); done")
	stop(t, d, "s")
	partial := func() bool {
		found, _ := filepath.Glob(filepath.Join(d.State, "snapshots", "*", ".partial-*", "1*"))
		return len(found) > 0
	}
	keeper := d.Keeper()
	done := make(chan error, 1)
	go func() {
		_, err := d.CreateSnapshot(t.Context(), "s", "a")
		done <- err
	}()
	boxtest.Eventually(t, "the snapshot is being taken", func() bool { return partial() || len(done) > 0 })
	if err := syscall.Kill(keeper, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if got := snapshots(t, d, "s"); got != "a" || partial() {
		t.Errorf(`there are %q, want got == "a" and not partial()`, got)
	}
	d.Sh(t, startAgain(t, d, "s").ID, "rm -r /workspace/*")
	stop(t, d, "s")
	if _, err := d.RestoreSnapshot(t.Context(), "s", "a"); err != nil {
		t.Fatal(err)
	}
	startAgain(t, d, "s")
	if got := d.Sh(t, "s", "find /workspace -type f | wc -l"); got != "10000\n" {
		t.Errorf("it has %q files", got)
	}
}

// Concurrent snapshots, restores, starts, stops and removals leave the session in the state that one of them produced.
func TestSnapshotsAndStartsAtOnce(t *testing.T) {
	d := onFilesystem(t, "xfs")
	for range 3 {
		d.NewSession(t, api.SessionRequest{ID: "s"})
		d.Sh(t, "s", "cd /workspace; echo one > a; mkdir many; cd many; seq 2000 | xargs touch") // so that they take a while
		stop(t, d, "s")
		snapshot(t, d, "s", "one")
		var wg sync.WaitGroup
		for i := range 4 {
			for what, act := range map[string]func() error{
				"snapshot": func() error { _, err := d.CreateSnapshot(t.Context(), "s", fmt.Sprint("n", i)); return err },
				"restore":  func() error { _, err := d.RestoreSnapshot(t.Context(), "s", "one"); return err },
				"remove":   func() error { return d.DeleteSnapshot(t.Context(), "s", fmt.Sprint("n", i)) },
				"start":    func() error { _, err := d.StartSession(t.Context(), "s"); return err },
				"stop":     func() error { _, err := d.StopSession(t.Context(), "s"); return err },
			} {
				wg.Go(func() {
					status := boxtest.StatusOf(act())
					if status != 0 && status != http.StatusConflict && status != http.StatusNotFound {
						t.Errorf("%s: status %d", what, status)
					}
				})
			}
		}
		wg.Wait()
		startAgain(t, d, "s")
		if got := d.Sh(t, "s", "cat /workspace/a"); got != "one\n" {
			t.Errorf(`it has %q, want "one\n"`, got)
		}
		stop(t, d, "s")
		wg.Go(func() { _, _ = d.CreateSnapshot(t.Context(), "s", "last") })
		wg.Go(func() { _, _ = d.RestoreSnapshot(t.Context(), "s", "one") })
		if err := d.DeleteSession(t.Context(), "s"); err != nil {
			t.Error(err)
		}
		wg.Wait()
		nothingOfSnapshots(t, d)
		if left, err := os.ReadDir(filepath.Join(d.State, "workspaces")); err != nil || len(left) > 0 {
			t.Errorf("workspaces left: left = %v, err = %v, want no error and len(left) == 0", left, err)
		}
	}
}
