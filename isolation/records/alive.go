// SPDX-License-Identifier: Apache-2.0

package records

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Identify notes which process PID 1 of the box is, so that no later one is taken for it.
func (r *Record) Identify(pid int) error {
	start, err := startOf(pid)
	if err != nil {
		return err
	}
	r.PID, r.Start = pid, start
	r.Boot, err = boot()
	return err
}

// Living opens the process of a record. ESRCH: it is dead.
func (r *Record) Living() (pidfd int, err error) {
	now, err := boot()
	if err == nil && now != r.Boot {
		err = unix.ESRCH
	}
	if err != nil {
		return -1, err
	}
	pidfd, err = unix.PidfdOpen(r.PID, 0)
	if errors.Is(err, unix.EINVAL) { // a thread has the number now
		err = unix.ESRCH
	}
	if err != nil {
		return -1, err
	}
	// From here on the number is that of the process of the pidfd, or of none.
	start, err := startOf(r.PID)
	if err == nil && start != r.Start || errors.Is(err, os.ErrNotExist) {
		err = unix.ESRCH
	}
	if err == nil && ended(pidfd) {
		err = unix.ESRCH
	}
	if err != nil {
		unix.Close(pidfd)
		return -1, err
	}
	return pidfd, nil
}

func ended(pidfd int) bool {
	poll := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(poll, 0)
		if !errors.Is(err, unix.EINTR) {
			return n > 0
		}
	}
}

// startOf reads when a process was started, in clock ticks since the boot: field 22 of its stat (proc(5)).
func startOf(pid int) (uint64, error) {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if errors.Is(err, unix.ESRCH) {
		err = os.ErrNotExist
	}
	if err != nil {
		return 0, err
	}
	return startIn(data)
}

// startIn finds the field behind the name, which can have any characters.
func startIn(stat []byte) (uint64, error) {
	const after = 22 - 3 // the first field behind the name is the third
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) <= after {
		return 0, fmt.Errorf("stat of a process: %d fields", len(fields))
	}
	return strconv.ParseUint(string(fields[after]), 10, 64)
}

func boot() (string, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(id)), err
}
