// SPDX-License-Identifier: Apache-2.0

package quota

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func begin(t *testing.T, turns *StartLimiter, caller string) (end func()) {
	t.Helper()
	end, err := turns.Begin(t.Context(), caller)
	if err != nil {
		t.Fatal(err)
	}
	return end
}

// beginAtOnce is begin for a turn that nobody has to wait for. A wait would end when a turn before it expires.
func beginAtOnce(t *testing.T, turns *StartLimiter, caller string) (end func()) {
	t.Helper()
	since := time.Now()
	end = begin(t, turns, caller)
	if elapsed := time.Since(since); elapsed > 0 {
		t.Errorf("%s has waited for %v", caller, elapsed)
	}
	return end
}

// Callers of one name start in order, so many at a time; callers of another name do not wait for them.
func TestManyStartsOfOneOwnerDelayNoOtherOwner(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		turns := NewStartLimiter(2, time.Hour)
		first, second := begin(t, turns, "crowd"), begin(t, turns, "crowd")
		var order []int
		for n := range 3 {
			go func() {
				end := begin(t, turns, "crowd")
				order = append(order, n)
				end()
			}()
			synctest.Wait()
		}
		if len(order) > 0 {
			t.Fatalf("more than two have begun: %v", order)
		}
		beginAtOnce(t, turns, "quiet")()
		<-time.After(sharing) // the other has gone
		first()
		first() // a second end frees no other's turn
		synctest.Wait()
		if !slices.Equal(order, []int{0, 1, 2}) {
			t.Errorf("they have begun as %v", order)
		}
		second()
		if len(turns.names) != 0 {
			t.Errorf("%d names are not forgotten", len(turns.names))
		}
	})
}

// While another starts programs, a crowd has half the turns, and all of them again when it has not for a while.
func TestABusyOwnerGetsHalfTheStartSlotsWhileAnotherStarts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		turns := NewStartLimiter(4, time.Hour)
		begun := make(chan func(), 100)
		for range 8 {
			go func() { begun <- begin(t, turns, "crowd") }()
		}
		synctest.Wait()
		if len(begun) != 4 {
			t.Fatalf("%d starts of the only caller have begun", len(begun))
		}
		quiet := beginAtOnce(t, turns, "quiet")
		for range 2 {
			(<-begun)()
		}
		synctest.Wait()
		if len(begun) != 2 {
			t.Errorf("with another caller waiting, %d have begun", len(begun))
		}
		(<-begun)()
		synctest.Wait()
		if len(begun) != 2 {
			t.Errorf("after the end of one start %d have begun", len(begun))
		}
		quiet()
		<-time.After(sharing)
		(<-begun)()
		synctest.Wait()
		if len(begun) != 4 {
			t.Errorf("as the only caller again, %d starts have begun", len(begun))
		}
		for range 4 {
			(<-begun)()
		}
		if len(turns.names) != 0 {
			t.Errorf("%d names are not forgotten", len(turns.names))
		}
	})
}

// Turns are shared only while several ask.
func TestStartSlotsAreSharedOnlyWhileSeveralOwnersAreActive(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		turns := NewStartLimiter(2, time.Hour)
		begin(t, turns, "one")()
		<-time.After(sharing)
		first, second := beginAtOnce(t, turns, "other"), beginAtOnce(t, turns, "other")
		first()
		second()
	})
}

// A turn ends after a time: programs that do not end cannot block their owner's next ones.
func TestAStartSlotIsReleasedAfterATimeout(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		turns := NewStartLimiter(1, time.Second)
		since := time.Now()
		var ends []func()
		for range 4 {
			ends = append(ends, begin(t, turns, "a"))
		}
		if elapsed := time.Since(since); elapsed != 3*time.Second {
			t.Errorf("they have waited for %v", elapsed)
		}
		for _, end := range ends {
			end()
		}
		if len(turns.names) != 0 {
			t.Errorf("%d names are not forgotten", len(turns.names))
		}
		first := begin(t, turns, "a")
		ends[0]() // its turn is over
		timeoutCtx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if _, err := turns.Begin(timeoutCtx, "a"); err == nil {
			t.Error("no error: the late end of a turn that was already over gave another one")
		}
		first()
	})
}

// A caller that gives up is skipped, wherever it is in the queue.
func TestTheStartLimiterSkipsACanceledWaiter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		turns := NewStartLimiter(1, time.Hour)
		first := begin(t, turns, "a")
		gone, cancel := context.WithCancel(t.Context())
		failed := make(chan error, 2)
		for range 2 {
			go func() {
				_, err := turns.Begin(gone, "a")
				failed <- err
			}()
		}
		synctest.Wait()
		begun := make(chan func(), 1)
		go func() { begun <- begin(t, turns, "a") }()
		synctest.Wait()
		cancel()
		for range 2 {
			if err := <-failed; err == nil {
				t.Error("no error for a caller that has gone")
			}
		}
		first()
		(<-begun)()
		if len(turns.names) != 0 {
			t.Errorf("%d names are not forgotten", len(turns.names))
		}
	})
}

// A turn given to a caller in the moment when it gives up is not lost.
func TestAStartSlotGrantedToACanceledCallerIsNotLost(t *testing.T) {
	t.Parallel()
	turns := NewStartLimiter(1, time.Hour)
	for range 2000 {
		first := begin(t, turns, "a")
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			if end, err := turns.Begin(ctx, "a"); err == nil {
				end()
			}
		}()
		go cancel()
		first()
		<-done
	}
	begin(t, turns, "a")() // otherwise this test would not end
	if len(turns.names) != 0 {
		t.Errorf("%d names are not forgotten", len(turns.names))
	}
}
