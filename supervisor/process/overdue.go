// SPDX-License-Identifier: Apache-2.0

// A watchdog says when something should have happened and has not. A boxd that was stopped by a signal, or starved
// of CPU, has not read yet what happened meanwhile, and its timers are due before it has read a word. So the
// watchdog looks again a little later, in time that boxd has really run.

package process

import (
	"sync"
	"time"
)

// again is how long after the first look the second one is: enough to read what has come.
const again = 5 * time.Second

// Timer calls a function when it is overdue.
type Timer struct {
	late func()

	mu     sync.Mutex // guards the fields below
	timer  *time.Timer
	due    time.Time // zero: stopped
	second bool      // it has been due once
}

// After returns a Timer that calls late, in a goroutine of its own, when d has passed and a few seconds more.
func After(d time.Duration, late func()) *Timer {
	t := &Timer{late: late, due: time.Now().Add(d)}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.timer = time.AfterFunc(d, t.check)
	return t
}

// Reset lets d begin anew, also of a Timer that was stopped or has called its function.
func (t *Timer) Reset(d time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.set(d, false)
}

// Stop keeps the function from being called, but for a call that has begun.
func (t *Timer) Stop() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.timer.Stop()
	t.due = time.Time{}
}

// Left is how long it is until the Timer is due, negative when it has been or is stopped.
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
		t.late()
	}
}

// overdue reports whether this is the second look. A Timer may have been set anew while a look began.
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
