// SPDX-License-Identifier: Apache-2.0

package sessions_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
)

// other is a user that every host has, and that boxd can run as.
const other = "daemon"

// A boxd that is not root adopts the sessions of one that was, with all its functions.
func TestABoxdThatIsNoLongerRootGoesOn(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, boxtest.Kept)
	skill(t, d, "one", "first")
	space(t, d, "project")
	was := d.NewSession(t, api.SessionRequest{ID: "s", Skills: []string{"one"}})
	d.NewSession(t, api.SessionRequest{ID: "shared", Workspace: "project"})
	d.NewSession(t, api.SessionRequest{ID: "rests"})
	d.Sh(t, "rests", "echo rested > f")
	if _, err := d.StopSession(t.Context(), "rests"); err != nil {
		t.Fatal(err)
	}
	d.Sh(t, "s", "echo mine > f")
	lives := process(t, d, "s", "lives", &api.ProcessRequest{Command: new("echo begun; exec sleep 1000")})
	d.RunAs(other)
	if status, err := os.ReadFile("/proc/" + strconv.Itoa(d.PID()) + "/status"); err != nil || !strings.Contains(string(status), "\nUid:\t1\t1\t1\t1\n") || !strings.Contains(string(status), "\nCapEff:\t0000000000000000\n") {
		t.Fatalf(`boxd is %s, %v, want no error and status containing "\nUid:\t1\t1\t1\t1\n" and status containing "\nCapEff:\t0000000000000000\n"`,
			status, err)
	}
	if now, err := d.Session(t.Context(), "s"); err != nil || now.PID != was.PID {
		t.Fatalf("%+v, %v: was %+v, want no error and now.PID == %v", now, err, was, was.PID)
	}
	restored(t, d, "s", "lives", "running")
	if p, err := d.Process(t.Context(), "s", "lives", 0); err != nil || p.PID != lives.PID || p.State != "running" {
		t.Errorf(`%+v, %v: was %+v, want no error and p.PID == %v and p.State == "running"`, p, err, lives, lives.PID)
	}
	if got := d.Sh(t, "s", "cat f /skills/one/text"); got != "mine\nfirst" {
		t.Errorf(`got %q, want "mine\nfirst"`, got)
	}
	if err := rewriteSkill(t, d, "one", "second"); err != nil {
		t.Fatal(err)
	}
	skill(t, d, "two", "new")
	d.NewSession(t, api.SessionRequest{ID: "later", Skills: []string{"one", "two"}, Workspace: "project"})
	if got := d.Sh(t, "later", "cat /skills/one/text /skills/two/text; echo together > f"); got != "secondnew" {
		t.Errorf(`got %q, want "secondnew"`, got)
	}
	if got := d.Sh(t, "shared", "cat f"); got != "together\n" {
		t.Errorf(`got %q, want "together\n"`, got)
	}
	if _, err := d.StartSession(t.Context(), "rests"); err != nil {
		t.Fatal(err)
	}
	if got := d.Sh(t, "rests", "cat f"); got != "rested\n" {
		t.Errorf(`got %q, want "rested\n"`, got)
	}
	if left := usersOf(t, d, "project"); len(left) != 2 {
		t.Errorf("the workspace is used by %q", left)
	}
	// What it finds out about files by looking at them itself: that a workspace exists, and its usage.
	if _, err := d.KeepWorkspace(t.Context(), "s", "kept"); err != nil {
		t.Error(err)
	}
	d.NewSession(t, api.SessionRequest{ID: "with", Workspace: "kept"})
	if got := d.Sh(t, "with", "cat f"); got != "mine\n" {
		t.Errorf(`got %q, want "mine\n"`, got)
	}
	if w, err := d.Workspace(t.Context(), "kept"); err != nil || len(w.Sessions) != 1 {
		t.Errorf("w = %+v, err = %v, want no error and len(w.Sessions) == 1", w, err)
	}
	// All that is boxd's is its user's, and nothing else is.
	mine := map[string]bool{"lock": true, "daemon": true, "audit": true, "drives": true, "images": true, "named-workspaces": true, "sessions": true, "skills": true, "usage": true}
	err := filepath.WalkDir(d.State, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || path == d.State {
			return err
		}
		info, err := os.Lstat(path)
		if errors.Is(err, fs.ErrNotExist) { // boxd has replaced it meanwhile
			return nil
		}
		if err != nil {
			return err
		}
		top, _, _ := strings.Cut(strings.TrimPrefix(path, d.State+"/"), "/")
		if uid := info.Sys().(*syscall.Stat_t).Uid; (uid == 1) != mine[top] {
			t.Errorf("%s belongs to %d, want (uid == 1) == mine[top]", path, uid)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// Who is not the user of boxd gets nowhere with the keeper.
func TestTheKeeperObeysTheUserOfBoxdAlone(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, boxtest.Kept)
	d.NewSession(t, api.SessionRequest{ID: "s"})
	d.RunAs(other)
	socket := filepath.Join(d.Dir, "run/keeper/socket")
	for path, want := range map[string]fs.FileMode{filepath.Dir(socket): 0o750, socket: 0o660} {
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm() != want || info.Sys().(*syscall.Stat_t).Uid != 0 || info.Sys().(*syscall.Stat_t).Gid != 1 {
			t.Errorf("%s: %v, %v, want %v", path, info, err, want)
		}
	}
	boxtest.Eventually(t, "root is refused", func() bool {
		fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_SEQPACKET|syscall.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer syscall.Close(fd)
		if err := syscall.Connect(fd, &syscall.SockaddrUnix{Name: socket}); err != nil {
			t.Fatal(err)
		}
		return strings.Contains(d.Log(), "refused a connection: of uid 0")
	})
	if got := d.Sh(t, "s", "echo fine"); got != "fine\n" {
		t.Errorf(`got %q, want "fine\n"`, got)
	}
}
