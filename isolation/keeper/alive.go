// SPDX-License-Identifier: Apache-2.0

package keeper

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
	if err == nil {
		err = r.isBox()
	}
	if ended(pidfd) || errors.Is(err, os.ErrNotExist) { // and so nothing that was read of the number is about it
		err = unix.ESRCH
	}
	if err != nil {
		unix.Close(pidfd)
		return -1, err
	}
	return pidfd, nil
}

// isBox asks the kernel whether the process of a record is in the user namespace of a box with those ids: which ids a
// namespace has, and who owns it, only somebody with CAP_SETUID can have decided (user_namespaces(7)). A record is a file,
// and says what somebody has written. Boxes of a keeper that made all namespaces as root are owned by root.
func (r *Record) isBox() error {
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
