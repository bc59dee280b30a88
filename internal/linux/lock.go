// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"
)

// StartPatience is how long a program that was just being started may hold on to a lock of the one that started it.
const StartPatience = 5 * time.Second

// Lock takes an exclusive lock (flock(2)) for as long as the descriptor is open, and waits for another holder to let go, for
// StartPatience at least where that is to be one that is no more: a lock belongs to what was opened and not to a process, so
// that of a process that is killed while it starts a program is held by the child until that calls execve(2).
// EWOULDBLOCK: the other one has kept it.
func Lock(fd int, patience time.Duration) error {
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	again := time.NewTicker(2 * time.Millisecond)
	defer again.Stop()
	for {
		err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
		if err == nil || !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return err
		}
		select {
		case <-deadline.C:
			return err
		case <-again.C:
		}
	}
}
