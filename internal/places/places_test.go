// SPDX-License-Identifier: Apache-2.0

package places

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
)

func enter(t *testing.T, l *Limit, caller string) (release func()) {
	t.Helper()
	release, err := l.Enter(t.Context(), caller)
	if err != nil {
		t.Fatal(err)
	}
	return release
}

// One caller never has more than its share, and all together no more than there are.
func TestEachCallerHasAShare(t *testing.T) {
	l := &Limit{All: 3, Each: 2, Of: "archives are being received", Hint: "try again"}
	first := enter(t, l, "a")
	enter(t, l, "a")
	_, err := l.Enter(t.Context(), "a")
	if fault.KindOf(err) != fault.Exhausted || !strings.Contains(err.Error(), "2 archives are being received, and 2 of them are yours: at most 3, and 2 for each caller") {
		t.Errorf(`a third of one caller: err = %v, want a fault.Exhausted error and err containing "2 archives are being received, and 2 of them are yours: at most 3, and 2 for each caller"`,
			err)
	}
	enter(t, l, "b")
	if _, err := l.Enter(t.Context(), "c"); fault.KindOf(err) != fault.Exhausted {
		t.Errorf("a fourth: err = %v, want a fault.Exhausted error", err)
	}
	first()
	enter(t, l, "c")
	if n := l.Taken(); n != 3 {
		t.Errorf("%d places are taken", n)
	}
}

// A caller waits for a place until there is one, its patience is over, or nobody waits for it any more.
func TestTheWaitForAPlaceEndsWithTheTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &Limit{All: 1, Each: 1, Patience: time.Minute}
		leave := enter(t, l, "a")
		time.AfterFunc(30*time.Second, leave)
		start := time.Now()
		leave = enter(t, l, "b")
		if d := time.Since(start); d != 30*time.Second {
			t.Errorf("it was admitted after %v", d)
		}
		start = time.Now()
		if _, err := l.Enter(t.Context(), "a"); fault.KindOf(err) != fault.Exhausted || time.Since(start) != time.Minute {
			t.Errorf("after %v: err = %v, want a fault.Exhausted error and time.Since(began) == time.Minute",
				time.Since(start), err)
		}
		gone := errors.New("the caller has given up")
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, gone)
		defer cancel()
		if _, err := l.Enter(ctx, "a"); !errors.Is(err, gone) {
			t.Errorf("err = %v, want err is %v", err, gone)
		}
		leave()
		if n := l.Taken(); n != 0 || len(l.own) != 0 {
			t.Errorf("%d places are taken, by %v", n, l.own)
		}
	})
}

// Whoever has waited longest is next, unless it has its share already.
func TestWaitersAreAdmittedInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &Limit{All: 2, Each: 1, Patience: time.Hour}
		leaves := map[string]func(){"a": enter(t, l, "a"), "b": enter(t, l, "b")}
		in, out := make(chan string), make(chan bool)
		for i, caller := range []string{"a", "c", "d"} { // the first has its share until it leaves
			time.AfterFunc(time.Duration(i+1)*time.Second, func() {
				leave, err := l.Enter(t.Context(), caller)
				if err != nil {
					t.Error(err)
				}
				in <- caller
				<-out
				leave()
			})
		}
		<-time.After(time.Minute) // of the bubble's clock
		for _, step := range []struct{ leaves, comes string }{{"b", "c"}, {"a", "a"}} {
			leaves[step.leaves]()
			if got := <-in; got != step.comes {
				t.Errorf("after %s left, %s was admitted, want %s", step.leaves, got, step.comes)
			}
		}
		out <- true // two leave, the last comes in
		out <- true
		if got := <-in; got != "d" {
			t.Errorf(`got %s, want "d"`, got)
		}
		out <- true
		synctest.Wait()
		if n := l.Taken(); n != 0 || len(l.queue) != 0 {
			t.Errorf("%d places are taken, %d callers wait", n, len(l.queue))
		}
	})
}
