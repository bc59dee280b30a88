// SPDX-License-Identifier: Apache-2.0

package sessions_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
)

// warmed keeps warm boxes of the default profile, and none of another, otherwise equal profile.
const warmed = "[profiles.default]\nwarm = 2\n[profiles.cold]\n"

// warm waits until n warm boxes are ready.
func warm(t *testing.T, d *boxtest.Daemon, n int) {
	t.Helper()
	boxtest.Eventually(t, fmt.Sprintf("%d preforked boxes are ready", n), func() bool {
		s, err := d.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return len(s.Warm) == 1 && s.Warm[0].Ready == n
	})
}

// took returns how many sessions have taken a warm box.
func took(d *boxtest.Daemon) int { return strings.Count(d.Log(), "a pre-started box") }

// With warm_max, boxes of a profile are preforked once sessions have used it.
func TestWarmMaxPreforksBoxesOfUsedProfiles(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, "[profiles.default]\nwarm_max = 2\n")
	if s, err := d.Status(t.Context()); err != nil || len(s.Warm) != 1 || s.Warm[0].Want != 0 {
		t.Errorf("before any use: s = %+v, err = %v, want no error and len(s.Warm) == 1 and s.Warm[0].Want == 0",
			s, err)
	}
	d.NewSession(t, api.SessionRequest{ID: "first"})
	warm(t, d, 1)
	d.NewSession(t, api.SessionRequest{ID: "second"})
	if took(d) != 1 {
		t.Errorf("%d preforked boxes were used:\n%s", took(d), d.Log())
	}
}

// numbers differ from box to box, however it was created.
var numbers = regexp.MustCompile(`\d{5,}`)

// A program cannot tell whether its box was preforked.
func TestAPreforkedBoxIsLikeAnyOther(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, boxtest.Kept, warmed)
	before := d.Look()
	warm(t, d, 2)
	if s, err := d.Status(t.Context()); err != nil || s.Sessions != 0 {
		t.Errorf("a preforked box without an owner is counted: s = %+v, err = %v, want no error and s.Sessions == 0", s, err)
	}
	const look = `hostname; cat /etc/hostname /etc/hosts; id; pwd; env | sort; ls -lan --time-style=+ /workspace /home/box /tmp /run/box; cut -d' ' -f2-6 /proc/self/mounts | sort; ulimit -a; ` +
		`cat /proc/self/uid_map | wc -l; set -- /proc/[0-9]*; echo $#`
	env := map[string]string{"TOKEN": "x"}
	made := map[string]string{}
	for _, profile := range []string{"default", "cold"} {
		s := d.NewSession(t, api.SessionRequest{ID: "same", Profile: profile, Env: env})
		if s.Hostname != "same" || s.State != "ready" || s.PID == 0 {
			t.Errorf(`s = %+v, want s.Hostname == "same" and s.State == "ready" and s.PID != 0`, s)
		}
		r := d.Result(t, "same", boxtest.Shell(look))
		if r.Status != "exited" {
			t.Fatal(boxtest.Show(r))
		}
		made[profile] = numbers.ReplaceAllString(r.Stdout, "N")
		if err := d.DeleteSession(t.Context(), "same"); err != nil {
			t.Fatal(err)
		}
	}
	if took(d) != 1 {
		t.Fatalf("%d preforked boxes were used:\n%s", took(d), d.Log())
	}
	a, b := strings.Split(made["default"], "\n"), strings.Split(made["cold"], "\n")
	for i := range max(len(a), len(b)) {
		if i >= len(a) || i >= len(b) || a[i] != b[i] {
			t.Errorf("line %d differs:\n%s\n%s", i, made["default"], made["cold"])
			break
		}
	}
	warm(t, d, 2)
	// The warm boxes are removed when boxd stops, although sessions outlive it.
	d.Stop()
	d.NothingLeft(before)
	d.Restart()
	warm(t, d, 2)
}

