// SPDX-License-Identifier: Apache-2.0

package main

import (
	"maps"
	"os"
	"runtime"
	"strconv"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// attempt makes one call with arguments from the command line.
type attempt func(args []string) error

// attempts returns all calls by name. Pointer arguments refer to valid memory, so that a call which passed every check would
// really take effect.
func attempts() map[string]attempt {
	all := map[string]attempt{}
	for _, group := range []map[string]attempt{files(), trees(), spaces(), processes(), machine(), sockets(), terminals(), foreign()} {
		maps.Copy(all, group)
	}
	return all
}

// text returns a NUL-terminated string for a system call.
func text(s string) uintptr {
	p, err := unix.BytePtrFromString(s)
	if err != nil {
		return 0
	}
	pinned = append(pinned, p)
	return uintptr(unsafe.Pointer(p))
}

// pinned keeps memory alive that was passed to the kernel as a number.
var pinned []*byte

// scratch is memory for results that are not used.
var scratch [4096]byte

func buffer() uintptr { return uintptr(unsafe.Pointer(&scratch[0])) }

// call makes a system call whose result is not used.
func call(nr uintptr, args ...uintptr) error {
	var a [6]uintptr
	copy(a[:], args)
	_, _, errno := unix.Syscall6(nr, a[0], a[1], a[2], a[3], a[4], a[5])
	runtime.KeepAlive(pinned)
	return errnoOf(errno)
}

func errnoOf(errno syscall.Errno) error {
	if errno != 0 {
		return errno
	}
	return nil
}

// plain returns an attempt of a call with fixed arguments.
func plain(nr uintptr, args ...uintptr) attempt {
	return func([]string) error { return call(nr, args...) }
}

func number(s string) uintptr {
	n, err := strconv.ParseInt(s, 0, 64)
	if err != nil {
		panic(err)
	}
	return uintptr(n)
}

const bad = ^uintptr(0) // an invalid descriptor

var here = bad - 99 // AT_FDCWD

// files returns ordinary file operations, for promises of success and of refusal.
func files() map[string]attempt {
	return map[string]attempt{
		"read": func(a []string) error {
			f, err := os.Open(a[0])
			if err != nil {
				return err
			}
			defer f.Close()
			_, err = f.Read(scratch[:1])
			if err != nil && err.Error() == "EOF" {
				return nil
			}
			return err
		},
		"list":  func(a []string) error { _, err := os.ReadDir(a[0]); return err },
		"write": func(a []string) error { return openFor(a[0], os.O_WRONLY|os.O_APPEND) },
		"rdwr":  func(a []string) error { return openFor(a[0], os.O_RDWR) },
		"trunc": func(a []string) error { return openFor(a[0], os.O_WRONLY|os.O_TRUNC) },
		"create": func(a []string) error {
			return os.WriteFile(a[0], []byte("made in a box\n"), 0o600)
		},
		"put": func(a []string) error { // path, text
			f, err := os.OpenFile(a[0], os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			defer f.Close()
			_, err = f.WriteString(a[1])
			return err
		},
		"mkdir":  func(a []string) error { return os.Mkdir(a[0], 0o755) },
		"remove": func(a []string) error { return os.Remove(a[0]) },
		"rename": func(a []string) error { return unix.Rename(a[0], a[1]) },
		"swap": func(a []string) error {
			return unix.Renameat2(unix.AT_FDCWD, a[0], unix.AT_FDCWD, a[1], unix.RENAME_EXCHANGE)
		},
		"link":    func(a []string) error { return os.Link(a[0], a[1]) },
		"symlink": func(a []string) error { return os.Symlink(a[0], a[1]) },
		"chmod":   func(a []string) error { return unix.Chmod(a[1], uint32(number(a[0]))) },
		"fchmodat2": func(a []string) error {
			return call(unix.SYS_FCHMODAT2, here, text(a[1]), number(a[0]), 0)
		},
		"chown": func(a []string) error { return os.Lchown(a[1], int(number(a[0])), int(number(a[0]))) },
		"open": func(a []string) error {
			return call(unix.SYS_OPENAT, here, text(a[1]), unix.O_CREAT|unix.O_WRONLY, number(a[0]))
		},
		"chgrp":   func(a []string) error { return os.Lchown(a[1], -1, int(number(a[0]))) },
		"openat2": openat2,
		"mkdirm":  func(a []string) error { return call(unix.SYS_MKDIRAT, here, text(a[1]), number(a[0])) },
		"mknod": func(a []string) error { // mode, device number, path
			return call(unix.SYS_MKNODAT, here, text(a[2]), number(a[0]), number(a[1]))
		},
		"setxattr": func(a []string) error { return unix.Setxattr(a[1], a[0], []byte("x"), 0) },
		"chdir":    func(a []string) error { return os.Chdir(a[0]) },
	}
}

func openFor(path string, flags int) error {
	f, err := os.OpenFile(path, flags, 0)
	if err != nil {
		return err
	}
	return f.Close()
}

func openat2(a []string) error {
	how := unix.OpenHow{Flags: unix.O_CREAT | unix.O_WRONLY, Mode: uint64(number(a[0]))}
	fd, err := unix.Openat2(unix.AT_FDCWD, a[1], &how)
	if err == nil {
		unix.Close(fd)
	}
	return err
}

// trees returns the calls that create and change mounts.
func trees() map[string]attempt {
	return map[string]attempt{
		"mount":   func([]string) error { return unix.Mount("tmpfs", "/tmp", "tmpfs", 0, "") },
		"bind":    func(a []string) error { return unix.Mount(a[0], a[1], "", unix.MS_BIND, "") },
		"remount": func(a []string) error { return unix.Mount("", a[0], "", unix.MS_REMOUNT|unix.MS_BIND, "") },
		"umount":  func(a []string) error { return unix.Unmount(a[0], unix.MNT_DETACH) },
		"pivot":   func([]string) error { return unix.PivotRoot("/tmp", "/tmp") },
		"chroot":  func([]string) error { return unix.Chroot("/tmp") },
		"move_mount": func([]string) error {
			return unix.MoveMount(unix.AT_FDCWD, "/tmp", unix.AT_FDCWD, "/home/box", 0)
		},
		"fsopen":    func([]string) error { _, err := unix.Fsopen("tmpfs", 0); return err },
		"fsconfig":  plain(unix.SYS_FSCONFIG, 0, unix.FSCONFIG_CMD_CREATE),
		"fsmount":   plain(unix.SYS_FSMOUNT, 0),
		"fspick":    func([]string) error { _, err := unix.Fspick(unix.AT_FDCWD, "/tmp", 0); return err },
		"open_tree": func([]string) error { _, err := unix.OpenTree(unix.AT_FDCWD, "/", unix.OPEN_TREE_CLONE); return err },
		"open_tree_attr": func([]string) error {
			return call(unix.SYS_OPEN_TREE_ATTR, here, text("/tmp"), unix.OPEN_TREE_CLONE, buffer(), 32)
		},
		"mount_setattr": func(a []string) error {
			attr := unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV}
			return unix.MountSetattr(unix.AT_FDCWD, a[0], 0, &attr)
		},
		"statmount": plain(unix.SYS_STATMOUNT),
	}
}

// machine returns the calls about the kernel and the whole host.
func machine() map[string]attempt {
	now := unix.NsecToTimespec(time.Now().UnixNano())
	return map[string]attempt{
		"keyctl":            plain(unix.SYS_KEYCTL, unix.KEYCTL_GET_KEYRING_ID, bad-2, 1),
		"add_key":           func([]string) error { return call(unix.SYS_ADD_KEY, text("user"), text("x"), buffer(), 1, bad-2) },
		"request_key":       func([]string) error { return call(unix.SYS_REQUEST_KEY, text("user"), text("x"), 0, 0) },
		"io_uring_setup":    func([]string) error { clear(scratch[:]); return call(unix.SYS_IO_URING_SETUP, 1, buffer()) },
		"io_uring_enter":    plain(unix.SYS_IO_URING_ENTER),
		"io_uring_register": plain(unix.SYS_IO_URING_REGISTER),
		"userfaultfd":       plain(unix.SYS_USERFAULTFD, unix.O_CLOEXEC|1), // 1: UFFD_USER_MODE_ONLY
		"bpf":               func([]string) error { clear(scratch[:]); return call(unix.SYS_BPF, 0, buffer(), 48) },
		"perf_event_open": func([]string) error {
			attr := unix.PerfEventAttr{Type: unix.PERF_TYPE_SOFTWARE, Size: uint32(unsafe.Sizeof(unix.PerfEventAttr{})), Bits: unix.PerfBitExcludeKernel}
			_, err := unix.PerfEventOpen(&attr, 0, -1, -1, 0)
			return err
		},
		"kexec_load":        plain(unix.SYS_KEXEC_LOAD),
		"kexec_file_load":   plain(unix.SYS_KEXEC_FILE_LOAD, bad, bad),
		"init_module":       func([]string) error { return call(unix.SYS_INIT_MODULE, buffer(), 8, text("")) },
		"finit_module":      func([]string) error { return call(unix.SYS_FINIT_MODULE, 0, text(""), 0) },
		"delete_module":     func([]string) error { return call(unix.SYS_DELETE_MODULE, text("no_such"), 0) },
		"fanotify_init":     plain(unix.SYS_FANOTIFY_INIT),
		"quotactl":          plain(unix.SYS_QUOTACTL, 0x800001<<8), // Q_SYNC
		"open_by_handle_at": func([]string) error { return call(unix.SYS_OPEN_BY_HANDLE_AT, here, buffer(), 0) },
		"name_to_handle_at": func([]string) error {
			return call(unix.SYS_NAME_TO_HANDLE_AT, here, text("/"), buffer(), buffer()+1024, 0)
		},
		"vmsplice":     plain(unix.SYS_VMSPLICE, 1),
		"memfd_secret": plain(unix.SYS_MEMFD_SECRET),
		"projid":       func(a []string) error { return onFile(a[0], 0x401c5820) }, // FS_IOC_FSSETXATTR
		"setflags":     func(a []string) error { return onFile(a[0], unix.FS_IOC_SETFLAGS) },
		"file_setattr": func(a []string) error { clear(scratch[:]); return call(469, here, text(a[0]), buffer(), 24, 0) },
		"personality":  plain(unix.SYS_PERSONALITY, 0x0400000), // READ_IMPLIES_EXEC

		"clock_settime": func([]string) error { return unix.ClockSettime(unix.CLOCK_REALTIME, &now) },
		"settimeofday":  func([]string) error { tv := unix.NsecToTimeval(time.Now().UnixNano()); return unix.Settimeofday(&tv) },
		"adjtimex":      func([]string) error { _, err := unix.Adjtimex(&unix.Timex{Modes: unix.ADJ_OFFSET}); return err },
		"clock_adjtime": func([]string) error {
			_, err := unix.ClockAdjtime(unix.CLOCK_REALTIME, &unix.Timex{Modes: unix.ADJ_OFFSET})
			return err
		},
		"sethostname":   func([]string) error { return unix.Sethostname([]byte("mine")) },
		"setdomainname": func([]string) error { return unix.Setdomainname([]byte("mine")) },
		"reboot":        plain(unix.SYS_REBOOT, unix.LINUX_REBOOT_MAGIC1, unix.LINUX_REBOOT_MAGIC2, 0),
		"swapon":        func([]string) error { return call(unix.SYS_SWAPON, text("/tmp"), 0) },
		"swapoff":       func([]string) error { return call(unix.SYS_SWAPOFF, text("/tmp")) },
		"syslog":        plain(unix.SYS_SYSLOG, 3, buffer(), 1),
		"acct":          plain(unix.SYS_ACCT, 0),
	}
}

// onFile makes an ioctl that sets a file's flags to their current values.
func onFile(path string, request uintptr) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	clear(scratch[:])
	return call(unix.SYS_IOCTL, f.Fd(), request, buffer())
}
