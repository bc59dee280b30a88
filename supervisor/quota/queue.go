// SPDX-License-Identifier: Apache-2.0

// The queue in which starts and executions wait. It is bounded in length and time, and fair between principals.

package quota

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/quantity"
)

// Reason is why a start waits. The set is closed.
type Reason string

// The reasons.
const (
	Sessions   Reason = "sessions"   // the host has its maximum
	Owner      Reason = "owner"      // the principal has its maximum
	Starts     Reason = "starts"     // the maximum of concurrent starts is reached
	Executions Reason = "executions" // the session runs its maximum
	Disk       Reason = "disk"       // less is free than the reserve
	Memory     Reason = "memory"     // less is free than the reserve
	Pressure   Reason = "pressure"   // the host is too busy for a new session
)

// Full is the error of an attempt that may succeed later.
type Full struct {
	Reason Reason
	Own    bool  // it blocks only this caller's principal
	Soon   bool  // it passes by itself in a moment, and even callers that cannot wait otherwise wait for it
	Err    error // for a caller that does not wait any longer
	// Holders names the holders of the resource, and says whether waiting this long for them is futile, as far as is known. It is
	// called once when a caller begins to wait, and once when that is refused. nil: none.
	Holders func(wait time.Duration) (names string, futile bool)
}

func (f *Full) Error() string { return f.Err.Error() }

// Unwrap returns the error for the caller.
func (f *Full) Unwrap() error { return f.Err }

// QueueLimits bound the queue.
type QueueLimits struct {
	Length int           // of all waiters
	Wait   time.Duration // the longest wait
}

// Waiter identifies a waiting request.
type Waiter struct {
	Caller string         // waiters of one caller stay in order, and callers take turns
	What   string         // shown when the queue is listed
	Wait   *time.Duration // nil: as long as the limits allow; never longer
}

// Position is a waiting request in the queue.
type Position struct {
	Caller, What string
	Position     int // 1 is next
	Reason       Reason
	Since        time.Time
}

// soonest is how long to wait for a Full that is Soon.
const soonest = time.Minute

// Queue is where starts wait. Use NewQueue: the zero value is not usable.
type Queue struct {
	limits func() QueueLimits
	some   chan struct{} // signalled when a request begins to wait

	mu    sync.Mutex // guards the fields below, also during an attempt
	order []string   // callers with waiting requests, in order of their turns
	lines map[string][]*waiter
	count int
}

type waiter struct {
	Waiter
	try   func() error
	since time.Time
	full  *Full         // result of the last attempt
	done  chan struct{} // closed with err
	err   error
}

// NewQueue returns an empty queue. limits is called for every request.
func NewQueue(limits func() QueueLimits) *Queue {
	return &Queue{limits: limits, some: make(chan struct{}, 1), lines: map[string][]*waiter{}}
}

// Admit calls try, in turn, until that returns anything but a *Full, which is then the result. try must not block; it is called
// by any goroutine that wakes the queue, one at a time. When it has succeeded, Admit does, even if ctx has ended meanwhile.
// Otherwise the result is the error of ctx, or that of the Full when the time is up or the queue is full.
func (l *Queue) Admit(ctx context.Context, t Waiter, try func() error) error {
	if done, err := l.passThrough(try); done {
		return err
	}
	limits := l.limits()
	wait := max(limits.Wait, 0)
	if t.Wait != nil {
		wait = min(wait, max(*t.Wait, 0))
	}
	w := &waiter{Waiter: t, try: try, since: time.Now(), done: make(chan struct{})}
	l.mu.Lock()
	l.pushLocked(w)
	l.turnLocked()
	select {
	case <-w.done:
		l.mu.Unlock()
		return w.err
	default:
	}
	if w.full == nil { // not tried yet, as another request blocks all
		w.full = l.blockerLocked(w)
	}
	var refusal error
	if l.count > max(limits.Length, 0) {
		refusal = refuse(w.full, "the queue of %d is full (queue.length)", limits.Length)
	} else if (wait == 0 || w.full.futile(wait)) && !w.full.Soon {
		refusal = w.full.Refusal()
	}
	if refusal != nil {
		l.dropLocked(w)
		l.mu.Unlock()
		return refusal
	}
	l.mu.Unlock()
	select {
	case l.some <- struct{}{}:
	default: // Run already knows
	}
	return l.await(ctx, w, wait)
}

// passThrough tries at once if no request waits. After a Full the request queues, and tries again there.
func (l *Queue) passThrough(try func() error) (done bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.count > 0 {
		return false, nil
	}
	err = try()
	_, full := errors.AsType[*Full](err)
	return !full, err
}

