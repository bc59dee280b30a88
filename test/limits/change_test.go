// SPDX-License-Identifier: Apache-2.0

package limits_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/limits"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

func TestLimitsOfALivingSessionChange(t *testing.T) {
	d := start(t)
	s := d.NewSession(t, api.SessionRequest{ID: "s1", Patch: limits.Patch{Memory: new(128 * quantity.MiB), Pids: new(20), WorkspaceQuota: new(32 * quantity.MiB)}})
	changed, err := d.ChangeSession(t.Context(), "s1", &api.SessionChange{
		Patch: limits.Patch{
			Memory: new(64 * quantity.MiB), Pids: new(50), CPUs: new(0.5), CPUWeight: new(10), IOWrite: new(quantity.MiB), OOM: new("session"),
			WorkspaceQuota: new(16 * quantity.MiB), WorkspaceInodes: new(500), TTL: boxtest.Duration("1h"),
		}, Labels: map[string]string{"a": "b"},
	})
	if err != nil || changed.Memory != 64*quantity.MiB || changed.Pids != 50 || changed.TTL != *boxtest.Duration("1h") || changed.Labels["a"] != "b" || changed.PID != s.PID {
		t.Fatalf("changed = %+v, err = %v", changed, err)
	}
	for name, want := range map[string]string{
		"work/memory.max": "67108864", "work/pids.max": "50", "work/cpu.max": "50000 100000", "cpu.weight": "10", "work/memory.oom.group": "1",
	} {
		if got := boxtest.GroupFile(t, s.Group, name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	if w := changed.Workspace; w == nil || w.Limit != 16*quantity.MiB || w.FilesLimit != 500 {
		t.Errorf("w = %+v, want w != nil and w.Limit == 16 * quantity.MiB and w.FilesLimit == 500", w)
	}
	if got := d.Sh(t, "s1", "df -k --output=size /workspace | tail -1"); strings.TrimSpace(got) != "16384" {
		t.Errorf("in the box the workspace has %q KiB", got)
	}
}

func TestAChangeIsAllOrNothing(t *testing.T) {
	d := start(t)
	s := d.NewSession(t, api.SessionRequest{ID: "s1", Patch: limits.Patch{Memory: new(256 * quantity.MiB), Pids: new(60), WorkspaceQuota: new(64 * quantity.MiB)}})
	d.Sh(t, "s1", "head -c 40000000 /dev/urandom > /workspace/big; for i in $(seq 20); do : > /workspace/f$i; done")
	hold := make(chan api.ExecResult, 1)
	go func() {
		req := api.ExecRequest{Language: "python", Code: new("x = bytearray(100 << 20)\nimport os, time\nfor i in range(30): os.fork() or time.sleep(1000)\nopen('/workspace/up', 'w')\ntime.sleep(1000)"), Timeout: boxtest.Duration("10m")}
		hold <- d.Result(t, "s1", req)
	}()
	d.Sh(t, "s1", "until [ -e /workspace/up ]; do sleep 0.1; done")
	ofNow := func() string {
		now, err := d.Session(t.Context(), "s1")
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(boxtest.GroupFile(t, s.Group, "work/memory.max"), boxtest.GroupFile(t, s.Group, "work/memory.high"), boxtest.GroupFile(t, s.Group, "work/pids.max"), boxtest.GroupFile(t, s.Group, "work/cpu.max"),
			boxtest.GroupFile(t, s.Group, "memory.max"), now.Workspace.Limit, now.Memory, now.Pids, now.CPUs, now.WorkspaceQuota, now.Labels)
	}
	before := ofNow()
	for _, tc := range []struct {
		name   string
		change api.SessionChange
		status int
		field  string
	}{
		{"less memory than is used", api.SessionChange{Patch: limits.Patch{Memory: new(64 * quantity.MiB), CPUs: new(0.5)}, Labels: map[string]string{"x": "y"}}, http.StatusConflict, "memory"},
		{"fewer processes than there are", api.SessionChange{Patch: limits.Patch{Pids: new(20), Memory: new(512 * quantity.MiB)}}, http.StatusConflict, "pids"},
		{"fewer files than there are", api.SessionChange{Patch: limits.Patch{WorkspaceInodes: new(16), Pids: new(70)}}, http.StatusConflict, "workspace_inodes"},
		{"less disk than is used", api.SessionChange{Patch: limits.Patch{WorkspaceQuota: new(8 * quantity.MiB), Pids: new(70)}}, http.StatusConflict, "workspace_quota"},
		{"room on disk, too few processes", api.SessionChange{Patch: limits.Patch{WorkspaceQuota: new(128 * quantity.MiB), Pids: new(20)}}, http.StatusConflict, "pids"},
		{"nothing", api.SessionChange{Patch: limits.Patch{Memory: new(quantity.Size(0))}}, http.StatusBadRequest, "memory"},
		{"less than can be", api.SessionChange{Patch: limits.Patch{Pids: new(-1)}}, http.StatusBadRequest, "pids"},
		{"no quota", api.SessionChange{Patch: limits.Patch{WorkspaceQuota: new(quantity.Size(0))}}, http.StatusNotImplemented, ""},
		{"more than the host has", api.SessionChange{Patch: limits.Patch{Memory: new(quantity.TiB)}}, http.StatusBadRequest, "memory"},
	} {
		_, err := d.ChangeSession(t.Context(), "s1", &tc.change)
		boxtest.Refused(t, err, tc.status, tc.field)
		if now := ofNow(); now != before {
			t.Errorf("%s: before %s, now %s", tc.name, before, now)
		}
	}
	select {
	case r := <-hold:
		t.Errorf("the running program has ended: %s", boxtest.Show(r))
	default:
	}
	if err := d.DeleteSession(t.Context(), "s1"); err != nil {
		t.Fatal(err)
	}
	<-hold
}

func TestAFrozenSessionStandsStill(t *testing.T) {
	d := start(t)
	d.Warm()
	before := d.Look()
	s := d.NewSession(t, api.SessionRequest{ID: "s1"})
	running := make(chan api.ExecResult, 2)
	runs := func(req api.ExecRequest) {
		r, _ := d.Exec(t.Context(), "s1", &req) // what it has become shows in its status
		running <- r
	}
	counter := boxtest.Shell("touch up; n=0; while :; do n=$((n+1)); echo $n > count; done")
	counter.Timeout = new(quantity.Duration(boxtest.Longest))
	go runs(counter)
	d.Sh(t, "s1", "until [ -e up ]; do sleep 0.05; done")
	for range 3 {
		frozen, err := d.FreezeSession(t.Context(), "s1")
		if err != nil || frozen.State != "frozen" || !strings.Contains(boxtest.GroupFile(t, s.Group, "work/cgroup.events"), "frozen 1") {
			t.Fatalf(`frozen = %+v, err = %v, %s, want no error and frozen.State == "frozen" and boxtest.GroupFile(t, s.Group, "work/cgroup.events") containing "frozen 1"`,
				frozen, err, boxtest.GroupFile(t, s.Group, "work/cgroup.events"))
		}
		req := boxtest.Shell("true")
		_, err = d.Exec(t.Context(), "s1", &req)
		boxtest.Refused(t, err, http.StatusConflict, "")
		if _, err := d.FreezeSession(t.Context(), "s1"); err != nil { // again
			t.Fatal(err)
		}
		if thawed, err := d.ThawSession(t.Context(), "s1"); err != nil || thawed.State != "ready" {
			t.Fatalf(`thawed = %+v, err = %v, want no error and thawed.State == "ready"`, thawed, err)
		}
		if got := d.Sh(t, "s1", "a=$(cat count); until [ \"$a\" != \"$(cat count)\" ]; do sleep 0.01; done; echo on"); got != "on\n" {
			t.Errorf(`got %q, want "on\n"`, got)
		}
	}
	// What is due ends frozen.
	due := boxtest.Shell("touch due; exec sleep 1000")
	due.Timeout = boxtest.Duration("3s")
	go runs(due)
	d.Sh(t, "s1", "until [ -e due ]; do sleep 0.05; done")
	if _, err := d.FreezeSession(t.Context(), "s1"); err != nil {
		t.Fatal(err)
	}
	if r := <-running; r.Status != "timed_out" {
		t.Errorf(`r = %s, want r.Status == "timed_out"`, boxtest.Show(r))
	}
	if err := d.DeleteSession(t.Context(), "s1"); err != nil { // and so does the session
		t.Fatal(err)
	}
	<-running
	d.NothingLeft(before)
}

func TestFreezeAndStartsAtTheSameTime(t *testing.T) {
	d := start(t)
	d.NewSession(t, api.SessionRequest{ID: "s1"})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var started [4]atomic.Int64
	var starts sync.WaitGroup
	for i := range started {
		starts.Go(func() {
			for ctx.Err() == nil {
				req := boxtest.Shell("true")
				r, err := d.Exec(t.Context(), "s1", &req)
				switch e, ok := errors.AsType[*client.Error](err); {
				case err == nil && r.Status == "exited":
					started[i].Add(1)
				case err == nil:
					t.Errorf("r = %s", boxtest.Show(r))
				case !ok || e.Status != http.StatusConflict:
					t.Error(err)
				}
			}
		})
	}
	for range 20 {
		for _, do := range []func() error{
			func() error { _, err := d.FreezeSession(t.Context(), "s1"); return err },
			func() error { _, err := d.ThawSession(t.Context(), "s1"); return err },
		} {
			if err := do(); err != nil {
				t.Error(err)
			}
		}
	}
	for i := range started {
		boxtest.Eventually(t, "each has started a program", func() bool { return started[i].Load() > 0 })
	}
	cancel()
	starts.Wait()
	d.Sh(t, "s1", "true")
}

func TestBadLimitsAreRefusedByName(t *testing.T) {
	d := start(t)
	d.Warm()
	before := d.Look()
	for _, tc := range []struct {
		req   api.SessionRequest
		field string
	}{
		{api.SessionRequest{Patch: limits.Patch{Memory: new(quantity.Size(0))}}, "memory"},
		{api.SessionRequest{Patch: limits.Patch{Memory: new(quantity.MiB)}}, "memory"},
		{api.SessionRequest{Patch: limits.Patch{Memory: new(64 * quantity.TiB)}}, "memory"},
		{api.SessionRequest{Patch: limits.Patch{MemoryHigh: new(quantity.GiB)}}, "memory_high"},
		{api.SessionRequest{Patch: limits.Patch{OOM: new("all")}}, "oom"},
		{api.SessionRequest{Patch: limits.Patch{CPUs: new(0.0)}}, "cpus"},
		{api.SessionRequest{Patch: limits.Patch{CPUs: new(-1.0)}}, "cpus"},
		{api.SessionRequest{Patch: limits.Patch{CPUs: new(0.001)}}, "cpus"},
		{api.SessionRequest{Patch: limits.Patch{CPUs: new(1000.0)}}, "cpus"},
		{api.SessionRequest{Patch: limits.Patch{CPUWeight: new(0)}}, "cpu_weight"},
		{api.SessionRequest{Patch: limits.Patch{IOWeight: new(10001)}}, "io_weight"},
		{api.SessionRequest{Patch: limits.Patch{IORead: new(quantity.Size(1))}}, "io_read"},
		{api.SessionRequest{Patch: limits.Patch{Pids: new(-5)}}, "pids"},
		{api.SessionRequest{Patch: limits.Patch{Pids: new(1)}}, "pids"},
		{api.SessionRequest{Patch: limits.Patch{Pids: new(1 << 30)}}, "pids"},
		{api.SessionRequest{Patch: limits.Patch{WorkspaceQuota: new(quantity.KiB)}}, "workspace_quota"},
		{api.SessionRequest{Patch: limits.Patch{WorkspaceInodes: new(0)}}, "workspace_inodes"},
		{api.SessionRequest{Patch: limits.Patch{WorkspaceInodes: new(-7)}}, "workspace_inodes"},
	} {
		_, _, err := d.CreateSession(t.Context(), &tc.req)
		boxtest.Refused(t, err, http.StatusBadRequest, tc.field)
	}
	d.NothingLeft(before)
}

func TestAnUnlimitedWorkspaceCannotBeLimitedLater(t *testing.T) {
	d := start(t)
	d.NewSession(t, api.SessionRequest{ID: "s1", Patch: limits.Patch{WorkspaceQuota: new(quantity.Size(0))}})
	_, err := d.ChangeSession(t.Context(), "s1", &api.SessionChange{Patch: limits.Patch{WorkspaceQuota: new(8 * quantity.MiB)}})
	boxtest.Refused(t, err, http.StatusNotImplemented, "")
	if boxtest.Grouped() {
		d.Sh(t, "s1", "head -c 9000000 /dev/zero > big")
	}
}

// A quota that the host cannot enforce is refused, whenever it is requested.
func TestAHostDirectoryHasNoQuotaLaterEither(t *testing.T) {
	dir, err := os.MkdirTemp("/srv", "boxd") //nolint:usetesting // not in the state directory's filesystem, where the others are
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chown(dir, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	d := start(t, fmt.Sprintf("[mounts]\nallow = [{path = %q, owner = \"65534:65534\"}]\n", dir))
	d.NewSession(t, api.SessionRequest{ID: "s1", Mounts: []api.Mount{{Source: dir, Target: "/workspace", Mode: "rw", Owner: 65534}}})
	_, err = d.ChangeSession(t.Context(), "s1", &api.SessionChange{Patch: limits.Patch{WorkspaceQuota: new(32 * quantity.MiB)}})
	boxtest.Refused(t, err, http.StatusNotImplemented, "workspace_quota")
	if _, err := d.ChangeSession(t.Context(), "s1", &api.SessionChange{Patch: limits.Patch{Memory: new(128 * quantity.MiB)}}); err != nil {
		t.Error(err)
	}
}
