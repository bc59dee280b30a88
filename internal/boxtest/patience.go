// SPDX-License-Identifier: Apache-2.0

package boxtest

import (
	"context"
	"os"
	"testing"
	"time"
)

// maxTimeoutVariable sets max_timeout of the default profile, in the environment of boxd.
const maxTimeoutVariable = "BOXD__PROFILES__DEFAULT__MAX_TIMEOUT"

// Longest is the timeout of an execution in the default profile, without BePatient.
const Longest = 2 * time.Minute

// BePatient gives programs in boxes of the default profile an hour, since emulated machines take
// minutes; Output gives them ten minutes of that. It is for TestMain.
func BePatient() {
	if err := os.Setenv(maxTimeoutVariable, "1h"); err != nil {
		panic(err)
	}
}

// timeout is how long Eventually waits. It decides no test: what it waits for either comes, or the test has failed. It is less
// than Longest, so that a program that should have been killed but runs to its timeout is noticed; such a program must be given
// that timeout. Hosts with cgroups are emulated machines here: they need longer, and do not notice that.
func timeout() time.Duration {
	if Grouped() {
		return 5 * time.Minute
	}
	return 90 * time.Second
}

// Eventually waits until cond returns true. It may be called in a clean-up. Between two calls of cond it sleeps as long as the
// first took, and the longer the longer it has waited, up to 50 ms: looking would otherwise take the processor from what it waits for.
func Eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), timeout())
	defer cancel()
	first := time.Now()
	for start := first; !cond(); start = time.Now() {
		if ctx.Err() != nil {
			t.Fatalf("timed out after %v, waiting until %s", timeout(), what)
		}
		time.Sleep(max(time.Since(start), 5*time.Millisecond, min(time.Since(first)/20, 50*time.Millisecond)))
	}
}

// OneDay waits for the end of the UTC day in its last minutes, for a test that checks today's usage.
func OneDay(t testing.TB) {
	t.Helper()
	now := time.Now().UTC()
	if left := now.Truncate(24 * time.Hour).Add(24 * time.Hour).Sub(now); left < 3*time.Minute {
		t.Logf("a new UTC day begins in %v: waiting for it, as the test checks today's usage", left)
		time.Sleep(left)
	}
}
