// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"errors"
	"fmt"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/cgroup"
	"github.com/boxd-dev/boxd/internal/quantity"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/supervisor/policy"
)

// Status is how an execution ended.
type Status string

// The statuses; the set is closed.
const (
	StatusExited      Status = "exited"
	StatusSignaled    Status = "signaled"
	StatusTimedOut    Status = "timed_out"
	StatusOOMKilled   Status = "oom_killed"
	StatusCanceled    Status = "canceled"
	StatusLost        Status = "lost"
	StatusStartFailed Status = "start_failed"
)

// Result is what an execution came to.
type Result struct {
	Status   Status
	ExitCode int    // for StatusExited
	Signal   string // "SIGKILL", whenever a signal ended it
	Streams  [2]Stream
	Duration time.Duration
	UserTime time.Duration
	SysTime  time.Duration
	MaxRSS   quantity.Size
	// Grouped says that the command had a control group: then the times are of all its processes, and
	// the four fields below are known.
	Grouped    bool
	MemoryPeak quantity.Size
	PidsPeak   int
	Read       quantity.Size // from devices
	Written    quantity.Size // to devices
	Full       []Full
	OOM        *OOM // nil: none of its processes was killed for want of memory
	// Leftovers is how many processes the command had left running; they have been killed.
	Leftovers int
	Timeout   time.Duration
	Clamped   []policy.Clamp
	Failed    *isolation.StepError // for StatusStartFailed
}

// OOM tells of processes that the kernel has killed for want of memory.
type OOM struct {
	Kills   int           // processes
	Limit   quantity.Size // that was reached
	Own     bool          // the limit was the execution's own, not the session's
	Victims []string      // names of the processes the kernel chose, as far as its log still knows
}

// outcome is what a Result is made of.
type outcome struct {
	session  *Session
	exit     *isolation.Exit
	err      error
	kept     func(stream int) (head, tail []byte, err error) // nil: its caller has had the output
	group    string
	timeout  time.Duration
	clamped  []policy.Clamp
	limits   *cgroup.Limits
	canceled bool
}

func (o *outcome) result() (*Result, error) {
	r := &Result{Timeout: o.timeout, Clamped: o.clamped}
	if step, ok := errors.AsType[*isolation.StepError](o.err); ok {
		r.Status, r.Failed = StatusStartFailed, step
		return r, nil
	}
	if o.err != nil {
		r.Status = StatusLost
		if reason := o.session.endReason(); o.canceled || reason != "" && reason != EndLost {
			r.Status = StatusCanceled
		}
		return r, nil
	}
	exit := o.exit
	r.Status = map[isolation.Reason]Status{
		isolation.ReasonExited: StatusExited, isolation.ReasonSignaled: StatusSignaled,
		isolation.ReasonTimedOut: StatusTimedOut, isolation.ReasonCanceled: StatusCanceled, isolation.ReasonOOM: StatusOOMKilled,
	}[exit.Reason]
	r.ExitCode = exit.Code
	if exit.Signal != 0 {
		r.Signal = unix.SignalName(syscall.Signal(exit.Signal))
	}
	r.Duration, r.UserTime, r.SysTime = exit.Duration, exit.UserTime, exit.SystemTime
	r.MaxRSS, r.Leftovers = quantity.Size(exit.MaxRSS), int(exit.Leftovers)
	o.addUse(r)
	for i := range r.Streams {
		if o.kept == nil {
			r.Streams[i].Total = exit.Streams[i].Total
			continue
		}
		head, tail, err := o.kept(i)
		if err != nil {
			return nil, fmt.Errorf("session %q: %w", o.session.ID, err)
		}
		r.Streams[i] = newStream(head, tail, exit.Streams[i])
	}
	return r, nil
}
