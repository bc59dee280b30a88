// SPDX-License-Identifier: Apache-2.0

package quota_test

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/cgroup"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/supervisor/access"
	"github.com/boxd-dev/boxd/supervisor/policy"
	"github.com/boxd-dev/boxd/supervisor/quota"
)

// Principals that share a user of the host are distinguished, and the cgroup of the user itself keeps its name.
func TestOwnersAreToldApart(t *testing.T) {
	t.Parallel()
	held := policy.NoPolicy()
	if got := quota.OwnerOf(access.Principal{Name: "uid:7", UID: 7}, &held); got != (cgroup.Owner{}) {
		t.Errorf("without bounds: got %+v, want cgroup.Owner{}", got)
	}
	held.Memory, held.CPUs = 2*quantity.GiB, 1.5
	user := quota.OwnerOf(access.Principal{Name: "uid:7", UID: 7}, &held)
	if user != (cgroup.Owner{Memory: 2 << 30, CPU: 150_000}) {
		t.Errorf("a user: user = %+v, want cgroup.Owner{Memory: 2 << 30, CPU: 150_000}", user)
	}
	seen := map[string]bool{}
	for _, name := range []string{"ci", "uid:8", "uid:07", "tenant/é"} {
		got := quota.OwnerOf(access.Principal{Name: name, UID: 7}, &held)
		if got.Name == "" || !cgroup.ValidOther(got.Name) || seen[got.Name] || got.Memory != user.Memory {
			t.Errorf("%s: got %+v", name, got)
		}
		seen[got.Name] = true
	}
	held.CPUs = 1e-9
	if got := quota.OwnerOf(access.Principal{Name: "uid:7", UID: 7}, &held); got.CPU != cgroup.MinCPU {
		t.Errorf("less than the kernel accepts: got %+v, want got.CPU == cgroup.MinCPU", got)
	}
}

// A change is sent to the keeper once, a failed one is sent again, and an owner without sessions is forgotten.
func TestOwnerLimitChangesAreSentToTheKeeperOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var list []quota.Total
		var fails error
		told, calls := map[string]uint64{}, 0
		with := func(do func()) {
			mu.Lock()
			defer mu.Unlock()
			do()
		}
		d := quota.NewOwnerLimits(func(_ context.Context, owner *cgroup.Owner) error {
			mu.Lock()
			defer mu.Unlock()
			calls++
			if fails == nil {
				told[cgroup.OwnerPrefix+owner.Name] = owner.Memory
			}
			return fails
		}, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go d.Run(ctx, func() []quota.Total { // ends with ctx, and the bubble waits for it
			mu.Lock()
			defer mu.Unlock()
			return list
		})
		expect := func(what string, asked int, want map[string]uint64) {
			t.Helper()
			synctest.Wait()
			with(func() {
				if calls != asked || !maps.Equal(told, want) {
					t.Errorf("%s: %d calls, %v; want %d, %v", what, calls, told, asked, want)
				}
			})
		}
		now := func(l ...quota.Total) {
			with(func() { list = l })
			d.Wake()
		}
		a := func(memory uint64) quota.Total { return quota.Total{UID: 1, Owner: cgroup.Owner{Memory: memory}} }
		expect("nobody", 0, nil)
		now(a(5), a(7), quota.Total{UID: 1, Owner: cgroup.Owner{Name: "0123456789abcdef"}})
		both := map[string]uint64{"owner-1": 7, "owner-1-0123456789abcdef": 0}
		expect("the latest holds", 2, both)
		now(a(7), quota.Total{UID: 1, Owner: cgroup.Owner{Name: "0123456789abcdef"}})
		expect("nothing new", 2, both)
		with(func() { fails = errors.New("in use") })
		now(a(3))
		expect("too low", 3, both)
		with(func() { fails = nil })
		<-time.After(11 * time.Second)
		both["owner-1"] = 3
		expect("asked again", 4, both)
		with(func() { fails = unix.ESRCH })
		now(a(4))
		expect("just ended", 5, both)
		with(func() { fails = nil })
		now()
		expect("no session", 5, both)
		now(a(3))
		expect("a new one", 6, both)
	})
}
