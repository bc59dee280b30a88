// SPDX-License-Identifier: Apache-2.0

// Work in the netns of a box is done on a thread that enters it and never comes back.

package network

import (
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// InNamespace calls f in the network namespace of a descriptor, and waits for it. Only what f
// does on its own thread happens there.
func InNamespace(space *os.File, f func() error) error {
	return onLockedThread(func() error {
		if err := unix.Setns(int(space.Fd()), unix.CLONE_NEWNET); err != nil {
			return os.NewSyscallError("setns", err)
		}
		return f()
	})
}

// onLockedThread calls f on a thread that ends when f returns. The main thread cannot end, so it waits
// while another one does the work.
func onLockedThread(f func() error) error {
	done := make(chan error, 1)
	go func() { // waited for below
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			done <- onLockedThread(f)
			runtime.UnlockOSThread()
			return
		}
		done <- f() // never unlocked: the thread ends with the goroutine
	}()
	return <-done
}
