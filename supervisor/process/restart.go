// SPDX-License-Identifier: Apache-2.0

package process

import (
	"slices"
	"time"

	"github.com/boxd-dev/boxd/isolation"
)

// ending is the outcome of one start of a program.
type ending struct {
	exit    *isolation.Exit
	err     error // of a program that could not start, or whose box is gone
	unready bool  // it was ended because it was not ready in time
	ran     time.Duration
}

func (e *ending) failed() bool {
	return e.err != nil || e.unready || e.exit.Reason != isolation.ReasonExited || e.exit.Code != 0
}

// restarts are the restarts that count for a policy.
type restarts struct {
	Recent []time.Time   `json:",omitempty"` // within Window
	Delay  time.Duration `json:",omitempty"` // before the last one
}

// next decides what follows an ending: another start after a delay, or none, because of a crash loop or the policy.
func (r *restarts) next(policy *Restart, e *ending, now time.Time) (delay time.Duration, again, looping bool) {
	if policy.Policy == RestartNo || policy.Policy == RestartOnFailure && !e.failed() {
		return 0, false, false
	}
	r.Recent = slices.DeleteFunc(r.Recent, func(t time.Time) bool { return now.Sub(t) >= *policy.Window })
	if *policy.Limit > 0 && len(r.Recent) >= *policy.Limit {
		return 0, false, true
	}
	if *policy.Limit > 0 { // without a limit they are not counted
		r.Recent = append(r.Recent, now)
	}
	r.Delay = min(2*r.Delay, *policy.MaxDelay)
	if r.Delay == 0 || e.ran >= *policy.Window {
		r.Delay = *policy.Delay
	}
	return r.Delay, true, false
}
