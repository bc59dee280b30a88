// SPDX-License-Identifier: Apache-2.0

package main

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// foreign returns the calls specific to this architecture, and its ABIs for other programs.
func foreign() map[string]attempt {
	return map[string]attempt{
		"modify_ldt": plain(unix.SYS_MODIFY_LDT, 0, buffer(), 16),
		"iopl":       plain(unix.SYS_IOPL, 3),
		"ioperm":     plain(unix.SYS_IOPERM, 0, 1, 1),
		"x32":        plain(1<<30 | unix.SYS_GETPID), // __X32_SYSCALL_BIT
		"int80":      func([]string) error { return int80(20) },
	}
}

// enter80 makes a system call through the 32-bit ABI, int 0x80.
func enter80(nr uint32) int32

// int80 makes a call without arguments through it; 20 is getpid. A kernel without that ABI kills the program.
func int80(nr uint32) error {
	if r := enter80(nr); r < 0 {
		return syscall.Errno(-r)
	}
	return nil
}

// foreignCall makes a 32-bit call.
func foreignCall(nr uint32) error { return int80(nr) }
