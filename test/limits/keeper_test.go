// SPDX-License-Identifier: Apache-2.0

package limits_test

import (
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/limits"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
)

// The limits of a box are enforced, and can be changed, after a restart of the keeper too.
func TestLimitsOutliveTheKeeper(t *testing.T) {
	for name, start := range map[string]func(t *testing.T) *boxtest.Daemon{
		"direct": func(t *testing.T) *boxtest.Daemon { return start(t) },
		"scoped": startScoped,
	} {
		t.Run(name, func(t *testing.T) {
			d := start(t)
			d.Warm()
			before := d.Look()
			s := d.NewSession(t, api.SessionRequest{ID: "s1", Patch: limits.Patch{Memory: new(128 * quantity.MiB), Pids: new(20), WorkspaceQuota: new(32 * quantity.MiB)}})
			other := d.NewSession(t, api.SessionRequest{ID: "s2"})
			d.Sh(t, "s1", "head -c 20000000 /dev/urandom > big")
			for _, memory := range []quantity.Size{96 * quantity.MiB, 112 * quantity.MiB} {
				killKeeper(t, d)
				_, err := d.ChangeSession(t.Context(), "s1", &api.SessionChange{Patch: limits.Patch{WorkspaceQuota: new(8 * quantity.MiB)}})
				boxtest.Refused(t, err, http.StatusConflict, "workspace_quota")
				changed, err := d.ChangeSession(t.Context(), "s1", &api.SessionChange{Patch: limits.Patch{Memory: &memory, Pids: new(50), WorkspaceQuota: new(24 * quantity.MiB)}})
				if err != nil || changed.Memory != memory || changed.Workspace == nil || changed.Workspace.Limit != 24*quantity.MiB {
					t.Fatalf("changed = %+v, err = %v, want no error and changed.Memory == %v and changed.Workspace != nil and changed.Workspace.Limit == 24 * quantity.MiB",
						changed, err, memory)
				}
				if got := number(t, s, "work/memory.max"); got != int(memory) {
					t.Errorf("memory.max is %d, want %d", got, memory)
				}
				if r := d.Result(t, "s1", boxtest.Shell("head -c 20000000 /dev/urandom > more")); *r.ExitCode == 0 || !strings.Contains(r.Stderr, "quota") {
					t.Errorf(`r = %s, want *r.ExitCode != 0 and r.Stderr containing "quota"`, boxtest.Show(r))
				}
				d.NewSession(t, api.SessionRequest{ID: "s3"})
				if err := d.DeleteSession(t.Context(), "s3"); err != nil {
					t.Fatal(err)
				}
			}
			for id, s := range map[string]api.Session{"s1": s, "s2": other} {
				d.Sh(t, id, "true")
				if err := d.DeleteSession(t.Context(), id); err != nil {
					t.Fatal(err)
				}
				if _, err := os.Stat(s.Group); !os.IsNotExist(err) {
					t.Errorf("the cgroups of %s are left: err = %v, want os.IsNotExist(err)", id, err)
				}
			}
			d.Warm()
			d.NothingLeft(before)
		})
	}
}

// A box that dies while there is no keeper leaves its cgroups to the next one.
func TestGroupsOfABoxThatDiedWithoutAKeeper(t *testing.T) {
	d := start(t)
	d.Warm()
	before := d.Look()
	dead := d.NewSession(t, api.SessionRequest{ID: "dead"})
	alive := d.NewSession(t, api.SessionRequest{ID: "alive"})
	keeper := d.Keeper()
	for _, pid := range []int{keeper, int(dead.PID)} { // at once: the next keeper takes longer to start
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	boxtest.Eventually(t, "the session and its cgroups are gone", func() bool {
		_, err := os.Stat(dead.Group)
		return os.IsNotExist(err) && d.Keeper() != keeper
	})
	if _, err := os.Stat(alive.Group); err != nil {
		t.Errorf("the running session has lost its cgroups: %v", err)
	}
	d.Sh(t, "alive", "true")
	if err := d.DeleteSession(t.Context(), "alive"); err != nil {
		t.Fatal(err)
	}
	d.Warm()
	d.NothingLeft(before)
}

func killKeeper(t *testing.T, d *boxtest.Daemon) {
	t.Helper()
	keeper := d.Keeper()
	if err := syscall.Kill(keeper, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	boxtest.Eventually(t, "another keeper runs", func() bool { return d.Keeper() != keeper })
}
