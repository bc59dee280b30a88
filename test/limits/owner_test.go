// SPDX-License-Identifier: Apache-2.0

package limits_test

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/limits"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

// total_memory and total_cpus are enforced by the cgroup of all boxes of an owner, whatever their own limits are: after a reload,
// which kills no process, after a killed boxd and keeper, and until the last box is gone.
func TestTheKernelKeepsWhatAnOwnerMayHave(t *testing.T) {
	const table = "[policy.all]\nprincipals = [\"uid:0\"]\n"
	d := start(t, boxtest.Kept, table+"total_memory = \"1GiB\"\ntotal_cpus = 2.5\n")
	d.Warm()
	before := d.Look()
	first := d.NewSession(t, api.SessionRequest{ID: "s1", Patch: limits.Patch{Memory: new(256 * quantity.MiB), CPUs: new(1.0)}, Tmp: new(512 * quantity.MiB)})
	second := d.NewSession(t, api.SessionRequest{ID: "s2", Patch: limits.Patch{Memory: new(256 * quantity.MiB), CPUs: new(1.0)}})
	owner := api.Session{Group: filepath.Dir(first.Group)}
	if filepath.Base(owner.Group) != "owner-0" || filepath.Dir(second.Group) != owner.Group {
		t.Fatalf("cgroups %s and %s", first.Group, second.Group)
	}
	const room = 128 << 20 // of PID 1 and what it keeps
	expect := func(what, memory, cpu string) {
		t.Helper()
		boxtest.Eventually(t, what, func() bool {
			return boxtest.GroupFile(t, owner.Group, "memory.max") == memory && boxtest.GroupFile(t, owner.Group, "cpu.max") == cpu
		})
	}
	expect("the total is written", "1207959552", "250000 100000")
	config, err := os.ReadFile(d.Config)
	if err != nil {
		t.Fatal(err)
	}
	edit := func(old, other string) {
		t.Helper()
		if !bytes.Contains(config, []byte(old)) {
			t.Fatalf("no %q in the configuration", old)
		}
		config = bytes.Replace(config, []byte(old), []byte(other), 1)
		if err := os.WriteFile(d.Config, config, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	reload := func() {
		t.Helper()
		if err := syscall.Kill(d.PID(), syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
	}
	arm(t, d, "s2")
	// 200 MiB of the memory of one session stay in use; the other session has the rest of the total.
	d.Sh(t, "s1", "head -c 200M /dev/zero > /tmp/x")
	edit("total_memory = \"1GiB\"", "total_memory = \"64MiB\"")
	edit("total_cpus = 2.5", "total_cpus = 0.5")
	reload()
	boxtest.Eventually(t, "a total limit below the usage is set to the usage", func() bool {
		most := number(t, owner, "memory.max")
		return boxtest.GroupFile(t, owner.Group, "cpu.max") == "50000 100000" && most > 200<<20 && most < 200<<20+room
	})
	if got := d.Sh(t, "s1", "wc -c < /tmp/x"); got != "209715200\n" {
		t.Errorf(`after the reload: got %q, want "209715200\n"`, got)
	}
	d.Sh(t, "s1", "rm /tmp/x")
	expect("it is lower once less is used", "201326592", "50000 100000")
	if r := d.Result(t, "s2", forkBomb(t, "memory", "1m")); r.Status != "oom_killed" || r.OOM.Of != "owner" || r.OOM.Limit != 64*quantity.MiB+room || r.OOM.Peak > 64*quantity.MiB+room+dying {
		t.Errorf("more than the total, and less than the session may have: %s", boxtest.Show(r))
	}
	d.Sh(t, "s1", "true") // PID 1 of both live
	d.Sh(t, "s2", "true")

	// Another boxd and another keeper adopt it unchanged, and write what has changed meanwhile.
	d.Kill()
	if err := unix.Kill(d.Keeper(), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	edit("total_memory = \"64MiB\"\n", "")
	d.Restart()
	expect("a total that is no more is lifted", "max", "50000 100000")
	if s, err := d.Session(t.Context(), "s1"); err != nil || s.Group != first.Group {
		t.Errorf("s = %+v, err = %v, want no error and s.Group == %v", s, err, first.Group)
	}
	for _, id := range []string{"s1", "s2"} {
		if err := d.DeleteSession(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	boxtest.Eventually(t, "the cgroup of the owner is removed with the last box", func() bool {
		_, err := os.Stat(owner.Group)
		return errors.Is(err, fs.ErrNotExist)
	})
	d.NothingLeft(before)
}

// The tenants of a caller are limited by the kernel too, by the limits of their boxes, which never exceed the total of the tenant:
// a tenant that uses all it can does not affect others.
func TestTheKernelKeepsWhatATenantWasGiven(t *testing.T) {
	d := start(t, "[policy.all]\nprincipals = [\"uid:0\"]\n[policy.all.tenant]\nlabel = \"of\"\ntotal_memory = \"512MiB\"\n")
	box := func(id, tenant string) api.SessionRequest {
		return api.SessionRequest{ID: id, Labels: map[string]string{"of": tenant}, Patch: limits.Patch{Memory: new(256 * quantity.MiB), CPUs: new(1.0)}}
	}
	d.NewSession(t, box("a1", "a"))
	d.NewSession(t, box("a2", "a"))
	d.NewSession(t, box("b1", "b"))
	refused := func(what string, err error) {
		t.Helper()
		if e, ok := errors.AsType[*client.Error](err); !ok || e.Denial == nil || e.Denial.Rule != "policy.all.tenant.total_memory" {
			t.Errorf(`%s: err = %v, want ok == true and e.Denial != nil and e.Denial.Rule == "policy.all.tenant.total_memory"`,
				what, err)
		}
	}
	_, _, err := d.CreateSession(t.Context(), new(box("a3", "a")))
	refused("one more box of the tenant", err)
	_, err = d.ChangeSession(t.Context(), "a1", &api.SessionChange{Patch: limits.Patch{Memory: new(257 * quantity.MiB)}})
	refused("a box with more", err)
	for _, id := range []string{"a1", "a2", "b1"} {
		arm(t, d, id)
	}
	var given quantity.Size
	for _, id := range []string{"a1", "a2"} {
		r := d.Result(t, id, forkBomb(t, "memory", "1m"))
		if r.Status != "oom_killed" || r.OOM.Of == "owner" {
			t.Fatalf(`all that it can have: r = %s, want r.Status == "oom_killed" and r.OOM.Of != "owner"`,
				boxtest.Show(r))
		}
		given += r.OOM.Limit
	}
	if given != 512*quantity.MiB {
		t.Errorf("the boxes of the tenant were stopped at %v together", given)
	}
	d.Sh(t, "b1", "head -c 100M /dev/zero | tail -c 1 >/dev/null")
}
