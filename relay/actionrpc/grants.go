// SPDX-License-Identifier: Apache-2.0

package actionrpc

import (
	"context"
	"strconv"
	"sync"
	"time"

	"github.com/boxd-dev/boxd/relay/actionrpc/wire"
)

// Grants has the grants of all Workspaces by namespace, and the highest revision and generation seen of each: a grant of
// an earlier revision or generation is refused. It is in memory only: a boxd that starts admits no Workspace.
type Grants struct {
	now     func() time.Time // the wall clock, which may be set
	start   time.Time        // start of the monotonic time
	changed chan struct{}    // buffers one notice of a changed expiry
	turns   [256]chan struct{}

	mu      sync.Mutex // guards the fields below
	records map[string]*record
	epoch   uint64 // incremented by each new admission
}

// record is what is known of one Workspace. It is never removed.
type record struct {
	revision, revoked, generation int64
	sessions, processes           int64 // of the last grant, if limits is true
	limits                        bool
	grant                         *Grant        // nil: none
	until                         time.Duration // since start
	epoch                         uint64        // of the admission; a renewed grant keeps it
}

// NewGrants returns Grants without any.
func NewGrants(now func() time.Time) *Grants {
	b := &Grants{now: now, start: time.Now(), changed: make(chan struct{}, 1), records: map[string]*record{}}
	for i := range b.turns {
		b.turns[i] = make(chan struct{}, 1)
	}
	return b
}

// Turn waits for the exclusive right to change a Workspace's grant. done must follow.
func (b *Grants) Turn(ctx context.Context, namespace string) (done func(), err error) {
	turn := b.turns[0]
	if len(namespace) >= 5 { // ws- and a digest
		if n, err := strconv.ParseUint(namespace[3:5], 16, 8); err == nil {
			turn = b.turns[n]
		}
	}
	select {
	case turn <- struct{}{}:
		return func() { <-turn }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func refuse(text string) error { return wire.Refusef("BoxAdmissionError", "%s", text) }

func revoked() error { return refuse("Sandbox admission grant revision was revoked") }

// expired reports whether a grant has expired: by the wall clock, or by the monotonic time since it came, in case that
// clock is set back.
func (b *Grants) expired(r *record) bool { return b.remaining(r) <= 0 }

// remaining returns how long a grant is still in force.
func (b *Grants) remaining(r *record) time.Duration {
	return min(r.until-time.Since(b.start), r.grant.Expires.Sub(b.now().Round(0)))
}

// find returns the record of a Workspace, which is made if there is room for another one.
func (b *Grants) find(namespace string, limit int) (*record, error) {
	r := b.records[namespace]
	if r == nil {
		if len(b.records) >= limit {
			return nil, refuse("Sandbox admission record capacity reached; refusing an unbounded Workspace fence allocation")
		}
		r = &record{}
		b.records[namespace] = r
	}
	return r, nil
}

// Drop is which sessions of a Workspace a grant ends.
type Drop int

// Sessions that may be ended.
const (
	DropOthers Drop = iota // all but the one that a Workspace may have
	DropAll
	DropNone
)

// Weigh reports whether a grant may be installed, and what it ends. If all sessions end, the old grant is no longer in
// force. A grant returned as have is in force already and lasts longer: nothing changes.
func (b *Grants) Weigh(namespace string, g *Grant, p *Policy, limit int) (have *Grant, drop Drop, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now().Round(0)
	switch {
	case !now.Before(g.Expires):
		return nil, DropNone, refuse("Cannot install an expired sandbox admission grant")
	case g.Expires.After(now.Add(p.MaxGrant)):
		return nil, DropNone, refuse("Sandbox admission grant lifetime exceeds the configured maximum")
	case g.MaxSessions > p.MaxSessions:
		return nil, DropNone, refuse("Sandbox admission grant exceeds the session cap")
	case g.MaxProcesses > p.MaxProcesses:
		return nil, DropNone, refuse("Sandbox admission grant exceeds the managed-process cap")
	}
	r, err := b.find(namespace, limit)
	switch {
	case err != nil:
		return nil, DropNone, err
	case g.Revision <= r.revoked:
		return nil, DropNone, revoked()
	case g.Revision < r.revision:
		return nil, DropNone, refuse("Sandbox admission grant revision is stale")
	case g.Generation < r.generation:
		return nil, DropNone, refuse("Sandbox admission execution generation is stale")
	case g.Revision == r.revision && r.limits && (g.MaxSessions != r.sessions || g.MaxProcesses != r.processes):
		return nil, DropNone, refuse("Sandbox admission limits changed without a new entitlement revision")
	}
	if r.grant != nil && b.expired(r) {
		r.grant = nil
	}
	old := r.grant
	switch {
	case old != nil && old.Revision == g.Revision && old.Generation == g.Generation && g.Expires.Before(old.Expires):
		return old, DropNone, nil
	case old == nil || old.Generation != g.Generation || g.MaxSessions == 0:
		r.grant = nil
		return nil, DropAll, nil
	}
	return nil, DropOthers, nil
}

// Install puts a grant in force that was weighed in the same turn, unless it was revoked meanwhile.
func (b *Grants) Install(namespace string, g *Grant, drop Drop) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := b.records[namespace]
	switch {
	case r == nil:
		return nil // it was not weighed
	case g.Revision <= r.revoked:
		return revoked()
	}
	if drop == DropAll || r.grant == nil {
		b.epoch++
		r.epoch = b.epoch
	}
	r.grant, r.until = g, time.Since(b.start)+g.Expires.Sub(b.now().Round(0))
	r.revision, r.generation, r.sessions, r.processes, r.limits = g.Revision, g.Generation, g.MaxSessions, g.MaxProcesses, true
	b.notify()
	return nil
}

// Revoke withdraws a grant and remembers that. It needs no turn: a grant that was weighed but is not in force yet will
// not be installed.
func (b *Grants) Revoke(namespace string, v *Revocation, limit int) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	r, err := b.find(namespace, limit)
	if err != nil {
		return err
	}
	if v.Revision < max(r.revision, r.revoked) {
		return refuse("Sandbox admission revocation is stale")
	}
	r.grant, r.revision, r.revoked = nil, v.Revision, v.Revision
	return nil
}

