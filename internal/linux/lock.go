// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"
)

// StartPatience is how long a program that is just being started may still hold a lock of its dead parent.
const StartPatience = 5 * time.Second

// Lock takes an exclusive lock (flock(2)) for as long as the descriptor is open, and waits for another holder to release it. Use
// at least StartPatience where the holder may have died: a lock belongs to the open file description, not to a process, so if a
// process is killed while it starts a program, the child holds its lock until it calls execve(2). EWOULDBLOCK: the other holder
// kept it.
func Lock(fd int, timeout time.Duration) error {
	deadline := time.NewTimer(timeout)
	defer deadline.Stop()
	ticker := time.NewTicker(2 * time.Millisecond)
	defer ticker.Stop()
	for {
		err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
		if err == nil || !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return err
		}
		select {
		case <-deadline.C:
			return err
		case <-ticker.C:
		}
	}
}
