// SPDX-License-Identifier: Apache-2.0

// Package places limits how many callers do the same thing at a time, with a share for each of them.
package places

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
)

// Limit is safe for concurrent use. Its fields are set before its first use.
type Limit struct {
	All, Each int           // places: of everybody, of one caller
	Patience  time.Duration // how long Enter waits for one; 0: it does not
	Of        string        // what the places are for, as in "2 archives are being received"
	Hint      string        // what a caller that gets none can do

	mu    sync.Mutex
	own   map[string]int // taken, by caller
	all   int
	queue []*waiter
}

// waiter is somebody who waits for a place.
type waiter struct {
	caller string
	in     chan struct{} // closed when it has one
}

// Enter takes a place for a caller. Whoever has waited longest has the next that is free and within its share. release gives the place
// back; it must be called once. The error is of kind fault.Exhausted if there was none in time, or the cause of ctx's end.
func (l *Limit) Enter(ctx context.Context, caller string) (release func(), err error) {
	release = func() { l.leave(caller) }
	w := l.take(caller)
	if w == nil {
		return release, nil
	}
	if l.Patience > 0 {
		timer := time.NewTimer(l.Patience)
		defer timer.Stop()
		select {
		case <-w.in:
			return release, nil
		case <-ctx.Done():
			err = context.Cause(ctx)
		case <-timer.C:
		}
	}
	if l.drop(w) { // it has just been given one
		return release, nil
	}
	if err == nil {
		err = l.full(caller)
	}
	return nil, err
}

// Taken returns how many places are taken.
func (l *Limit) Taken() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all
}

// take takes a place, or waits in the queue.
func (l *Limit) take(caller string) *waiter {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.takeLocked(caller) {
		return nil
	}
	w := &waiter{caller, make(chan struct{})}
	l.queue = append(l.queue, w)
	return w
}

func (l *Limit) takeLocked(caller string) bool {
	if l.all >= l.All || l.own[caller] >= l.Each {
		return false
	}
	if l.own == nil {
		l.own = map[string]int{}
	}
	l.all++
	l.own[caller]++
	return true
}

// drop removes somebody from the queue who waits no longer, and reports whether it has a place.
func (l *Limit) drop(w *waiter) (in bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.Index(l.queue, w)
	if i < 0 {
		return true
	}
	l.queue = slices.Delete(l.queue, i, i+1)
	return false
}

func (l *Limit) leave(caller string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all--
	if l.own[caller]--; l.own[caller] == 0 {
		delete(l.own, caller)
	}
	l.queue = slices.DeleteFunc(l.queue, func(w *waiter) bool {
		in := l.takeLocked(w.caller)
		if in {
			close(w.in)
		}
		return in
	})
}

func (l *Limit) full(caller string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return fault.Errorf(fault.Exhausted, "%d %s, and %d of them are yours: at most %d, and %d for each caller", l.all, l.Of, l.own[caller], l.All, l.Each).WithHint("%s", l.Hint)
}
