// SPDX-License-Identifier: Apache-2.0

package boxtest

import (
	"context"
	"os"
	"testing"
	"time"
)

// maxTimeoutVariable is max_timeout of the profile that is the default, in the environment of boxd.
const maxTimeoutVariable = "BOXD__PROFILES__DEFAULT__MAX_TIMEOUT"

// Longest is the most that the profile which is the default gives an execution, without BePatient.
const Longest = 2 * time.Minute

// BePatient lets programs in boxes of the profile that is the default have an hour, where emulated machines take
// minutes; Output gives them ten minutes of it. It is for TestMain.
func BePatient() {
	if err := os.Setenv(maxTimeoutVariable, "1h"); err != nil {
		panic(err)
	}
}

// patience is how long Eventually waits. It decides no test: what it waits for either comes or the test has failed.
// It is less than Longest, so that a program which should have been ended and runs to its
// limit is found out; such a program has to be given that limit. Hosts with cgroups are emulated machines here,
// which need longer, and find that out nowhere.
func patience() time.Duration {
	if Grouped() {
		return 5 * time.Minute
	}
	return 90 * time.Second
}

// Eventually waits until cond holds. It may be called in a clean-up.
func Eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience())
	defer cancel()
	for !cond() {
		if ctx.Err() != nil {
			t.Fatalf("in %v it has not come true that %s", patience(), what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}
