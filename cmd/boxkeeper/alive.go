// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation"
)

// identify records which process is PID 1 of the box, so that a later process with the same PID
// is not taken for it.
func (r *record) identify(pid int, boot string) (err error) {
	r.PID, r.Boot = pid, boot
	r.Start, err = startOf(pid)
	return err
}

// Living opens a pidfd of a record's process. ESRCH: it is dead.
func (r *record) Living(boot string) (pidfd int, err error) {
	if boot != r.Boot {
		return -1, unix.ESRCH
	}
	pidfd, err = unix.PidfdOpen(r.PID, 0)
	if errors.Is(err, unix.EINVAL) { // the number belongs to a thread now
		err = unix.ESRCH
	}
	if err != nil {
		return -1, err
	}
	// From here on the PID belongs to the process of the pidfd, or to none.
	start, err := startOf(r.PID)
	if err == nil && start != r.Start || errors.Is(err, os.ErrNotExist) {
		err = unix.ESRCH
	}
	if err == nil {
		err = r.isBox()
	}
	if ended(pidfd) || errors.Is(err, os.ErrNotExist) { // then what was read of that PID may be about another process
		err = unix.ESRCH
	}
	if err != nil {
		unix.Close(pidfd)
		return -1, err
	}
	return pidfd, nil
}

// isBox asks the kernel whether a record's process is in the user namespace of a box with those ids: only CAP_SETUID allows to
// decide which ids a namespace maps and who owns it (user_namespaces(7)), whereas a record is a file that may say anything. The
// namespaces of boxes that an earlier version started as root are owned by root.
func (r *record) isBox() error {
	dir := "/proc/" + strconv.Itoa(r.PID)
	for _, name := range []string{"/uid_map", "/gid_map"} {
		text, err := os.ReadFile(dir + name)
		if errors.Is(err, unix.ESRCH) {
			err = os.ErrNotExist
		}
		if err != nil {
			return err
		}
		if got, want := strings.Join(strings.Fields(string(text)), " "), fmt.Sprintf("0 %d %d", r.IDBase, isolation.IDRange); got != want || r.IDBase == 0 {
			return fmt.Errorf("the process %d has %s %q, and the box of its record %q: it is another process", r.PID, name[1:], got, want)
		}
	}
	space, err := unix.Open(dir+"/ns/user", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) {
		return os.ErrNotExist
	}
	if err != nil {
		return err
	}
	defer unix.Close(space)
	var owner uint32
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(space), unix.NS_GET_OWNER_UID, uintptr(unsafe.Pointer(&owner))); errno != 0 { // ioctl_ns(2)
		return fmt.Errorf("owner of the user namespace of process %d: %w", r.PID, errno)
	}
	if owner != r.IDBase && owner != 0 {
		return fmt.Errorf("the process %d is in a user namespace of uid %d: it is another process", r.PID, owner)
	}
	return nil
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

// startOf returns when a process was started, in clock ticks since the boot: field 22 of
// /proc/PID/stat (proc(5)). Each start of a box waits for it: os.ReadFile makes three times as many system calls.
func startOf(pid int) (uint64, error) {
	stat, n := make([]byte, 1024), 0 // the field is within the first 500
	fd, err := unix.Open("/proc/"+strconv.Itoa(pid)+"/stat", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err == nil {
		n, err = unix.Read(fd, stat)
		unix.Close(fd)
	}
	if errors.Is(err, unix.ESRCH) {
		err = os.ErrNotExist
	}
	if err != nil {
		return 0, err
	}
	return startIn(stat[:n])
}

// startIn finds that field after the name, which may contain any character.
func startIn(stat []byte) (uint64, error) {
	const after = 22 - 3 // the first field after the name is the third
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) <= after {
		return 0, fmt.Errorf("stat of a process: %d fields", len(fields))
	}
	return strconv.ParseUint(string(fields[after]), 10, 64)
}
