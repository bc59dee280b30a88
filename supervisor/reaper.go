// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"time"
)

// reapAtLeast bounds the sleep of the reaper, so that a jump of the wall clock is noticed.
const reapAtLeast = 30 * time.Second

// reapLate is how late the reaper may be on a host that is busy.
const reapLate = time.Minute

// reap ends sessions when their time is over. It is a timer of its own: nothing has to be called for
// a session to end.
func (v *Supervisor) reap(ctx context.Context) {
	timer := time.NewTimer(reapAtLeast)
	defer timer.Stop()
	for {
		timer.Reset(v.endDue(time.Now()))
		select {
		case <-timer.C:
		case <-v.poke:
		case <-ctx.Done():
			return
		}
	}
}

// endDue starts the end of every session whose time is over and returns how long until the next is.
func (v *Supervisor) endDue(now time.Time) time.Duration {
	all := v.all()
	v.ended.Expire(now)
	v.mu.Lock()
	v.nextLook = now.Add(reapAtLeast) // whoever has an earlier deadline from here on tells
	v.mu.Unlock()
	wait := reapAtLeast
	for _, s := range all {
		at, why := s.Expiry()
		switch {
		case at.IsZero():
		case at.After(now):
			wait = min(wait, at.Sub(now))
		default:
			v.work.Go(func() { _ = v.End(v.life, s, why) }) // logged where it fails
			continue
		}
		if at := s.IdleAt(); at.After(now) {
			wait = min(wait, at.Sub(now))
		} else if !at.IsZero() {
			v.work.Go(func() { v.freezeIdle(s) })
		}
	}
	v.mu.Lock()
	v.nextLook = now.Add(wait)
	v.mu.Unlock()
	return wait
}

// wakeReaper makes the reaper look at once.
func (v *Supervisor) wakeReaper() {
	select {
	case v.poke <- struct{}{}:
	default: // it has been told
	}
}

// due tells the reaper of an end, if it does not know of one that is earlier; a zero time is now.
func (v *Supervisor) due(at time.Time) {
	v.mu.Lock()
	early := at.Before(v.nextLook)
	v.mu.Unlock()
	if early || at.IsZero() {
		v.wakeReaper()
	}
}
