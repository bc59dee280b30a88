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

// total_memory and total_cpus are kept by the group that all boxes of an owner are in, whatever their own limits say:
// over a reload, which kills nobody, a boxd and a keeper that are killed, and until the last box is gone.
func TestTheKernelKeepsWhatAnOwnerMayHave(t *testing.T) {
	const table = "[policy.all]\nprincipals = [\"uid:0\"]\n"
	d := start(t, boxtest.Kept, table+"total_memory = \"1GiB\"\ntotal_cpus = 2.5\n")
	d.Warm()
	before := d.Look()
	first := d.NewSession(t, api.SessionRequest{ID: "s1", Patch: limits.Patch{Memory: new(256 * quantity.MiB), CPUs: new(1.0)}, Tmp: new(512 * quantity.MiB)})
	second := d.NewSession(t, api.SessionRequest{ID: "s2", Patch: limits.Patch{Memory: new(256 * quantity.MiB), CPUs: new(1.0)}})
	owner := api.Session{Group: filepath.Dir(first.Group)}
	if filepath.Base(owner.Group) != "owner-0" || filepath.Dir(second.Group) != owner.Group {
		t.Fatalf("groups %s and %s", first.Group, second.Group)
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
	// 200 MiB of the memory of one session stay in use; the other has then what is left of the total.
	d.Sh(t, "s1", "head -c 200M /dev/zero > /tmp/x")
	edit("total_memory = \"1GiB\"", "total_memory = \"64MiB\"")
	edit("total_cpus = 2.5", "total_cpus = 0.5")
	reload()
	boxtest.Eventually(t, "a total below what is used keeps it where it is", func() bool {
		most := number(t, owner, "memory.max")
		return boxtest.GroupFile(t, owner.Group, "cpu.max") == "50000 100000" && most > 200<<20 && most < 200<<20+room
	})
	if got := d.Sh(t, "s1", "wc -c < /tmp/x"); got != "209715200\n" {
		t.Errorf("after the reload: %q", got)
	}
	d.Sh(t, "s1", "rm /tmp/x")
	expect("it is lower once less is used", "201326592", "50000 100000")
	if r := d.Result(t, "s2", bomb(t, "memory", "1m")); r.Status != "oom_killed" || r.OOM.Of != "owner" || r.OOM.Limit != 64*quantity.MiB+room || r.OOM.Peak > 64*quantity.MiB+room+dying {
		t.Errorf("more than the total, and less than the session may have: %s", boxtest.Show(r))
	}
	d.Sh(t, "s1", "true") // PID 1 of both live
	d.Sh(t, "s2", "true")

	// Another boxd and another keeper find it as it is, and write what has changed meanwhile.
	d.Kill()
	if err := unix.Kill(d.Keeper(), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	edit("total_memory = \"64MiB\"\n", "")
	d.Restart()
	expect("a total that is no more is lifted", "max", "50000 100000")
	if s, err := d.Session(t.Context(), "s1"); err != nil || s.Group != first.Group {
		t.Errorf("%+v, %v", s, err)
	}
	for _, id := range []string{"s1", "s2"} {
		if err := d.DeleteSession(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	boxtest.Eventually(t, "the group of the owner goes with the last box", func() bool {
		_, err := os.Stat(owner.Group)
		return errors.Is(err, fs.ErrNotExist)
	})
	d.NothingLeft(before)
}

// What the tenants of a caller have is bounded by the kernel too, by the limits of their boxes, which are never more than the
// total of the tenant: one that takes what it can leaves what others have, and other boxes of its own.
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
			t.Errorf("%s: %v", what, err)
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
		r := d.Result(t, id, bomb(t, "memory", "1m"))
		if r.Status != "oom_killed" || r.OOM.Of == "owner" {
			t.Fatalf("all that it can have: %s", boxtest.Show(r))
		}
		given += r.OOM.Limit
	}
	if given != 512*quantity.MiB {
		t.Errorf("the boxes of the tenant were stopped at %v together", given)
	}
	d.Sh(t, "b1", "head -c 100M /dev/zero | tail -c 1 >/dev/null")
}
