// SPDX-License-Identifier: Apache-2.0

package process

import "time"

// Renew restarts the lease.
func (p *Process) Renew() {
	p.mu.Lock()
	p.used = time.Now()
	p.mu.Unlock()
	p.wake()
}

// wake makes Drive check what is due.
func (p *Process) wake() {
	select {
	case p.wakeup <- struct{}{}:
	default: // it is already pending
	}
}

// firstLease is the minimum lease of a process that no client has attached to yet, or that a new boxd has adopted.
const firstLease = 30 * time.Second

// leaseEndLocked is when the lease ends if no client attaches. One disconnected by the exit of boxd has not left.
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

// leaving reports whether clients that disconnect now will be back.
func (p *Process) leaving() bool { return p.hooks.Leaving != nil && p.hooks.Leaving() }
