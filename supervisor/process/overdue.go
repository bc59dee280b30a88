// SPDX-License-Identifier: Apache-2.0

// A watchdog reports that something should have happened and has not. A boxd that was stopped by a signal, or starved of CPU,
// finds its timers expired before it has read what happened meanwhile. So the watchdog checks a second time, a little later, in
// time that boxd has really run.

package process

import (
	"sync"
	"time"
)

// again is the delay of the second check: enough to read what has arrived.
const again = 5 * time.Second

// Timer calls a function when it is overdue.
type Timer struct {
	expired func()

	mu     sync.Mutex // guards the fields below
	timer  *time.Timer
	due    time.Time // zero: stopped
	second bool      // it has been due once
}

// After returns a Timer that calls expired in its own goroutine, a few seconds after d has passed.
func After(d time.Duration, expired func()) *Timer {
	t := &Timer{expired: expired, due: time.Now().Add(d)}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.timer = time.AfterFunc(d, t.check)
	return t
}

// Reset restarts a Timer with d, even one that was stopped or has called its function.
func (t *Timer) Reset(d time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.set(d, false)
}

// Stop prevents the call of the function, unless that has begun.
func (t *Timer) Stop() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.timer.Stop()
	t.due = time.Time{}
}

// Left is how long it is until the Timer is due, negative if it was due or is stopped.
func (t *Timer) Left() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return time.Until(t.due)
}

func (t *Timer) set(d time.Duration, second bool) {
	t.due, t.second = time.Now().Add(d), second
	t.timer.Reset(d)
}

func (t *Timer) check() {
	if t.overdue() {
		t.expired()
	}
}

// overdue reports whether this is the second check. The Timer may have been reset since a check began.
func (t *Timer) overdue() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.due.IsZero() || time.Now().Before(t.due):
		return false
	case !t.second:
		t.set(again, true)
		return false
	}
	t.due = time.Time{}
	return true
}
