// SPDX-License-Identifier: Apache-2.0

// Owner limits are the limits of the cgroup that contains all boxes of one owner: the kernel enforces what the accounts only
// reserve.

package quota

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"log/slog"
	"math"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/cgroup"
	"github.com/boxd-dev/boxd/supervisor/access"
	"github.com/boxd-dev/boxd/supervisor/policy"
)

// Total is what the sessions of one owner may use together.
type Total struct {
	UID uint32 // of the user they run for
	cgroup.Owner
}

// OwnerOf returns the owner limits of a principal with this policy.
func OwnerOf(principal access.Principal, pol *policy.Policy) cgroup.Owner {
	o := cgroup.Owner{Name: other(principal), Memory: uint64(pol.Memory), CPU: uint64(math.Round(pol.CPUs * cgroup.CPUPeriod))}
	if o.CPU > 0 || pol.CPUs > 0 {
		o.CPU = max(o.CPU, cgroup.MinCPU)
	}
	return o
}

// other distinguishes principals that are the same host user: "" for the user itself.
func other(principal access.Principal) string {
	if principal.Name == access.OfUser(principal.UID) {
		return ""
	}
	sum := sha256.Sum256([]byte(principal.Name))
	return hex.EncodeToString(sum[:])[:cgroup.OtherLen]
}

// again is the interval between checks.
const again = 10 * time.Second

// OwnerLimits passes changed totals to the keeper. A box carries its owner's limits, which are written with the owner's first
// box; later changes come from here.
type OwnerLimits struct {
	set      func(ctx context.Context, owner *cgroup.Owner) error
	log      *slog.Logger
	wakeup   chan struct{}
	applied  map[string]cgroup.Owner // by name: limits in force, of owners with sessions; only Run uses it
	reported map[string]bool         // owners already reported as using more than their limit
}

// NewOwnerLimits returns the limits of no owner yet; set is the keeper's.
func NewOwnerLimits(set func(ctx context.Context, owner *cgroup.Owner) error, log *slog.Logger) *OwnerLimits {
	return &OwnerLimits{set: set, log: log, wakeup: make(chan struct{}, 1), applied: map[string]cgroup.Owner{}, reported: map[string]bool{}}
}

// Wake triggers a check now, after a change of the configuration.
func (d *OwnerLimits) Wake() {
	select {
	case d.wakeup <- struct{}{}:
	default: // already notified
	}
}

// Run keeps the limits of owners of running sessions current, until ctx ends.
func (d *OwnerLimits) Run(ctx context.Context, living func() []Total) {
	ticker := time.NewTicker(again)
	defer ticker.Stop()
	for {
		d.apply(ctx, living())
		select {
		case <-ticker.C:
		case <-d.wakeup:
		case <-ctx.Done():
			return
		}
	}
}

// apply sets limits that are not in force. If an owner is in the list twice, the last counts.
func (d *OwnerLimits) apply(ctx context.Context, list []Total) {
	now := map[string]cgroup.Owner{}
	for _, t := range list {
		owner := t.Owner
		owner.Name = cgroup.OwnerName(t.UID, t.Name)
		now[owner.Name] = owner
	}
	for name := range d.applied {
		if _, ok := now[name]; !ok { // its cgroup is removed with its last box
			delete(d.applied, name)
			delete(d.reported, name)
		}
	}
	for name, want := range now {
		if was, ok := d.applied[name]; ok && was == want {
			continue
		}
		err := d.set(ctx, &want)
		switch {
		case err == nil:
			d.applied[name] = want
			delete(d.reported, name)
		case ctx.Err() != nil || errors.Is(err, unix.ESRCH): // its boxes predate owner cgroups, or have just ended
		case !d.reported[name]:
			d.reported[name] = true
			d.log.Warn("cannot set the total limits of an owner yet", "group", cgroup.OwnerPrefix+name, "error", err)
		}
	}
}
