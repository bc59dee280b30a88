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
	ident    *identity
	caps     capset
	mask     uint64 // signals that it blocks
	clone    cloneArgs
	pidfd    int32
	failed   syscall.Errno // why there was no exec; the child writes it
}

// identity is who a program is.
type identity struct {
	namespace    int      // user namespace that it enters, -1: it stays in that of the box
	groups       []uint32 // of the user namespace of the box, and the others of that which it enters
	uid, gid     uintptr
	capabilities uint32 // in the namespace that it enters
}

// capset is what capset(2) takes.
type capset struct {
	header unix.CapUserHeader
	data   [2]unix.CapUserData
}

// cloneArgs is struct clone_args of clone3(2).
type cloneArgs struct {
	flags, pidFD, childTID, parentTID, exitSignal, stack, stackSize, tls, setTID, setTIDSize, cgroup uint64
}

// newChild lays out a program. It starts in the cgroup, unless group is negative.
func newChild(path string, cmd *isolation.Command, io stdio, terminal bool, group int, ident *identity) (*child, error) {
	for _, fd := range io {
		if fd < len(io) { // it would be overwritten before it is copied
			return nil, unix.EBADF
		}
	}
	c := &child{io: io, terminal: terminal, ident: ident, pidfd: -1, clone: cloneArgs{
		flags: unix.CLONE_VM | unix.CLONE_VFORK | unix.CLONE_PIDFD | unix.CLONE_CLEAR_SIGHAND, exitSignal: uint64(unix.SIGCHLD),
	}}
	if group >= 0 {
		c.clone.flags |= unix.CLONE_INTO_CGROUP
		c.clone.cgroup = uint64(group)
	}
	c.caps = capset{
		unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3},
		[2]unix.CapUserData{{Effective: ident.capabilities, Permitted: ident.capabilities}},
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
	childPID, errno := c.vfork()
	_ = signalMask(&c.mask, nil)
	runtime.KeepAlive(c) // its addresses are passed to system calls as numbers
	if errno != 0 {
		return 0, -1, errno
	}
	pid, pidfd = int(childPID), int(c.pidfd)
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
	if errno = c.become(); errno != 0 {
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

// become gives the child its identity. As in-box root, whom the kernel has given the namespace to, it may enter one, and has all
// capabilities there; all but a few leave it for good with the bounding set (capabilities(7)).
//
//go:nosplit
//go:norace
//go:nocheckptr
func (c *child) become() (errno syscall.Errno) {
	if _, _, errno = syscall.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(c.ident.groups)), uintptr(unsafe.Pointer(unsafe.SliceData(c.ident.groups))), 0); errno != 0 {
		return errno
	}
	if c.ident.namespace >= 0 {
		if _, _, errno = syscall.RawSyscall(unix.SYS_SETNS, uintptr(c.ident.namespace), unix.CLONE_NEWUSER, 0); errno != 0 {
			return errno
		}
	}
	if _, _, errno = syscall.RawSyscall(unix.SYS_SETGID, c.ident.gid, 0, 0); errno != 0 {
		return errno
	}
	if _, _, errno = syscall.RawSyscall(unix.SYS_SETUID, c.ident.uid, 0, 0); errno != 0 {
		return errno
	}
	if c.ident.namespace < 0 {
		return 0 // without capabilities, by its change of uid
	}
	for capability := uintptr(0); ; capability++ {
		if capability < 32 && c.ident.capabilities&(1<<capability) != 0 {
			continue
		}
		if _, _, errno = syscall.RawSyscall(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, capability, 0); errno == unix.EINVAL {
			break // past the last one of this kernel
		} else if errno != 0 {
			return errno
		}
	}
	_, _, errno = syscall.RawSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&c.caps.header)), uintptr(unsafe.Pointer(&c.caps.data)), 0)
	return errno
}

// vforkSyscall makes a system call that returns twice on one stack.
//
//go:noescape
func vforkSyscall(trap, a1, a2 uintptr) (r1, errno uintptr)
