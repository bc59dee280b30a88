// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"errors"
	"os"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// KeepCapabilities leaves every thread of this process with the capabilities of a set at most, one
// bit for each. The program must not use cgo.
//
// The bounding set matters only to execve, so it is set on the calling thread alone: that must be
// the one that forks, if any does.
func KeepCapabilities(keep uint32) error {
	for c := uintptr(0); ; c++ {
		if c < 32 && keep&(1<<c) != 0 {
			continue
		}
		err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0)
		if errors.Is(err, unix.EINVAL) {
			break // past the last capability of this kernel
		}
		if err != nil {
			return os.NewSyscallError("prctl", err)
		}
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var have [2]unix.CapUserData
	if err := unix.Capget(&header, &have[0]); err != nil {
		return os.NewSyscallError("capget", err)
	}
	permitted := have[0].Permitted & keep
	data := [2]unix.CapUserData{{Effective: permitted, Permitted: permitted}}
	_, _, errno := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&data)), 0)
	runtime.KeepAlive(&header)
	runtime.KeepAlive(&data)
	if errno != 0 {
		return os.NewSyscallError("capset", errno)
	}
	return nil
}
