// SPDX-License-Identifier: Apache-2.0

package process

import (
	"slices"
	"time"

	"github.com/boxd-dev/boxd/isolation"
)

// ending is how one start of a process's program has ended.
type ending struct {
	exit    *isolation.Exit
	err     error // of a program that could not start, or whose box is gone
	unready bool  // it was ended for not being ready in time
	ran     time.Duration
}

func (e *ending) failed() bool {
	return e.err != nil || e.unready || e.exit.Reason != isolation.ReasonExited || e.exit.Code != 0
}

// restarts are those that a policy has to know of.
type restarts struct {
	Recent []time.Time   `json:",omitempty"` // within the window
	Delay  time.Duration `json:",omitempty"` // before the last
}

// next decides what follows an ending at some time: another start after a delay, or none, because of a
// crash loop or because the policy wants none.
func (r *restarts) next(policy *Restart, e *ending, now time.Time) (delay time.Duration, again, looping bool) {
	if policy.Policy == RestartNo || policy.Policy == RestartOnFailure && !e.failed() {
		return 0, false, false
	}
	r.Recent = slices.DeleteFunc(r.Recent, func(t time.Time) bool { return now.Sub(t) >= *policy.Window })
	if *policy.Limit > 0 && len(r.Recent) >= *policy.Limit {
		return 0, false, true
	}
	if *policy.Limit > 0 { // or nobody counts them
		r.Recent = append(r.Recent, now)
	}
	r.Delay = min(2*r.Delay, *policy.MaxDelay)
	if r.Delay == 0 || e.ran >= *policy.Window {
		r.Delay = *policy.Delay
	}
	return r.Delay, true, false
}
