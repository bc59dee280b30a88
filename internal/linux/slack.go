// SPDX-License-Identifier: Apache-2.0

// Timer slack. A Go program that is mostly idle wakes often without it: while any thread works, one of the
// runtime's looks after the others every 20 µs.

package linux

import (
	"errors"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// TimerSlack is what boxd and the keeper have, here and by their units: late enough for that thread to look two or three times
// in the course of an execution, and soon enough for those that wait while others are held by a disk.
const TimerSlack = 200 * time.Microsecond

// SetTimerSlack gives every thread of this process a slack, and so those that they start and the programs that they execute. It is
// for the beginning of main. Threads whose slack could not be set, as without CAP_SYS_NICE, keep their own. Where this
// one has it already, as from a unit, all have.
func SetTimerSlack(slack time.Duration) error {
	if now, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0); err == nil && time.Duration(now) == slack {
		return nil
	}
	threads, err := os.ReadDir("/proc/self/task")
	errs := []error{err}
	for _, t := range threads {
		errs = append(errs, writeSlack("/proc/"+t.Name()+"/timerslack_ns", slack))
	}
	return errors.Join(errs...)
}

// writeSlack gives one thread its slack (timerslack_ns of proc_pid_timerslack_ns(5)).
func writeSlack(path string, slack time.Duration) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(strconv.FormatInt(slack.Nanoseconds(), 10))
	return errors.Join(err, f.Close())
}
