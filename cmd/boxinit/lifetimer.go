// SPDX-License-Identifier: Apache-2.0

// How long a box lives without boxd.

package main

import (
	"time"

	"github.com/boxd-dev/boxd/isolation"
)

// lifeTimer decides when a box without boxd ends. All its times are readings of one clock that
// starts at zero; no event happens at zero.
type lifeTimer struct {
	times      isolation.Times
	end        time.Duration // 0: none
	orphanedAt time.Duration // when boxd went; 0: boxd is connected
	idleSince  time.Duration // when the last program ended
	running    bool
}

// Set replaces the times by those that boxd has sent.
func (l *lifeTimer) Set(t *isolation.Times, now time.Duration) {
	l.times, l.end = *t, 0
	if t.End > 0 {
		l.end = now + t.End
	}
}

// Idle records that a program has ended.
func (l *lifeTimer) Idle(now time.Duration) { l.idleSince = now }

// Running records whether any process runs.
func (l *lifeTimer) Running(running bool) { l.running = running }

// markLost records that boxd has gone.
func (l *lifeTimer) markLost(now time.Duration) { l.orphanedAt = now }

// markConnected records that another boxd has connected. The times that an earlier one set stay in force until this one sets others, as it
// may go before it does.
func (l *lifeTimer) markConnected() { l.orphanedAt = 0 }

// End returns when the box ends unless boxd connects before: 0 while boxd is connected, or if
// nothing ends the box. No boxd can connect to a box that is not adoptable.
func (l *lifeTimer) End(adoptable bool) time.Duration {
	if l.orphanedAt == 0 {
		return 0
	}
	if !adoptable || l.times.Grace == 0 && !l.times.Parked {
		return l.orphanedAt
	}
	at := l.end
	atMost := func(t time.Duration) {
		if at == 0 || t < at {
			at = t
		}
	}
	if !l.times.Parked {
		atMost(l.orphanedAt + l.times.Grace)
	}
	if l.times.Idle > 0 && !l.running {
		atMost(max(l.idleSince, l.orphanedAt) + l.times.Idle)
	}
	return at
}
