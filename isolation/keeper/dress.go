// SPDX-License-Identifier: Apache-2.0

package keeper

import (
	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/dress"
)

// dress gives a box that was made ahead of need the hostname of its session.
func (k *Keeper) dress(req *isolation.Dress) error {
	if err := req.Validate(); err != nil {
		return err
	}
	k.mu.Lock()
	b := k.boxes[req.Key]
	if b == nil || !b.handed {
		k.mu.Unlock()
		return unix.ESRCH
	}
	pid := b.pid
	k.mu.Unlock()
	alive := func() bool {
		select {
		case <-b.gone:
			return false
		default:
		}
		raw, err := b.pidfd.SyscallConn() // an error: it has been closed, after the end
		lives := false
		if err == nil {
			err = raw.Control(func(fd uintptr) {
				poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
				n, perr := unix.Poll(poll, 0)
				lives = n == 0 && perr == nil
			})
		}
		return lives && err == nil
	}
	return dress.Name(pid, alive, req.Hostname)
}

// reclaim takes memory back that the programs of a box do not need.
func (k *Keeper) reclaim(key string) error {
	k.mu.Lock()
	b := k.boxes[key]
	known := b != nil && b.handed
	k.mu.Unlock()
	if !known {
		return unix.ESRCH
	}
	if b.groups == nil {
		return unix.EOPNOTSUPP
	}
	return b.groups.Reclaim()
}
