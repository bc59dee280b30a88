// SPDX-License-Identifier: Apache-2.0

// What PID 1 of a box got by execve(2) and programs must not inherit from it: ignored signals, timer slack.

package linux

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// InitTimerSlack is how late the threads of PID 1 may wake, in nanoseconds; they have it from the thread that clones it.
// The first of them gives it up (see Usual), which leaves it to the one that looks after all others of a Go
// program. That would wake every 20 µs while a program is started, only to find one thread at work that nobody
// waits for, and take half of PID 1's time: see docs/design/exec-path.md.
const InitTimerSlack = 100_000_000

// defaultTimerSlack is the slack of a thread that nobody has given another (PR_SET_TIMERSLACK(2const)).
const defaultTimerSlack = 50_000

// SetThreadTimerSlack gives this thread, and those it starts from now on, a slack in nanoseconds.
func SetThreadTimerSlack(ns uintptr) error {
	return unix.Prctl(unix.PR_SET_TIMERSLACK, ns, 0, 0, 0)
}

// ResetThreadTimerSlack gives this thread, and those and the programs that it starts, the slack that everybody has.
func ResetThreadTimerSlack() error { return SetThreadTimerSlack(defaultTimerSlack) }

// InheritedSignals are those that may have come in ignored, since the runtime has no handler of its own for them: programs
// would inherit that and be deaf to them. SIGHUP and SIGINT do come in so, as the zygote must outlive a terminal;
// 32 and 33 are the C library's (nptl(7)).
func InheritedSignals() []syscall.Signal {
	return []syscall.Signal{
		unix.SIGCHLD, unix.SIGHUP, unix.SIGINT, unix.SIGCONT, unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU, 32, 33,
	}
}

// DefaultSignal takes the runtime's handler off a signal. What the signal does by default happens without it, and
// without the detour through a handler.
func DefaultSignal(sig syscall.Signal) error {
	var action [4]uint64 // struct kernel_sigaction, all zero: SIG_DFL (sigaction(2))
	_, _, errno := syscall.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(&action)), 0, 8, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}
