// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// spaceFlags returns the clone flags of namespaces, by the names of their files in /proc/<pid>/ns.
func spaceFlags() map[string]uintptr {
	return map[string]uintptr{
		"user": unix.CLONE_NEWUSER, "mnt": unix.CLONE_NEWNS, "pid": unix.CLONE_NEWPID, "net": unix.CLONE_NEWNET,
		"ipc": unix.CLONE_NEWIPC, "uts": unix.CLONE_NEWUTS, "cgroup": unix.CLONE_NEWCGROUP, "time": unix.CLONE_NEWTIME,
	}
}

// flagsOf combines the flags of several namespaces.
func flagsOf(names []string) (flags uintptr) {
	for _, n := range names {
		flags |= spaceFlags()[n]
	}
	return flags
}

// spaces returns the ways into other namespaces.
func spaces() map[string]attempt {
	return map[string]attempt{
		"unshare": func(a []string) error { return unix.Unshare(int(flagsOf(a))) },
		"clone": func(a []string) error {
			return child(unix.SYS_CLONE, flagsOf(a)|uintptr(unix.SIGCHLD), 0)
		},
		"clone3": func(a []string) error {
			args := [11]uint64{0: uint64(flagsOf(a)), 4: uint64(unix.SIGCHLD)}
			return child(unix.SYS_CLONE3, uintptr(unsafe.Pointer(&args)), unsafe.Sizeof(args))
		},
		"setns":    setns,
		"setnspid": setnsPid,
	}
}

// child makes a call that forks unless it is refused; the child exits at once.
func child(nr, a, b uintptr) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	pid, _, errno := unix.RawSyscall6(nr, a, b, 0, 0, 0, 0)
	if pid == 0 && errno == 0 {
		_, _, _ = unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
	}
	if errno == 0 {
		_, _ = unix.Wait4(int(pid), nil, unix.WALL, nil)
	}
	return errnoOf(errno)
}

// setns enters every namespace that /proc shows, of any process. The result is the first error other than EPERM, or EPERM.
func setns([]string) error {
	paths, err := filepath.Glob("/proc/*/ns/*")
	if err != nil || len(paths) == 0 {
		return os.ErrNotExist
	}
	for _, path := range paths {
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			continue // of a program that has ended
		}
		err = unix.Setns(fd, 0)
		unix.Close(fd)
		if err != syscall.EPERM { //nolint:errorlint // straight from the kernel
			return err
		}
	}
	return syscall.EPERM
}

// setnsPid enters the namespaces of a process through its pidfd.
func setnsPid(a []string) error {
	pid, err := strconv.Atoi(a[0])
	if err != nil {
		return err
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Setns(fd, unix.CLONE_NEWNS|unix.CLONE_NEWPID|unix.CLONE_NEWNET)
}

// programStart is the load address of static Go programs, PID 1's too.
const programStart = 0x400000

// processes returns the calls on other processes, most of them by pid.
func processes() map[string]attempt {
	onPid := func(f func(pid int) error) attempt {
		return func(a []string) error {
			pid, err := strconv.Atoi(a[0])
			if err != nil {
				return err
			}
			return f(pid)
		}
	}
	vm := func(pid int, transfer func(int, []unix.Iovec, []unix.RemoteIovec, uint) (int, error)) error {
		_, err := transfer(pid, []unix.Iovec{{Base: &scratch[0], Len: 8}}, []unix.RemoteIovec{{Base: programStart, Len: 8}}, 0)
		return err
	}
	return map[string]attempt{
		"kill": func(a []string) error { // pid, signal
			return unix.Kill(int(number(a[0])), syscall.Signal(number(a[1])))
		},
		"tgkill":       onPid(func(pid int) error { return unix.Tgkill(pid, pid, unix.SIGKILL) }),
		"queueinfo":    onPid(func(pid int) error { return queueInfo(pid) }),
		"pidfd_signal": onPid(func(pid int) error { return onPidfd(pid, unix.SYS_PIDFD_SEND_SIGNAL, uintptr(unix.SIGKILL)) }),
		"pidfd_getfd":  onPid(func(pid int) error { return onPidfd(pid, unix.SYS_PIDFD_GETFD, 3) }),
		"attach":       onPid(func(pid int) error { return unix.PtraceAttach(pid) }),
		"seize":        onPid(func(pid int) error { return unix.PtraceSeize(pid) }),
		"readv":        onPid(func(pid int) error { return vm(pid, unix.ProcessVMReadv) }),
		"writev":       onPid(func(pid int) error { return vm(pid, unix.ProcessVMWritev) }),
		"kcmp":         onPid(func(pid int) error { return call(unix.SYS_KCMP, uintptr(os.Getpid()), uintptr(pid), 0, 0, 0) }),
		"move_pages":   onPid(func(pid int) error { return call(unix.SYS_MOVE_PAGES, uintptr(pid), 0, 0, 0, 0, 0) }),
		"setuid":       func(a []string) error { return call(unix.SYS_SETUID, number(a[0])) },
		"setgid":       func(a []string) error { return call(unix.SYS_SETGID, number(a[0])) },
		"setgroups":    plain(unix.SYS_SETGROUPS, 0, 0),
		"setpriority":  plain(unix.SYS_SETPRIORITY, unix.PRIO_PROCESS, 0, bad), // -1
		"realtime": func([]string) error {
			scratch[0] = 1
			return call(unix.SYS_SCHED_SETSCHEDULER, 0, unix.SCHED_FIFO, buffer())
		},
		"raise":         raise,
		"ambient":       plain(unix.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, unix.CAP_NET_RAW),
		"newprivs":      plain(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 0),
		"seccomp_off":   plain(unix.SYS_PRCTL, unix.PR_SET_SECCOMP, 0),
		"prlimit_nproc": func([]string) error { return raiseLimit(unix.RLIMIT_NPROC) },
		"prlimit_core":  func([]string) error { return raiseLimit(unix.RLIMIT_CORE) },
		"prlimit_data":  func([]string) error { return raiseLimit(unix.RLIMIT_DATA) },
	}
}

// raise requests a capability.
func raise([]string) error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	want := [2]unix.CapUserData{{Effective: 1 << unix.CAP_SETUID, Permitted: 1 << unix.CAP_SETUID}}
	return unix.Capset(&header, &want[0])
}

func raiseLimit(resource int) error {
	var now unix.Rlimit
	if err := unix.Prlimit(0, resource, nil, &now); err != nil {
		return err
	}
	now.Max++
	return unix.Prlimit(0, resource, &now, nil)
}

func queueInfo(pid int) error {
	var info [128]byte
	info[0], info[8] = byte(unix.SIGKILL), 0xff // si_signo, and an si_code that a sender may use: SI_QUEUE
	for i := 9; i < 12; i++ {
		info[i] = 0xff
	}
	return call(unix.SYS_RT_SIGQUEUEINFO, uintptr(pid), uintptr(unix.SIGKILL), uintptr(unsafe.Pointer(&info)))
}

// onPidfd makes a call whose first argument is a pidfd, which can be opened for any process.
func onPidfd(pid int, nr, arg uintptr) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return call(nr, uintptr(fd), arg, 0, 0)
}