// Pass is the admission of a Workspace.
type Pass struct {
	Grant Grant
	epoch uint64
}

// Admit decides whether a Workspace may have a session in a generation.
func (b *Grants) Admit(namespace string, generation int64, p *Policy) (*Pass, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := b.records[namespace]
	switch {
	case r == nil || r.grant == nil:
		return nil, refuse("Sandbox admission grant is missing")
	case b.expired(r):
		return nil, refuse("Sandbox admission grant has expired")
	case r.grant.Generation != generation:
		return nil, refuse("Sandbox admission grant belongs to another execution generation")
	case r.grant.MaxSessions <= 0:
		return nil, refuse("Sandbox admission grant does not permit sessions")
	case r.grant.MaxSessions > p.MaxSessions || r.grant.MaxProcesses > p.MaxProcesses:
		return nil, refuse("Sandbox admission grant exceeds the active runtime policy")
	}
	return &Pass{Grant: *r.grant, epoch: r.epoch}, nil
}

// Still refuses what was admitted and no longer is, even if it would be admitted again.
func (b *Grants) Still(namespace string, generation int64, p *Policy, pass *Pass) error {
	now, err := b.Admit(namespace, generation, p)
	if err == nil && now.epoch != pass.epoch {
		err = refuse("Sandbox admission grant is missing")
	}
	return err
}

// Expire removes expired grants, and returns when to look again: 0 if none is left to expire.
func (b *Grants) Expire() (some bool, next time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, r := range b.records {
		if r.grant == nil {
			continue
		}
		switch remaining := b.remaining(r); {
		case remaining <= 0:
			r.grant, some = nil, true
		case next == 0 || remaining < next:
			next = remaining
		}
	}
	return some, next
}

// Changed receives a notice when there is a new expiry, or after Lookup.
func (b *Grants) Changed() <-chan struct{} { return b.changed }

// Lookup makes the receiver of Changed look again.
func (b *Grants) Lookup() { b.notify() }

func (b *Grants) notify() {
	select {
	case b.changed <- struct{}{}:
	default: // a notice is pending already
	}
}
