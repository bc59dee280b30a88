// SPDX-License-Identifier: Apache-2.0

// Timer slack. Without it a mostly idle Go program wakes often: while any thread is busy, a
// thread of the Go runtime checks on the others every 20 µs.

package linux

import (
	"errors"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// TimerSlack is that of boxd and the keeper, set here and by their units: late enough that this
// thread checks only two or three times in the course of an execution, and early enough for
// goroutines that wait while a disk blocks other threads.
const TimerSlack = 200 * time.Microsecond

// SetTimerSlack sets the timer slack of every thread of this process, and thereby of the threads
// that those start and the programs that they execute. Call it at the beginning of main. Threads
// whose slack cannot be set, as without CAP_SYS_NICE, keep their own. If this thread has it
// already, as from a unit, all threads have.
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

// writeSlack sets the slack of one thread (timerslack_ns of proc_pid_timerslack_ns(5)).
func writeSlack(path string, slack time.Duration) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(strconv.FormatInt(slack.Nanoseconds(), 10))
	return errors.Join(err, f.Close())
}
