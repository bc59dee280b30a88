// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/fdpass"
	"github.com/boxd-dev/boxd/internal/linux"
	"github.com/boxd-dev/boxd/isolation"
)

// place is the keeper's part of the run directory: its socket, and the lock that makes sure there
// is only one keeper.
type place struct {
	dir   *os.Root
	lock  *os.File
	group int // that boxd is in, which may connect; 0: root's
}

// lockName is the file that a keeper locks while it lives. It contains the keeper's PID.
const lockName = "lock"

// leaveTimeout is how long an earlier keeper may take to end.
const leaveTimeout = 40 * time.Second

// openPlace takes the lock in a run directory, after waiting for an earlier keeper to end.
func openPlace(run string, group int) (*place, error) {
	if err := os.MkdirAll(run, 0o755); err != nil {
		return nil, fmt.Errorf("run directory: %w", err)
	}
	dir, err := openPrivate(run, isolation.KeeperDir, group)
	if err != nil {
		return nil, fmt.Errorf("run directory: %w", err)
	}
	lock, err := dir.OpenFile(lockName, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		dir.Close()
		return nil, fmt.Errorf("run directory: %w", err)
	}
	p := &place{dir, lock, group}
	if err := linux.Lock(int(lock.Fd()), leaveTimeout); err != nil {
		p.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("run directory %s: in use by another keeper", run)
		}
		return nil, fmt.Errorf("run directory %s: %w", run, err)
	}
	own := strconv.Itoa(os.Getpid()) + "\n" // written first and then truncated: the first line is always complete
	if _, err = lock.WriteAt([]byte(own), 0); err == nil {
		err = lock.Truncate(int64(len(own)))
	}
	if err != nil {
		p.Close()
		return nil, fmt.Errorf("run directory: %w", err)
	}
	return p, nil
}

// listen makes the socket. An existing one is left over from a dead keeper.
func (p *place) listen() (*fdpass.Listener, error) {
	p.hide()
	dir, err := p.dir.Open(".")
	if err != nil {
		return nil, fmt.Errorf("run directory: %w", err)
	}
	defer dir.Close()
	fd, err := fdpass.Bind(int(dir.Fd()), isolation.KeeperSocket)
	if err == nil && p.group != 0 {
		if err = unix.Fchownat(int(dir.Fd()), isolation.KeeperSocket, -1, p.group, unix.AT_SYMLINK_NOFOLLOW); err == nil {
			err = unix.Fchmodat(int(dir.Fd()), isolation.KeeperSocket, 0o660, 0)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("socket of the keeper: %w", err)
	}
	return fdpass.NewListener(fd)
}

// hide removes the socket.
func (p *place) hide() { _ = p.dir.Remove(isolation.KeeperSocket) }

// Close releases the lock and the directory.
func (p *place) Close() {
	p.lock.Close()
	p.dir.Close()
}