// await waits for the turn of a queued request.
func (l *Queue) await(ctx context.Context, w *waiter, wait time.Duration) error {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		var err error
		expired := false
		select {
		case <-w.done:
			return w.err
		case <-ctx.Done():
			err = ctx.Err()
		case <-timer.C:
			expired = true
		}
		l.mu.Lock()
		select {
		case <-w.done: // just finished
			l.mu.Unlock()
			return w.err
		default:
		}
		left := soonest - time.Since(w.since)
		if expired && w.full.Soon && left > 0 {
			timer.Reset(left)
			l.mu.Unlock()
			continue
		}
		if expired {
			err = refuse(w.full, "gave up after %v", waited(time.Since(w.since)))
		}
		l.dropLocked(w)
		l.turnLocked() // it may have blocked others
		l.mu.Unlock()
		return err
	}
}

// Refusal returns the immediate error, with the holders of the resource.
func (f *Full) Refusal() error { return refuse(f, "") }

func (f *Full) futile(wait time.Duration) bool {
	if f.Holders == nil {
		return false
	}
	_, futile := f.Holders(wait)
	return futile
}

// refuse adds to a refusal who holds the resource, and the circumstances; "": refused at once.
func refuse(full *Full, format string, args ...any) error {
	f, ok := errors.AsType[*fault.Error](full.Err)
	if !ok {
		return full.Err
	}
	g := *f
	if full.Holders != nil {
		if names, _ := full.Holders(0); names != "" {
			g.Err = fmt.Errorf("%w; held by %s", g.Err, names)
		}
	}
	if format != "" {
		g.Err = fmt.Errorf("%w; "+format, append([]any{g.Err}, args...)...)
	}
	return &g
}

// Wake lets all requests try whose turn it is. Call it when there may be room again.
func (l *Queue) Wake() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.turnLocked()
}

// interval is how often waiting requests retry without notification: the resource may be the host's.
const interval = 250 * time.Millisecond

// Run retries requests that wait for something without notification. It returns when ctx ends.
func (l *Queue) Run(ctx context.Context) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-l.some:
		case <-ctx.Done():
			return
		}
		for l.Len() > 0 {
			select {
			case <-ticker.C:
				l.Wake()
			case <-ctx.Done():
				return
			}
		}
	}
}

// Len returns how many requests wait.
func (l *Queue) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.count
}

// Waits reports whether requests of a caller wait.
func (l *Queue) Waits(principal string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.lines[principal]) > 0
}

// Waiting lists the waiting requests, in the order of admission if only the queue held them back.
func (l *Queue) Waiting() []Position {
	l.mu.Lock()
	defer l.mu.Unlock()
	places := make([]Position, 0, l.count)
	for depth := 0; len(places) < l.count; depth++ {
		for _, principal := range l.order {
			if line := l.lines[principal]; depth < len(line) {
				w := line[depth]
				p := Position{Caller: principal, What: w.What, Position: len(places) + 1, Since: w.since}
				if w.full != nil {
					p.Reason = w.full.Reason
				} else if head := line[0].full; head != nil {
					p.Reason = head.Reason
				}
				places = append(places, p)
			}
		}
	}
	return places
}

func (l *Queue) pushLocked(w *waiter) {
	if len(l.lines[w.Caller]) == 0 {
		l.order = append(l.order, w.Caller)
	}
	l.lines[w.Caller] = append(l.lines[w.Caller], w)
	l.count++
}

// dropLocked removes a request that is still queued.
func (l *Queue) dropLocked(w *waiter) {
	line := l.lines[w.Caller]
	i := slices.Index(line, w)
	if i < 0 {
		return
	}
	l.count--
	if line = slices.Delete(line, i, i+1); len(line) > 0 {
		l.lines[w.Caller] = line
		return
	}
	delete(l.lines, w.Caller)
	at := slices.Index(l.order, w.Caller)
	l.order = slices.Delete(l.order, at, at+1)
}

// turnLocked lets requests try: the first of each caller, in turns, until something blocks all.
func (l *Queue) turnLocked() {
	for i := 0; i < len(l.order); {
		principal := l.order[i]
		w := l.lines[principal][0]
		err := w.try()
		full, is := errors.AsType[*Full](err)
		switch {
		case is && full.Own:
			w.full = full
			i++
		case is:
			w.full = full
			return
		default:
			w.err = err
			l.dropLocked(w)
			close(w.done)
			if len(l.lines[principal]) > 0 { // other callers come first now
				l.order = append(slices.Delete(l.order, i, i+1), principal)
			}
		}
	}
}

// blockerLocked returns what blocks a request that has not tried: what the first of its caller waits for, or of all.
func (l *Queue) blockerLocked(w *waiter) *Full {
	if head := l.lines[w.Caller][0].full; head != nil {
		return head
	}
	for _, principal := range l.order {
		if full := l.lines[principal][0].full; full != nil && !full.Own {
			return full
		}
	}
	return &Full{Reason: Starts, Soon: true, Err: fault.Errorf(fault.Unavailable, "others are waiting longer").WithHint("try again")}
}

// waited rounds a waiting time for people.
func waited(d time.Duration) quantity.Duration {
	if d < time.Second {
		return quantity.Duration(max(d.Round(time.Millisecond), time.Millisecond))
	}
	return quantity.Duration(d.Round(100 * time.Millisecond))
}
