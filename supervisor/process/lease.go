// SPDX-License-Identifier: Apache-2.0

package process

import "time"

// Renew begins the lease anew.
func (p *Process) Renew() {
	p.mu.Lock()
	p.used = time.Now()
	p.mu.Unlock()
	p.wake()
}

// wake makes Drive look at what is due.
func (p *Process) wake() {
	select {
	case p.poke <- struct{}{}:
	default: // it has been told
	}
}

// firstLease is the least lease of a process nobody has been attached to, or that a new boxd has found.
const firstLease = 30 * time.Second

// leaseEndLocked is when the lease ends, if nobody comes. Whose connection ends because boxd does has not gone.
func (p *Process) leaseEndLocked() (time.Time, bool) {
	if p.spec.Lease == nil || len(p.all) > 0 || p.leaving() {
		return time.Time{}, false
	}
	lease := *p.spec.Lease
	if !p.seen {
		lease = max(lease, firstLease)
	}
	return p.used.Add(lease), true
}

// leaving reports whether whoever goes will be back.
func (p *Process) leaving() bool { return p.hooks.Leaving != nil && p.hooks.Leaving() }
