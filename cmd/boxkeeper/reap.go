// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/signal"
	"sync"

	"golang.org/x/sys/unix"
)

// startReaper reaps every child that has ended. Boxes are watched by pidfd, so their status is
// not needed here; zygotes, holders of id maps and unfinished clones have no other parent.
func startReaper() (stop func()) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGCHLD)
	end := make(chan struct{})
	var done sync.WaitGroup
	done.Go(func() {
		for {
			for pid := 1; pid > 0; {
				pid, _ = unix.Wait4(-1, nil, unix.WNOHANG, nil)
			}
			select {
			case <-signals:
			case <-end:
				return
			}
		}
	})
	return func() {
		close(end)
		done.Wait()
		signal.Stop(signals)
	}
}
