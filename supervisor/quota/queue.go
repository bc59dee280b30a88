// SPDX-License-Identifier: Apache-2.0

// The queue in which starts and executions wait for their turn. It is bounded in length and time, and fair between
// principals.

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
	Sessions   Reason = "sessions"   // there are as many as the host may have
	Owner      Reason = "owner"      // there are as many as this principal may have
	Starts     Reason = "starts"     // as many are being started as may be at a time
	Executions Reason = "executions" // the session has as many under way as it may
	Disk       Reason = "disk"       // less is free than is to be kept
	Memory     Reason = "memory"     // less is free than is to be kept
	Pressure   Reason = "pressure"   // the host is busier than a new session may find it
)

// Full is the error of an attempt that may succeed later.
type Full struct {
	Reason Reason
	Own    bool  // it stands in the way of this one's principal alone
	Soon   bool  // it passes by itself in a moment, and is waited for whoever cannot wait for more
	Err    error // what a caller is told who does not wait any longer
	// Holders says who holds what is asked for, and whether it is of no use to wait for them as long as that, as far as is known.
	// It is called once where somebody begins to wait, and once where that is refused. nil: nobody.
	Holders func(wait time.Duration) (names string, futile bool)
}

func (f *Full) Error() string { return f.Err.Error() }

// Unwrap returns what a caller is told.
func (f *Full) Unwrap() error { return f.Err }

// QueueLimits bound the line.
type QueueLimits struct {
	Length int           // of all who wait
	Wait   time.Duration // the longest that anybody waits
}

// Waiter says who waits, and for what.
type Waiter struct {
	Caller string         // those of one name wait in order, and take turns with the others
	What   string         // shown to whoever looks at the line
	Wait   *time.Duration // nil: as long as the limits allow, which are not exceeded anyway
}

// Position is one that waits, as it stands now.
type Position struct {
	Caller, What string
	Position     int // 1 is next
	Reason       Reason
	Since        time.Time
}

// soonest is how long is waited for what passes by itself.
const soonest = time.Minute

// Queue is where starts wait. Its zero value is not of use: see New.
type Queue struct {
	limits func() QueueLimits
	some   chan struct{} // has a word when somebody has begun to wait

	mu    sync.Mutex // guards the fields below, and is held while somebody tries
	order []string   // the names of those who wait, in the order of their turns
	lines map[string][]*waiter
	count int
}

type waiter struct {
	Waiter
	try   func() error
	since time.Time
	full  *Full         // what the last attempt has come to
	done  chan struct{} // closed with err
	err   error
}

// NewQueue returns an empty line. limits is asked whenever somebody comes.
func NewQueue(limits func() QueueLimits) *Queue {
	return &Queue{limits: limits, some: make(chan struct{}, 1), lines: map[string][]*waiter{}}
}

// Admit calls try, in turn, until that returns anything but a *Full, which is then the result. try must not
// block; it is called by whoever wakes the line, one at a time. When it has succeeded, Admit does, even if ctx
// has ended meanwhile. Otherwise the result is the error of ctx, or what Full says when the time or the line
// is up.
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
	if w.full == nil { // it has not come to it, as somebody is in the way of all
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
	default: // Run knows
	}
	return l.await(ctx, w, wait)
}

// passThrough lets somebody try at once where nobody waits. What says Full takes a place in the line, and tries there again.
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

// await waits for the turn of one that stands in the line.
func (l *Queue) await(ctx context.Context, w *waiter, wait time.Duration) error {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		var err error
		late := false
		select {
		case <-w.done:
			return w.err
		case <-ctx.Done():
			err = ctx.Err()
		case <-timer.C:
			late = true
		}
		l.mu.Lock()
		select {
		case <-w.done: // just now
			l.mu.Unlock()
			return w.err
		default:
		}
		left := soonest - time.Since(w.since)
		if late && w.full.Soon && left > 0 {
			timer.Reset(left)
			l.mu.Unlock()
			continue
		}
		if late {
			err = refuse(w.full, "gave up after %v", waited(time.Since(w.since)))
		}
		l.dropLocked(w)
		l.turnLocked() // it may have stood in the way of others
		l.mu.Unlock()
		return err
	}
}

// Refusal is what a caller is told at once, with who holds what was asked for.
func (f *Full) Refusal() error { return refuse(f, "") }

func (f *Full) futile(wait time.Duration) bool {
	if f.Holders == nil {
		return false
	}
	_, futile := f.Holders(wait)
	return futile
}

// refuse says of a refusal who holds what was asked for, and how it came about; "": at once.
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

// Wake lets all try whose turn it is. It is to be called when there may be room again.
func (l *Queue) Wake() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.turnLocked()
}

// look is how often those who wait try without being told of anything: what they wait for may be the host's.
const look = 250 * time.Millisecond

// Run sees to those who wait for something that nobody tells of. It returns when ctx ends.
func (l *Queue) Run(ctx context.Context) {
	ticker := time.NewTicker(look)
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

// Len is how many wait.
func (l *Queue) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.count
}

// Waits reports whether anybody of a name does.
func (l *Queue) Waits(who string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.lines[who]) > 0
}

// Waiting lists those who wait, in the order in which they would be let in if nothing but the line kept them.
func (l *Queue) Waiting() []Position {
	l.mu.Lock()
	defer l.mu.Unlock()
	places := make([]Position, 0, l.count)
	for depth := 0; len(places) < l.count; depth++ {
		for _, who := range l.order {
			if line := l.lines[who]; depth < len(line) {
				w := line[depth]
				p := Position{Caller: who, What: w.What, Position: len(places) + 1, Since: w.since}
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

// dropLocked takes one out of the line that still stands there.
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

// turnLocked lets one after the other try: the first of each name, in turns, until something stands in the
// way of all.
func (l *Queue) turnLocked() {
	for i := 0; i < len(l.order); {
		who := l.order[i]
		w := l.lines[who][0]
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
			if len(l.lines[who]) > 0 { // the others come first now
				l.order = append(slices.Delete(l.order, i, i+1), who)
			}
		}
	}
}

// blockerLocked is what keeps one that has not tried: what the first of its name waits for, or of all.
func (l *Queue) blockerLocked(w *waiter) *Full {
	if head := l.lines[w.Caller][0].full; head != nil {
		return head
	}
	for _, who := range l.order {
		if full := l.lines[who][0].full; full != nil && !full.Own {
			return full
		}
	}
	return &Full{Reason: Starts, Soon: true, Err: fault.Errorf(fault.Unavailable, "others are waiting longer").WithHint("try again")}
}

// waited is how long a request has waited, in as many digits as a person reads.
func waited(d time.Duration) quantity.Duration {
	if d < time.Second {
		return quantity.Duration(max(d.Round(time.Millisecond), time.Millisecond))
	}
	return quantity.Duration(d.Round(100 * time.Millisecond))
}
