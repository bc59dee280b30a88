// SPDX-License-Identifier: Apache-2.0

package seccomp

import (
	"bytes"
	"encoding/binary"
	"runtime"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Results of a probe besides those of the kernel.
const (
	anyOther unix.Errno = 1<<16 + iota // any errno of the kernel but EPERM and ENOSYS
	notHere                            // this architecture lacks the call
)

// A probe is one call on a running kernel. Where the filter must refuse, the arguments are such
// that the kernel alone would return another errno, even to root; where it must not, they are
// such that nothing happens.
type probe struct {
	what   string
	name   string
	path   int // 1 + the argument that gets the address of nowhere
	args   [6]uintptr
	want   unix.Errno
	hostrw unix.Errno // if it differs from want
	aio    unix.Errno // likewise
}

// nowhere is a path in a directory that does not exist.
var nowhere = [...]byte{'/', 'n', 'o', 'w', 'h', 'e', 'r', 'e', '/', 'x', 0}

func (p probe) run(t *testing.T) unix.Errno {
	a, err := archNamed(runtime.GOARCH)
	if err != nil {
		t.Fatal(err)
	}
	row, ok := findSyscall(p.name)
	if !ok {
		t.Fatalf("%s is no system call", p.name)
	}
	if a.number(row) == absent {
		return notHere
	}
	if p.path > 0 {
		p.args[p.path-1] = uintptr(unsafe.Pointer(&nowhere[0]))
	}
	_, _, e := unix.RawSyscall6(uintptr(a.number(row)), p.args[0], p.args[1], p.args[2], p.args[3], p.args[4], p.args[5])
	return e
}

const (
	bad  = ^uintptr(0) // a bad descriptor, pointer, size or id
	high = 1 << 32     // a bit the kernel drops
)

func probes() []probe {
	cwd := unix.AT_FDCWD
	here := uintptr(cwd)
	return []probe{
		{what: "terminal settings", name: "ioctl", args: [6]uintptr{bad, unix.TCGETS}, want: unix.EBADF},
		{what: "TIOCSTI", name: "ioctl", args: [6]uintptr{bad, unix.TIOCSTI}, want: unix.EPERM},
		{what: "TIOCSTI with a high bit", name: "ioctl", args: [6]uintptr{bad, high | unix.TIOCSTI}, want: unix.EPERM},
		{what: "TIOCLINUX", name: "ioctl", args: [6]uintptr{bad, unix.TIOCLINUX}, want: unix.EPERM},
		{what: "TIOCSETD", name: "ioctl", args: [6]uintptr{bad, unix.TIOCSETD}, want: unix.EPERM},
		{what: "project id", name: "ioctl", args: [6]uintptr{bad, 0x401c5820}, want: unix.EPERM},
		{what: "inode flags with a high bit", name: "ioctl", args: [6]uintptr{bad, high | unix.FS_IOC_SETFLAGS}, want: unix.EPERM},

		{what: "unix socket", name: "socket", args: [6]uintptr{unix.AF_UNIX, unix.SOCK_STREAM}},
		{what: "udp socket", name: "socket", args: [6]uintptr{unix.AF_INET, unix.SOCK_DGRAM}},
		{what: "tcp6 socket", name: "socket", args: [6]uintptr{unix.AF_INET6, unix.SOCK_STREAM}, want: anyOther},
		{what: "mptcp socket", name: "socket", args: [6]uintptr{unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_MPTCP}, want: anyOther},
		{what: "route netlink", name: "socket", args: [6]uintptr{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE}},
		{what: "netfilter netlink", name: "socket", args: [6]uintptr{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_NETFILTER}, want: unix.EPERM},
		{what: "vsock", name: "socket", args: [6]uintptr{unix.AF_VSOCK, unix.SOCK_STREAM}, want: unix.EPERM},
		{what: "vsock with a high bit", name: "socket", args: [6]uintptr{high | unix.AF_VSOCK, unix.SOCK_STREAM}, want: unix.EPERM},
		{what: "alg", name: "socket", args: [6]uintptr{unix.AF_ALG, unix.SOCK_SEQPACKET}, want: unix.EPERM},
		{what: "packet", name: "socket", args: [6]uintptr{unix.AF_PACKET, unix.SOCK_RAW}, want: unix.EPERM},
		{what: "xdp", name: "socket", args: [6]uintptr{unix.AF_XDP, unix.SOCK_RAW}, want: unix.EPERM},
		{what: "sctp", name: "socket", args: [6]uintptr{unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP}, want: unix.EPERM},
		{what: "raw socket", name: "socket", args: [6]uintptr{unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_RAW}, want: unix.EPERM},
		{what: "unix pair", name: "socketpair", args: [6]uintptr{unix.AF_UNIX, unix.SOCK_STREAM, 0, bad}, want: unix.EFAULT},
		{what: "tipc pair", name: "socketpair", args: [6]uintptr{unix.AF_TIPC, unix.SOCK_STREAM, 0, bad}, want: unix.EPERM},
		{what: "socket option", name: "setsockopt", args: [6]uintptr{bad, unix.SOL_TCP, unix.TCP_NODELAY}, want: unix.EBADF},
		{what: "TCP_ULP", name: "setsockopt", args: [6]uintptr{bad, unix.SOL_TCP, unix.TCP_ULP}, want: unix.ENOPROTOOPT},

		// CLONE_SIGHAND without CLONE_VM is an error, so that no child is created.
		{what: "clone", name: "clone", args: [6]uintptr{unix.CLONE_SIGHAND}, want: unix.EINVAL},
		{what: "clone into a user namespace", name: "clone", args: [6]uintptr{unix.CLONE_SIGHAND | unix.CLONE_NEWUSER}, want: unix.EPERM},
		{what: "clone into a net namespace", name: "clone", args: [6]uintptr{high | unix.CLONE_SIGHAND | unix.CLONE_NEWNET}, want: unix.EPERM},
		{what: "clone3", name: "clone3", args: [6]uintptr{0, 0}, want: unix.EINVAL},
		{what: "execve", name: "execve", path: 1, want: unix.ENOENT},
		{what: "execveat", name: "execveat", path: 2, args: [6]uintptr{here}, want: unix.ENOENT},
		{what: "waitid", name: "waitid", args: [6]uintptr{unix.P_PID, 1 << 30, 0, unix.WEXITED}, want: unix.ECHILD},
		{what: "pidfd_open", name: "pidfd_open", args: [6]uintptr{0}, want: unix.EINVAL},
		{what: "pidfd_send_signal", name: "pidfd_send_signal", args: [6]uintptr{bad}, want: unix.EBADF},
		{what: "ptrace", name: "ptrace", args: [6]uintptr{unix.PTRACE_CONT, 1 << 30}, want: unix.ESRCH},
		{what: "personality query", name: "personality", args: [6]uintptr{0xffffffff}},
		{what: "READ_IMPLIES_EXEC", name: "personality", args: [6]uintptr{0x0400000}, want: unix.EPERM},
		{what: "prctl", name: "prctl", args: [6]uintptr{unix.PR_SET_DUMPABLE, 99}, want: unix.EINVAL},
		{what: "setuid", name: "setuid", args: [6]uintptr{bad}, want: unix.EINVAL},
		{what: "setresgid", name: "setresgid", args: [6]uintptr{bad, bad, bad}},
		{what: "capset", name: "capset", args: [6]uintptr{bad}, want: unix.EFAULT},
		{what: "seccomp", name: "seccomp", args: [6]uintptr{bad}, want: unix.EINVAL},
		{what: "memfd_create", name: "memfd_create", args: [6]uintptr{bad}, want: unix.EFAULT},
		{what: "io_setup", name: "io_setup", args: [6]uintptr{0, bad}, want: unix.ENOSYS, aio: unix.EFAULT},
		{what: "huge pages", name: "mmap", args: [6]uintptr{0, 0, 0, unix.MAP_PRIVATE | unix.MAP_ANONYMOUS | unix.MAP_HUGETLB}, want: unix.ENOMEM},
		{what: "no pages", name: "mmap", args: [6]uintptr{0, 0, 0, unix.MAP_PRIVATE | unix.MAP_ANONYMOUS}, want: unix.EINVAL},
		{what: "a file of huge pages", name: "memfd_create", args: [6]uintptr{bad, unix.MFD_HUGETLB}, want: unix.ENOMEM},
		{what: "a segment of huge pages", name: "shmget", args: [6]uintptr{unix.IPC_PRIVATE, 0, unix.IPC_CREAT | 0o4000}, want: unix.ENOMEM},
		{what: "lock of a process", name: "fcntl", args: [6]uintptr{bad, unix.F_SETLK}, want: unix.EBADF},
		{what: "lock of an open file", name: "fcntl", args: [6]uintptr{bad, unix.F_OFD_SETLK}, want: unix.EINVAL},
		{what: "lease", name: "fcntl", args: [6]uintptr{bad, unix.F_SETLEASE}, want: unix.EINVAL},
		{what: "delegation", name: "fcntl", args: [6]uintptr{bad, unix.F_SETDELEG}, want: unix.EINVAL},
		{what: "waiting lock of an open file, with a high bit", name: "fcntl", args: [6]uintptr{bad, high | unix.F_OFD_SETLKW}, want: unix.EINVAL},
		{what: "splice", name: "splice", args: [6]uintptr{bad, 0, bad, 0, 1}, want: unix.EBADF},
		{what: "fallocate", name: "fallocate", args: [6]uintptr{bad, 0, 0, 1}, want: unix.EBADF},
		{what: "close_range", name: "close_range", args: [6]uintptr{1, 0}, want: unix.EINVAL},
		{what: "faccessat2", name: "faccessat2", path: 2, args: [6]uintptr{here}, want: unix.ENOENT},
		{what: "statx", name: "statx", path: 2, args: [6]uintptr{here}, want: unix.ENOENT},
		{what: "inotify_add_watch", name: "inotify_add_watch", path: 2, args: [6]uintptr{bad, 0, unix.IN_OPEN}, want: unix.EBADF},
		{what: "epoll_pwait2", name: "epoll_pwait2", args: [6]uintptr{bad, bad, 1}, want: anyOther},
		{what: "shmget", name: "shmget", args: [6]uintptr{unix.IPC_PRIVATE, 0, unix.IPC_CREAT}, want: unix.EINVAL},

		{what: "fifo", name: "mknodat", path: 2, args: [6]uintptr{here, 0, unix.S_IFIFO | 0o600}, want: unix.ENOENT},
		{what: "character device", name: "mknodat", path: 2, args: [6]uintptr{here, 0, unix.S_IFCHR | 0o600}, want: unix.EPERM},
		{what: "block device", name: "mknod", path: 1, args: [6]uintptr{0, high | unix.S_IFBLK | 0o600}, want: unix.EPERM},
		{what: "setuid file node", name: "mknodat", path: 2, args: [6]uintptr{here, 0, 0o4755}, want: unix.ENOENT, hostrw: unix.EPERM},
		{what: "chmod", name: "chmod", path: 1, args: [6]uintptr{0, 0o755}, want: unix.ENOENT},
		{what: "setuid chmod", name: "chmod", path: 1, args: [6]uintptr{0, 0o4755}, want: unix.ENOENT, hostrw: unix.EPERM},
		{what: "setuid fchmod", name: "fchmod", args: [6]uintptr{bad, 0o4755}, want: unix.EBADF, hostrw: unix.EPERM},
		{what: "setgid fchmodat", name: "fchmodat", path: 2, args: [6]uintptr{here, 0, high | 0o2755}, want: unix.ENOENT, hostrw: unix.EPERM},
		{what: "setgid mkdirat", name: "mkdirat", path: 2, args: [6]uintptr{here, 0, 0o2755}, want: unix.ENOENT, hostrw: unix.EPERM},
		{what: "setgid mkdir", name: "mkdir", path: 1, args: [6]uintptr{0, 0o2755}, want: unix.ENOENT, hostrw: unix.EPERM},
		{what: "setuid creat", name: "creat", path: 1, args: [6]uintptr{0, 0o4755}, want: unix.ENOENT, hostrw: unix.EPERM},
		{what: "open for reading, mode ignored", name: "open", path: 1, args: [6]uintptr{0, 0, 0o4755}, want: unix.ENOENT},
		{what: "openat of a directory, mode ignored", name: "openat", path: 2, args: [6]uintptr{here, 0, unix.O_DIRECTORY, 0o4755}, want: unix.ENOENT},
		{what: "setuid open", name: "open", path: 1, args: [6]uintptr{0, unix.O_CREAT, 0o4755}, want: unix.ENOENT, hostrw: unix.EPERM},
		{what: "setuid openat", name: "openat", path: 2, args: [6]uintptr{here, 0, high | unix.O_CREAT, 0o4755}, want: unix.ENOENT, hostrw: unix.EPERM},
		{what: "setuid O_TMPFILE", name: "openat", path: 2, args: [6]uintptr{here, 0, unix.O_TMPFILE | unix.O_RDWR, 0o4755}, want: unix.ENOENT, hostrw: unix.EPERM},
		{what: "openat2", name: "openat2", path: 2, args: [6]uintptr{here, 0, 0, 0}, want: unix.EINVAL, hostrw: unix.ENOSYS},
	}
}

// elfHeader returns the smallest header that the kernel loads: one segment of size bytes at base,
// readable and executable, with this entry point.
func elfHeader(entry, base, size uint64) []byte {
	var b bytes.Buffer
	put := func(values ...any) {
		for _, v := range values {
			if err := binary.Write(&b, binary.LittleEndian, v); err != nil {
				panic(err)
			}
		}
	}
	b.WriteString("\x7fELF\x02\x01\x01")
	b.Write(make([]byte, 9))
	put(uint16(2), uint16(62), uint32(1)) // ET_EXEC, EM_X86_64
	put(entry, uint64(64), uint64(0))     // program header behind this one
	put(uint32(0), uint16(64), uint16(56), uint16(1), uint16(0), uint16(0), uint16(0))
	put(uint32(1), uint32(5), uint64(0), base, base, size, size, uint64(0x1000)) // PT_LOAD, R+X
	return b.Bytes()
}
