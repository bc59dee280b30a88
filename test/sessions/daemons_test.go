// SPDX-License-Identifier: Apache-2.0

package sessions_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
)

// A range of ids for tests only that two daemons share, as all daemons of a host do by default.
const sharedIDs = "[ids]\nbase = 2130706432\ncount = 64\nlock = \"/run/boxd-test-shared-ids\"\n"

func TestTwoDaemonsNeverTouchEachOthersBoxes(t *testing.T) {
	t.Parallel()
	a, b := boxtest.Start(t, sharedIDs), boxtest.Start(t, sharedIDs)
	seen := map[uint32]string{}
	fill := func(d *boxtest.Daemon, name string) {
		for i := range 3 {
			id := fmt.Sprintf("%s%d", name, i)
			s := d.NewSession(t, api.SessionRequest{ID: id})
			if other := seen[s.IDBase]; other != "" {
				t.Errorf("%s and %s have the ids from %d", id, other, s.IDBase)
			}
			seen[s.IDBase] = id
			d.Sh(t, id, "echo "+id+" > mine")
		}
	}
	intact := func(what string) {
		for i := range 3 {
			id := fmt.Sprintf("b%d", i)
			if got := b.Sh(t, id, "cat mine"); got != id+"\n" {
				t.Errorf(`after %s %s has %q, want got == id + "\n"`, what, id, got)
			}
		}
	}
	fill(b, "b")
	fill(a, "a")
	if got := sessions(t, a); len(got) != 3 || strings.Contains(strings.Join(got, ""), "b") {
		t.Errorf(`one daemon has %q, want len(got) == 3 and strings.Join(got, "") without "b"`, got)
	}
	a.Stop()
	intact("the other's stop")
	a.Restart()
	intact("the other's restart")
	for _, id := range []string{"a0", "a1", "a2"} {
		for base, owner := range seen {
			if owner == id {
				delete(seen, base) // released
			}
		}
	}
	fill(a, "a")
	a.Kill()
	intact("the other's death")
	a.Restart()
	intact("the other's return")
	if got := sessions(t, a); len(got) > 0 {
		t.Errorf("the other has %q, want len(got) == 0", got)
	}
}

// boxd runs another boxd that must fail to start, and returns its error output.
func boxd(t *testing.T, configuration string) string {
	t.Helper()
	file := filepath.Join(boxtest.TempDir(t), "box.toml")
	if err := os.WriteFile(file, []byte(configuration), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), filepath.Join(boxtest.Programs(t), "boxd"), "-config", file).CombinedOutput()
	if err == nil {
		t.Errorf("boxd came up and ended well:\n%s", out)
	}
	return string(out)
}

func TestASecondBoxdKeepsOutOfStateAndSocketOfTheFirst(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.NewSession(t, api.SessionRequest{ID: "s1"})
	dir := boxtest.TempDir(t)
	for _, tc := range []struct{ name, state, socket, run, want string }{
		{"state", d.State, dir + "/s", dir + "/run", "boxd: state directory " + d.State + " is in use by another boxd"},
		{"socket", dir + "/state", d.Socket, dir + "/run", "boxd: socket " + d.Socket + " is in use by another boxd"},
		{"keeper", dir + "/state", dir + "/s", d.Dir + "/run", "boxd: runtime directory " + d.Dir + "/run is in use by another boxd"},
		{"all", d.State, d.Socket, d.Dir + "/run", "is in use by another boxd"},
	} {
		out := boxd(t, boxtest.BestEffort+fmt.Sprintf("[daemon]\nstate_dir = %q\nsocket = %q\nruntime_dir = %q\n", tc.state, tc.socket, tc.run))
		if !strings.Contains(out, tc.want) || strings.Contains(out, "boxd serves") {
			t.Errorf(`%s: out = %s, want out containing %q and out without "boxd serves"`, tc.name, out, tc.want)
		}
		d.Sh(t, "s1", "true")
	}
}

// The locks of a boxd that is killed while it starts a program are held by the forked child until its execve.
func TestABoxdWaitsForTheLocksOfOneThatWasKilled(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, boxtest.Lasting)
	s := d.NewSession(t, api.SessionRequest{ID: "s1"})
	d.Kill()
	for _, path := range []string{filepath.Join(d.State, "lock"), filepath.Join(d.Dir, "run", "keeper")} {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(time.Second/2, func() { f.Close() })
		d.Restart()
		if now, err := d.Session(t.Context(), "s1"); err != nil || now.PID != s.PID {
			t.Errorf("%s: the box of %d is that of %d, %v", path, s.PID, now.PID, err)
		}
		d.Kill()
	}
	d.Restart()
}

func TestBoxdRefusesWhatItCannotServeFrom(t *testing.T) {
	t.Parallel()
	dir := boxtest.TempDir(t)
	config := func(text string) string {
		return strings.ReplaceAll("[daemon]\nsocket = \"%DIR%/s\"\nruntime_dir = \"%DIR%/run\"\nstate_dir = \"%DIR%/state\"\n"+text, "%DIR%", dir)
	}
	if out := boxd(t, config("[sessions]\nmaximum = 3\n")); !strings.Contains(out, "sessions.maximum") || !strings.Contains(out, "line 6") {
		t.Errorf(`unknown key: out = %s, want out containing "sessions.maximum" and out containing "line 6"`, out)
	}
	if err := os.MkdirAll(filepath.Join(dir, "state", "sessions"), 0o700); err != nil {
		t.Fatal(err)
	}
	foreign := filepath.Join(dir, "state", "sessions", "notes.txt")
	if err := os.WriteFile(foreign, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if out := boxd(t, config("")); !strings.Contains(out, `record "notes.txt": not one of boxd's`) {
		t.Errorf("a foreign file among the records: out = %s, want out containing `record \"notes.txt\": not one of boxd's`",
			out)
	}
	if _, err := os.Stat(foreign); err != nil {
		t.Errorf("the foreign file was removed: %v", err)
	}
	if err := os.Chmod(filepath.Join(dir, "state"), 0o755); err != nil {
		t.Fatal(err)
	}
	if out := boxd(t, config("")); !strings.Contains(out, "want mode 0700") {
		t.Errorf(`an open state directory: out = %s, want out containing "want mode 0700"`, out)
	}
}

func TestTheSocketIsTheGroups(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	info, err := os.Stat(d.Socket)
	if err != nil || info.Mode() != os.ModeSocket|0o660 {
		t.Errorf("info = %v, err = %v, want no error and info.Mode() == os.ModeSocket | 0o660", info, err)
	}
	for _, path := range []string{d.State, filepath.Join(d.State, "sessions"), filepath.Join(d.State, "workspaces")} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("%s: info = %v, err = %v, want no error and info.Mode().Perm() == 0o700", path, info, err)
		}
	}
	if a := d.AsUser(t, boxtest.OtherUID, boxtest.Request("GET", "/readyz", ""), boxtest.Request("GET", "/v1/status", "")); a[0].Code != 200 || a[1].Code != 200 {
		t.Errorf("a = %+v, want a[0].Code == 200 and a[1].Code == 200", a)
	}
}
