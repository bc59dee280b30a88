// SPDX-License-Identifier: Apache-2.0

// Owner limits are cgroup limits of the group that all boxes of one owner are in: the kernel enforces what the
// accounts only reserve.

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

// Total is what the sessions of one owner may have together.
type Total struct {
	UID uint32 // of the user that they are made for
	cgroup.Owner
}

// OwnerOf is that of a principal who is held by bounds.
func OwnerOf(who access.Principal, held *policy.Policy) cgroup.Owner {
	o := cgroup.Owner{Name: other(who), Memory: uint64(held.Memory), CPU: uint64(math.Round(held.CPUs * cgroup.CPUPeriod))}
	if o.CPU > 0 || held.CPUs > 0 {
		o.CPU = max(o.CPU, cgroup.MinCPU)
	}
	return o
}

// other is what tells a principal from others that are the same user of the host: "" if it is that user itself.
func other(who access.Principal) string {
	if who.Name == access.OfUser(who.UID) {
		return ""
	}
	sum := sha256.Sum256([]byte(who.Name))
	return hex.EncodeToString(sum[:])[:cgroup.OtherLen]
}

// again is when is looked once more whether all is as it should be.
const again = 10 * time.Second

// OwnerLimits tells the keeper of totals that have changed. A box brings its owner's with it, and they are written where it
// is the first one; all that comes later is told here.
type OwnerLimits struct {
	set     func(ctx context.Context, owner *cgroup.Owner) error
	log     *slog.Logger
	poke    chan struct{}
	applied map[string]cgroup.Owner // by their names: what is in force, of owners that have sessions; Run's alone
	late    map[string]bool         // of whom it has been said that they use more than they may
}

// NewOwnerLimits returns the limits of no owner yet; set is a keeper's.
func NewOwnerLimits(set func(ctx context.Context, owner *cgroup.Owner) error, log *slog.Logger) *OwnerLimits {
	return &OwnerLimits{set: set, log: log, poke: make(chan struct{}, 1), applied: map[string]cgroup.Owner{}, late: map[string]bool{}}
}

// Wake has it look now: the configuration has changed.
func (d *OwnerLimits) Wake() {
	select {
	case d.poke <- struct{}{}:
	default: // it has been told
	}
}

// Run keeps totals as they should be, those of the owners of living sessions, until ctx ends.
func (d *OwnerLimits) Run(ctx context.Context, living func() []Total) {
	tick := time.NewTicker(again)
	defer tick.Stop()
	for {
		d.apply(ctx, living())
		select {
		case <-tick.C:
		case <-d.poke:
		case <-ctx.Done():
			return
		}
	}
}

// apply tells what is not in force. Of an owner that is in the list twice the last holds.
func (d *OwnerLimits) apply(ctx context.Context, list []Total) {
	now := map[string]cgroup.Owner{}
	for _, t := range list {
		owner := t.Owner
		owner.Name = cgroup.OwnerName(t.UID, t.Name)
		now[owner.Name] = owner
	}
	for name := range d.applied {
		if _, ok := now[name]; !ok { // its group goes with its last box
			delete(d.applied, name)
			delete(d.late, name)
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
			delete(d.late, name)
		case ctx.Err() != nil || errors.Is(err, unix.ESRCH): // its boxes are older than groups of owners, or have just ended
		case !d.late[name]:
			d.late[name] = true
			d.log.Warn("cannot set the total limits of an owner yet", "group", cgroup.OwnerPrefix+name, "error", err)
		}
	}
}
