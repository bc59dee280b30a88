// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation"
)

// child is a program to start, laid out for the kernel: a child that shares its parent's memory must not allocate.
//
// syscall.ForkExec would do the same with some 60 system calls more: its child resets every signal handler of the Go runtime one
// by one, and an exec error travels through a pipe on whose end the parent sleeps again.
type child struct {
	path     *byte
	argv     []*byte
	env      []*byte
	io       stdio
	terminal bool // descriptor 0 becomes its controlling terminal
	groups   []uint32
	mask     uint64 // signals that it blocks
	clone    cloneArgs
	pidfd    int32
	failed   syscall.Errno // why there was no exec; the child writes it
}

// cloneArgs is struct clone_args of clone3(2).
type cloneArgs struct {
	flags, pidFD, childTID, parentTID, exitSignal, stack, stackSize, tls, setTID, setTIDSize, cgroup uint64
}

// newChild lays out a program. It starts in the cgroup, unless group is negative.
func newChild(path string, cmd *isolation.Command, io stdio, terminal bool, group int, groups []uint32) (*child, error) {
	for _, fd := range io {
		if fd < len(io) { // it would be overwritten before it is copied
			return nil, unix.EBADF
		}
	}
	c := &child{io: io, terminal: terminal, groups: groups, pidfd: -1, clone: cloneArgs{
		flags: unix.CLONE_VM | unix.CLONE_VFORK | unix.CLONE_PIDFD | unix.CLONE_CLEAR_SIGHAND, exitSignal: uint64(unix.SIGCHLD),
	}}
	if group >= 0 {
		c.clone.flags |= unix.CLONE_INTO_CGROUP
		c.clone.cgroup = uint64(group)
	}
	var err error
	if c.path, err = unix.BytePtrFromString(path); err != nil {
		return nil, err
	}
	if c.argv, err = syscall.SlicePtrFromStrings(cmd.Argv); err != nil {
		return nil, err
	}
	c.env, err = syscall.SlicePtrFromStrings(cmd.Env)
	return c, err
}

// start starts the program and returns when it runs or has failed to. pidfd is the caller's.
func (c *child) start() (pid, pidfd int, err error) {
	c.clone.pidFD = uint64(uintptr(unsafe.Pointer(&c.pidfd)))
	// The child must not run a handler of the Go runtime, nor this thread be preempted.
	all := ^uint64(0)
	if errno := signalMask(&all, &c.mask); errno != 0 {
		return 0, -1, errno
	}
	got, errno := c.vfork()
	_ = signalMask(&c.mask, nil)
	runtime.KeepAlive(c) // its addresses are passed to system calls as numbers
	if errno != 0 {
		return 0, -1, errno
	}
	pid, pidfd = int(got), int(c.pidfd)
	if c.failed == 0 {
		return pid, pidfd, nil
	}
	unix.Close(pidfd)
	for { // it has exited
		if _, err := unix.Wait4(pid, nil, 0, nil); !errors.Is(err, unix.EINTR) {
			return 0, -1, c.failed
		}
	}
}

// signalMask sets the signals that this thread blocks.
//
//go:norace
func signalMask(mask, old *uint64) syscall.Errno {
	_, _, errno := syscall.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(mask)), uintptr(unsafe.Pointer(old)), 8, 0, 0)
	return errno
}

// vfork clones this process. The child has this stack too, so it never returns from here, and the parent does nothing in this
// frame once the child has run. Neither calls anything that could grow the stack, allocate or be preempted.
//
//go:noinline
//go:norace
//go:nocheckptr
func (c *child) vfork() (pid uintptr, errno syscall.Errno) {
	var err uintptr
	pid, err = vforkSyscall(unix.SYS_CLONE3, uintptr(unsafe.Pointer(&c.clone)), unsafe.Sizeof(c.clone))
	if err != 0 || pid != 0 {
		return pid, syscall.Errno(err)
	}
	c.failed = c.exec()
	for {
		_, _, _ = syscall.RawSyscall(unix.SYS_EXIT, 253, 0, 0)
	}
}

// exec turns the child into the program; it returns if that fails. It runs in the memory of the parent, see vfork.
//
//go:nosplit
//go:norace
//go:nocheckptr
func (c *child) exec() (errno syscall.Errno) {
	if _, _, errno = syscall.RawSyscall(unix.SYS_SETSID, 0, 0, 0); errno != 0 {
		return errno
	}
	if _, _, errno = syscall.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(&c.mask)), 0, 8, 0, 0); errno != 0 {
		return errno
	}
	if _, _, errno = syscall.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(c.groups)), uintptr(unsafe.Pointer(unsafe.SliceData(c.groups))), 0); errno != 0 {
		return errno
	}
	if _, _, errno = syscall.RawSyscall(unix.SYS_SETGID, isolation.BoxGID, 0, 0); errno != 0 {
		return errno
	}
	if _, _, errno = syscall.RawSyscall(unix.SYS_SETUID, isolation.BoxUID, 0, 0); errno != 0 {
		return errno
	}
	for i := 0; i < len(c.io); i++ { //nolint:modernize // a range over a copy of the array would need more stack
		if _, _, errno = syscall.RawSyscall(unix.SYS_DUP3, uintptr(c.io[i]), uintptr(i), 0); errno != 0 {
			return errno
		}
	}
	if c.terminal {
		if _, _, errno = syscall.RawSyscall(unix.SYS_IOCTL, 0, unix.TIOCSCTTY, 1); errno != 0 {
			return errno
		}
	}
	_, _, errno = syscall.RawSyscall(unix.SYS_EXECVE, uintptr(unsafe.Pointer(c.path)), uintptr(unsafe.Pointer(unsafe.SliceData(c.argv))), uintptr(unsafe.Pointer(unsafe.SliceData(c.env))))
	return errno
}

// vforkSyscall makes a system call that returns twice on one stack.
//
//go:noescape
func vforkSyscall(trap, a1, a2 uintptr) (r1, errno uintptr)
