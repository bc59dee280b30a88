// SPDX-License-Identifier: Apache-2.0

// How long a box lives without boxd.

package inside

import (
	"time"

	"github.com/boxd-dev/boxd/isolation"
)

// LifeTimer is that of one box. All times are of one clock that starts at zero, which no event happens at.
type LifeTimer struct {
	times   isolation.Times
	end     time.Duration // 0: none
	orphan  time.Duration // since when; 0: boxd is there
	idle    time.Duration // since when nothing runs
	running bool
}

// Set takes what boxd says.
func (l *LifeTimer) Set(t *isolation.Times, now time.Duration) {
	l.times, l.end = *t, 0
	if t.End > 0 {
		l.end = now + t.End
	}
}

// Idle says that a program has ended.
func (l *LifeTimer) Idle(now time.Duration) { l.idle = now }

// Running says whether anything runs.
func (l *LifeTimer) Running(is bool) { l.running = is }

// MarkLost says that boxd has gone.
func (l *LifeTimer) MarkLost(now time.Duration) { l.orphan = now }

// Find says that another boxd has come. What an earlier one has said holds until this one says something else: it
// may go again before it has.
func (l *LifeTimer) Find() { l.orphan = 0 }

// End is when the box ends unless boxd comes: 0 while that is there, or if nothing ends the box. No boxd can
// come to a box that is not adoptable.
func (l *LifeTimer) End(adoptable bool) time.Duration {
	if l.orphan == 0 {
		return 0
	}
	if !adoptable || l.times.Grace == 0 && !l.times.Parked {
		return l.orphan
	}
	at := l.end
	sooner := func(t time.Duration) {
		if at == 0 || t < at {
			at = t
		}
	}
	if !l.times.Parked {
		sooner(l.orphan + l.times.Grace)
	}
	if l.times.Idle > 0 && !l.running {
		sooner(max(l.idle, l.orphan) + l.times.Idle)
	}
	return at
}
