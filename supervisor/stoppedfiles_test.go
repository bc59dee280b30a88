// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
)

// One owner has few of the boxes that read files of stopped sessions, and all together have not many. Who waits has the next one,
// and not for ever.
func TestReadersAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newReaders()
		enter := func(owner string, want fault.Kind) func() {
			t.Helper()
			start := time.Now()
			release, err := r.Enter(t.Context(), owner)
			if err == nil && want == 0 {
				return release
			}
			if fault.KindOf(err) != want || time.Since(start) != readerTimeout {
				t.Fatalf("%s after %v: err = %v, want an error of kind %v and time.Since(began) == readerPatience",
					owner, time.Since(start), err, want)
			}
			return nil
		}
		first := enter("a", 0)
		enter("a", 0)
		enter("a", fault.Exhausted)
		for _, owner := range []string{"b", "b", "c", "c", "d", "d"} {
			enter(owner, 0)
		}
		enter("e", fault.Exhausted)
		time.AfterFunc(time.Second, first)
		enter("e", 0)
		enter("a", fault.Exhausted) // there is no place, whosever it was
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := r.Enter(ctx, "f"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("err = %v, want err is context.DeadlineExceeded", err)
		}
	})
}
