// SPDX-License-Identifier: Apache-2.0

package quota_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/supervisor/quota"
)

// queueFixture has room for so many callers, in all and per name.
type queueFixture struct {
	mu   sync.Mutex
	room int
	own  int
	in   map[string]int
	log  []string
}

func (h *queueFixture) enter(caller, what string) func() error {
	return func() error {
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.own > 0 && h.in[caller] >= h.own {
			return &quota.Full{Reason: quota.Owner, Own: true, Err: fault.Errorf(fault.Exhausted, "%s has enough", caller)}
		}
		if h.room == 0 {
			return &quota.Full{Reason: quota.Sessions, Err: fault.Errorf(fault.Exhausted, "full").WithHint("wait")}
		}
		h.room--
		h.in[caller]++
		h.log = append(h.log, what)
		return nil
	}
}

func (h *queueFixture) leave(caller string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.room++
	h.in[caller]--
}

func (h *queueFixture) entered() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return strings.Join(h.log, " ")
}

func line(length int, wait time.Duration) *quota.Queue {
	return quota.NewQueue(func() quota.QueueLimits { return quota.QueueLimits{Length: length, Wait: wait} })
}

func ticket(caller, what string) quota.Waiter { return quota.Waiter{Caller: caller, What: what} }

func TestQueuedOwnersTakeTurns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, h := line(100, time.Hour), &queueFixture{in: map[string]int{}}
		var wg sync.WaitGroup
		for _, what := range []string{"a1", "a2", "a3", "b1", "c1", "b2"} {
			wg.Go(func() {
				if err := l.Admit(t.Context(), ticket(what[:1], what), h.enter(what[:1], what)); err != nil {
					t.Errorf("%s: %v", what, err)
				}
			})
			synctest.Wait() // so that they arrive in this order
		}
		var order []string
		for i, p := range l.Waiting() {
			order = append(order, p.What)
			if p.Position != i+1 || p.Reason != quota.Sessions || p.Caller != p.What[:1] {
				t.Errorf("p = %+v, want p.Position == i + 1 and p.Reason == quota.Sessions and p.Caller == p.What[:1]",
					p)
			}
		}
		const want = "a1 b1 c1 a2 b2 a3"
		if got := strings.Join(order, " "); got != want {
			t.Errorf("they are shown as %s, want %s", got, want)
		}
		for range 6 {
			h.leave("nobody")
			l.Wake()
		}
		wg.Wait()
		if got := h.entered(); got != want {
			t.Errorf("admitted in the order %s, want %s", got, want)
		}
		if l.Len() != 0 || len(l.Waiting()) != 0 {
			t.Errorf("%d wait", l.Len())
		}
	})
}

// A caller at its own limit does not block others.
func TestAQueuedCallerAtItsLimitBlocksNoOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, h := line(100, time.Hour), &queueFixture{in: map[string]int{}, own: 1, room: 10}
		var wg sync.WaitGroup
		for i := range 50 {
			wg.Go(func() { _ = l.Admit(t.Context(), ticket("greedy", "g"), h.enter("greedy", fmt.Sprint("g", i))) })
		}
		synctest.Wait()
		for _, who := range []string{"x", "y"} {
			if err := l.Admit(t.Context(), ticket(who, who), h.enter(who, who)); err != nil {
				t.Errorf("%s: %v", who, err)
			}
		}
		if l.Len() != 49 {
			t.Errorf("%d wait", l.Len())
		}
		for range 49 {
			h.leave("greedy")
			l.Wake()
		}
		wg.Wait()
	})
}

func TestWaitsInTheQueueAreBounded(t *testing.T) {
	t.Parallel()
	second := time.Second
	for _, tc := range []struct {
		name    string
		length  int
		wait    *time.Duration
		cancel  time.Duration // 0: never
		elapsed time.Duration
		message string
	}{
		{"the limit", 5, nil, 0, time.Minute, "full; gave up after 1m"},
		{"a request that waits for less", 5, &second, 0, second, "gave up after 1s"},
		{"one that would wait longer", 5, new(time.Hour), 0, time.Minute, "gave up after 1m"},
		{"one that does not wait", 5, new(time.Duration(0)), 0, 0, "full"},
		{"less than nothing", 5, new(-time.Hour), 0, 0, "full"},
		{"no queue", 0, nil, 0, 0, "queue of 0 is full"},
		{"a negative one", -1, nil, 0, 0, "is full"},
		{"a caller who goes", 5, nil, 3 * second, 3 * second, "canceled"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l, h := line(tc.length, time.Minute), &queueFixture{in: map[string]int{}}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if tc.cancel > 0 {
					defer time.AfterFunc(tc.cancel, cancel).Stop()
				}
				start := time.Now()
				err := l.Admit(ctx, quota.Waiter{Caller: "a", Wait: tc.wait}, h.enter("a", "a"))
				if err == nil || !strings.Contains(err.Error(), tc.message) || time.Since(start) != tc.elapsed || l.Len() != 0 {
					t.Errorf("%v after %v, %d wait", err, time.Since(start), l.Len())
				}
				f, ok := errors.AsType[*fault.Error](err)
				if tc.cancel == 0 && (!ok || f.Kind != fault.Exhausted || f.Hint != "wait") {
					t.Errorf(`f = %+v, want tc.cancel != 0 or ok == true and f.Kind == fault.Exhausted and f.Hint == "wait"`,
						f)
				}
				h.leave("nobody")
				l.Wake()
				if h.entered() != "" {
					t.Error("the request was admitted after its wait had ended")
				}
			})
		})
	}
}

