// SPDX-License-Identifier: Apache-2.0

package sessions_test

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
)

// descent creates nested directories, more levels than the keeper may have descriptors.
const descent = `p=$(printf 'a/%.0s' $(seq 600)); mkdir -p $p && cd -P $p && mkdir -p $p`

// immutable is FS_IMMUTABLE_FL (ioctl_iflags(2)).
const immutable = 0x10

// fewFiles gives the keeper a low limit of descriptors.
func fewFiles(t *testing.T, d *boxtest.Daemon) {
	t.Helper()
	if err := unix.Prlimit(d.Keeper(), unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 400, Max: 400}, nil); err != nil {
		t.Fatal(err)
	}
}

// However deep a box nests its directories, they are removed when it ends, by the next boxd, and with a named workspace.
func TestDeepWorkspacesAreRemoved(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, boxtest.Kept)
	d.Warm()
	before := d.Look()
	fewFiles(t, d)
	space(t, d, "deep")
	d.NewSession(t, api.SessionRequest{ID: "ends"})
	lost := d.NewSession(t, api.SessionRequest{ID: "lost"})
	d.NewSession(t, api.SessionRequest{ID: "shares", Workspace: "deep"})
	for _, id := range []string{"ends", "lost", "shares"} {
		d.Sh(t, id, descent)
	}
	for _, id := range []string{"ends", "shares"} {
		if err := d.DeleteSession(t.Context(), id); err != nil {
			t.Errorf("%s: %v", id, err)
		}
	}
	if err := d.DeleteWorkspace(t.Context(), "deep"); err != nil {
		t.Error(err)
	}
	d.Kill()
	kill(t, int(lost.PID))
	d.Restart()
	if list := sessions(t, d); len(list) > 0 {
		t.Errorf("list = %+v, want len(list) == 0", list)
	}
	d.NothingLeft(before)
}

// Files of a session that cannot be removed do not prevent boxd from starting, and the next boxd tries again.
func TestWhatCannotBeRemovedIsTriedAgain(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, boxtest.Kept)
	d.Warm()
	lost := d.NewSession(t, api.SessionRequest{ID: "lost"})
	d.NewSession(t, api.SessionRequest{ID: "good"})
	d.Sh(t, "lost", "mkdir d; touch d/stays")
	found, err := filepath.Glob(filepath.Join(d.State, "workspaces", "*", "d"))
	if err != nil || len(found) != 1 {
		t.Fatalf("found = %v, err = %v, want no error and len(found) == 1", found, err)
	}
	dir, err := os.Open(found[0])
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	if err := unix.IoctlSetPointerInt(int(dir.Fd()), unix.FS_IOC_SETFLAGS, immutable); err != nil {
		boxtest.Missing(t, "a filesystem with files that do not change: "+err.Error())
	}
	t.Cleanup(func() { _ = unix.IoctlSetPointerInt(int(dir.Fd()), unix.FS_IOC_SETFLAGS, 0) })
	d.Kill()
	kill(t, int(lost.PID))
	d.Restart()
	if list := sessions(t, d); len(list) != 1 || list[0] != "good" {
		t.Errorf(`list = %+v, want len(list) == 1 and list[0] == "good"`, list)
	}
	if err := unix.IoctlSetPointerInt(int(dir.Fd()), unix.FS_IOC_SETFLAGS, 0); err != nil {
		t.Fatal(err)
	}
	d.Stop()
	d.Restart() // which tries at startup
	d.NewSession(t, api.SessionRequest{ID: "lost"})
}