func TestASessionInABoxAheadOfNeedOutlivesBoxd(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*boxtest.Daemon){"killed": (*boxtest.Daemon).Kill, "stopped": (*boxtest.Daemon).Stop} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := boxtest.Start(t, boxtest.Kept, warmed)
			before := d.Look()
			warm(t, d, 2)
			s := d.NewSession(t, api.SessionRequest{ID: "s1", Env: map[string]string{"A": "b"}})
			d.Sh(t, "s1", "echo kept > f")
			for range 2 {
				end(d)
				d.Restart()
				if now, err := d.Session(t.Context(), "s1"); err != nil || now.PID != s.PID {
					t.Fatalf("now = %+v, err = %v, want no error and now.PID == %v", now, err, s.PID)
				}
				if got := d.Sh(t, "s1", "cat f; hostname; echo $A"); got != "kept\ns1\nb\n" {
					t.Errorf(`got %q, want "kept\ns1\nb\n"`, got)
				}
			}
			if took(d) != 1 {
				t.Errorf("%d preforked boxes were used", took(d))
			}
			if err := d.DeleteSession(t.Context(), "s1"); err != nil {
				t.Error(err)
			}
			d.Stop()
			d.NothingLeft(before)
			d.Restart()
		})
	}
}

func TestBoxesAheadOfNeedGiveWay(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, warmed, "[sessions]\nmax = 3\n")
	warm(t, d, 2)
	// A session with other settings starts cold, and leaves room for fewer warm boxes.
	d.NewSession(t, api.SessionRequest{ID: "s1", Tmp: new(quantity.Size(64 << 20))})
	d.NewSession(t, api.SessionRequest{ID: "s2", Profile: "cold"})
	warm(t, d, 1)
	d.NewSession(t, api.SessionRequest{ID: "s3"})
	if took(d) != 1 {
		t.Errorf("%d preforked boxes were used", took(d))
	}
	warm(t, d, 0)
	if err := d.DeleteSession(t.Context(), "s1"); err != nil {
		t.Fatal(err)
	}
	warm(t, d, 1)
	if _, err := d.Drain(t.Context(), &api.DrainRequest{}); err != nil {
		t.Fatal(err)
	}
	warm(t, d, 0)
}

// A warm box that has died is not given to a session, and is replaced.
func TestADeadBoxAheadOfNeedIsMadeUpFor(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, "[profiles.default]\nwarm = 1\n")
	for i := range 3 {
		warm(t, d, 1)
		boxtest.Eventually(t, "there is one workspace more than there are sessions", func() bool { // that of a dead box goes later
			list, err := os.ReadDir(filepath.Join(d.State, "workspaces"))
			return err == nil && len(list) == i+1
		})
		killInits(t, d)
		d.NewSession(t, api.SessionRequest{ID: fmt.Sprint("s", i)})
		d.Sh(t, fmt.Sprint("s", i), "true")
	}
}

// killInits kills every PID 1 of a box without a session, and waits until they are dead: on a busy host that takes a while.
func killInits(t *testing.T, d *boxtest.Daemon) {
	t.Helper()
	theirs := map[int]bool{}
	for _, id := range sessions(t, d) {
		s, err := d.Session(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		theirs[int(s.PID)] = true
	}
	var killed []int
	for _, process := range d.Look().Processes {
		var pid int
		var name string
		if _, err := fmt.Sscan(process, &pid, &name); err != nil {
			t.Fatal(err)
		}
		if name == "boxinit" && !theirs[pid] {
			_ = syscall.Kill(pid, syscall.SIGKILL)
			killed = append(killed, pid)
		}
	}
	if len(killed) == 0 {
		t.Error("there was no PID 1 to kill: this test proves nothing")
	}
	boxtest.Eventually(t, "the killed processes are dead", func() bool { return !slices.ContainsFunc(killed, boxtest.Lives) })
}
