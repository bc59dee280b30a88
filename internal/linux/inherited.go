// SPDX-License-Identifier: Apache-2.0

// What PID 1 of a box has inherited over execve(2) and programs must not inherit from it: ignored
// signals and timer slack.

package linux

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// InitTimerSlack is how late the threads of PID 1 may wake, in nanoseconds; they inherit it from the thread that clones it. The
// first thread resets its own (see ResetThreadTimerSlack), so that the slack remains on the thread of the Go runtime that watches
// all others. That one would otherwise wake every 20 µs while a program is started, only to find one busy thread that no other
// waits for, and take half of PID 1's time: see docs/design/exec-path.md.
const InitTimerSlack = 100_000_000

// defaultTimerSlack is the slack of a thread whose slack was never set
// (PR_SET_TIMERSLACK(2const)).
const defaultTimerSlack = 50_000

// SetThreadTimerSlack sets the timer slack of this thread, and of those it starts from now on, in
// nanoseconds.
func SetThreadTimerSlack(ns uintptr) error {
	return unix.Prctl(unix.PR_SET_TIMERSLACK, ns, 0, 0, 0)
}

// ResetThreadTimerSlack gives this thread, and the threads and programs that it starts, the
// default slack.
func ResetThreadTimerSlack() error { return SetThreadTimerSlack(defaultTimerSlack) }

// InheritedSignals are those that may have been ignored from the start, since the Go runtime has no handler of its own for them:
// programs would inherit that and ignore them. SIGHUP and SIGINT are ignored indeed, as the zygote must outlive a terminal; 32
// and 33 are the C library's (nptl(7)).
func InheritedSignals() []syscall.Signal {
	return []syscall.Signal{
		unix.SIGCHLD, unix.SIGHUP, unix.SIGINT, unix.SIGCONT, unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU, 32, 33,
	}
}

// DefaultSignal removes the Go runtime's handler of a signal. The default action needs no handler, and is faster without one.
func DefaultSignal(sig syscall.Signal) error {
	var action [4]uint64 // struct kernel_sigaction, all zero: SIG_DFL (sigaction(2))
	_, _, errno := syscall.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(&action)), 0, 8, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}
