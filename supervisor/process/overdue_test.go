// SPDX-License-Identifier: Apache-2.0

package process_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/boxd-dev/boxd/supervisor/process"
)

func TestAWatchdogTimerFiresAfterItsSecondCheck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start, calls := time.Now(), 0
		var at time.Duration
		timer := process.After(time.Minute, func() { calls++; at = time.Since(start) })
		if left := timer.Left(); left != time.Minute {
			t.Errorf("left are %v, want time.Minute", left)
		}
		time.Sleep(time.Hour) //nolint:forbidigo // in a bubble, where it takes no time
		synctest.Wait()
		if calls != 1 || at != 65*time.Second {
			t.Errorf("%d calls, the last after %v", calls, at)
		}
		timer.Reset(time.Second)
		time.Sleep(time.Hour) //nolint:forbidigo // in a bubble, where it takes no time
		synctest.Wait()
		if calls != 2 {
			t.Errorf("%d calls after it was set again", calls)
		}
	})
}

func TestAStoppedWatchdogTimerDoesNotFire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		timer := process.After(time.Minute, func() { t.Error("the callback was called, though the watchdog was stopped before it looked again") })
		time.Sleep(62 * time.Second) //nolint:forbidigo // in a bubble, where it takes no time
		timer.Stop()
		time.Sleep(time.Hour) //nolint:forbidigo // in a bubble, where it takes no time
		timer.Reset(time.Minute)
		time.Sleep(63 * time.Second) //nolint:forbidigo // in a bubble, where it takes no time
		timer.Reset(time.Minute)     // the second look is a first one again
		time.Sleep(62 * time.Second) //nolint:forbidigo // in a bubble, where it takes no time
		timer.Stop()
		if left := timer.Left(); left > 0 {
			t.Errorf("left are %v, want left <= 0", left)
		}
		time.Sleep(time.Hour) //nolint:forbidigo // in a bubble, where it takes no time
		synctest.Wait()
	})
}