func TestTheQueueWaitsForATransientRefusalToPass(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := line(5, 0)
		busy := atomic.Bool{}
		busy.Store(true)
		defer time.AfterFunc(10*time.Second, func() {
			busy.Store(false)
			l.Wake()
		}).Stop()
		start := time.Now()
		try := func() error {
			if busy.Load() {
				return &quota.Full{Reason: quota.Starts, Soon: true, Err: fault.Errorf(fault.Unavailable, "busy")}
			}
			return nil
		}
		if err := l.Admit(t.Context(), ticket("a", ""), try); err != nil || time.Since(start) != 10*time.Second {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		busy.Store(true)
		if err := l.Admit(t.Context(), ticket("a", ""), try); err == nil || time.Since(start) != 70*time.Second {
			t.Errorf("%v after %v: it is not waited for ever", err, time.Since(start))
		}
	})
}

// The host does not report free room: the queue polls it.
func TestTheQueuePollsTheHostForFreeCapacity(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, h := line(5, time.Hour), &queueFixture{in: map[string]int{}}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go l.Run(ctx)
		for range 2 {
			defer time.AfterFunc(time.Minute, func() { h.leave("nobody") }).Stop()
			start := time.Now()
			if err := l.Admit(ctx, ticket("a", "a"), h.enter("a", "a")); err != nil || time.Since(start) > 61*time.Second {
				t.Errorf("%v after %v", err, time.Since(start))
			}
		}
	})
}

// An error that is not Full goes to the caller at once, without waiting.
func TestOtherErrorsAreFinal(t *testing.T) {
	t.Parallel()
	l := line(5, time.Hour)
	want := errors.New("no")
	if err := l.Admit(t.Context(), ticket("a", ""), func() error { return want }); !errors.Is(err, want) || l.Len() != 0 {
		t.Errorf("%v, %d wait", err, l.Len())
	}
}

// Under any mix of arrivals and cancellations no caller is admitted twice, admitted beyond the room, or left behind.
func TestTheQueueAdmitsEachCallerOnceUnderConcurrency(t *testing.T) {
	t.Parallel()
	const room, callers = 8, 10_000
	l, h := line(256, 5*time.Second), &queueFixture{in: map[string]int{}, own: 3, room: room}
	var wg sync.WaitGroup
	var in, most, admitted, refused atomic.Int64
	for i := range callers {
		wg.Go(func() {
			who := fmt.Sprint(i % 5)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if i%7 == 0 {
				defer time.AfterFunc(time.Duration(rand.IntN(1000))*time.Microsecond, cancel).Stop()
			}
			if err := l.Admit(ctx, ticket(who, ""), h.enter(who, "")); err != nil {
				refused.Add(1)
				return
			}
			admitted.Add(1)
			now := in.Add(1)
			for old := most.Load(); now > old && !most.CompareAndSwap(old, now); old = most.Load() {
			}
			in.Add(-1)
			h.leave(who)
			l.Wake()
		})
	}
	wg.Wait()
	if l.Len() != 0 || h.room != room || most.Load() > room || admitted.Load()+refused.Load() != callers || admitted.Load() == 0 {
		t.Errorf("%d wait, %d free places, at most %d admitted at once, %d admitted, %d refused", l.Len(), h.room, most.Load(), admitted.Load(), refused.Load())
	}
}

// A caller that arrives when there is room does not overtake those that wait for it, even before they were woken.
func TestANewRequestDoesNotOvertakeQueuedOnes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := quota.NewQueue(func() quota.QueueLimits { return quota.QueueLimits{Length: 10, Wait: time.Hour} })
		room := false
		var order []int
		admit := func(n int) error {
			return q.Admit(t.Context(), quota.Waiter{Caller: "one"}, func() error {
				if !room {
					return &quota.Full{Reason: quota.Executions, Own: true, Err: errors.New("full")}
				}
				order = append(order, n)
				return nil
			})
		}
		first := make(chan error)
		go func() { first <- admit(1) }()
		synctest.Wait()
		room = true
		if err := errors.Join(admit(2), <-first); err != nil || !slices.Equal(order, []int{1, 2}) {
			t.Errorf("they had their turns as %v: err = %v, want no error and order == []int{1, 2}", order, err)
		}
	})
}
