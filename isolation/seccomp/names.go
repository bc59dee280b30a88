// SPDX-License-Identifier: Apache-2.0

package seccomp

import (
	"cmp"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// The tables below are arrays, not maps, so that the linker lays them out: nothing runs at start, and no code can write to them
// by accident.

// An arch is an architecture that filters can be compiled for.
type arch struct {
	audit  uint32 // value of seccomp_data.arch for native calls, see seccomp(2)
	number func(syscallRow) int16
}

func archNamed(name string) (arch, error) {
	switch name {
	case "amd64":
		return arch{unix.AUDIT_ARCH_X86_64, func(r syscallRow) int16 { return r.amd64 }}, nil
	case "arm64":
		return arch{unix.AUDIT_ARCH_AARCH64, func(r syscallRow) int16 { return r.arm64 }}, nil
	}
	return arch{}, fmt.Errorf("unknown architecture %q, want amd64 or arm64", name)
}

// A syscallRow is one line of the generated table: a call and its numbers.
type syscallRow struct {
	name         string
	amd64, arm64 int16
}

// absent is the number of a call on an architecture that lacks it.
const absent = -1

func findSyscall(name string) (syscallRow, bool) {
	i, ok := slices.BinarySearchFunc(syscalls[:], name, func(r syscallRow, name string) int {
		return cmp.Compare(r.name, name)
	})
	if !ok {
		return syscallRow{}, false
	}
	return syscalls[i], true
}

// usedBits says which bits of an argument the kernel uses. The filter sees all 64 bits of the
// register, but a call that declares an int drops the upper half: comparing that would let
// ioctl(fd, 1<<32|TIOCSTI) through, which still does what TIOCSTI does. Arguments that are not
// listed are pointers, longs, or not needed yet, and cannot be tested.
type usedBits struct {
	name string
	arg  uint32
	bits uint32
}

const (
	asInt  = 0xffffffff // int, unsigned int
	asMode = 0xffff     // umode_t is an unsigned short
)

// usedArgBits follows the SYSCALL_DEFINE lines of the kernel. clone declares a long but uses
// lower_32_bits() of it.
var usedArgBits = [...]usedBits{
	{"chmod", 1, asMode},
	{"clone", 0, asInt},
	{"creat", 1, asMode},
	{"fchmod", 1, asMode},
	{"fchmodat", 2, asMode},
	{"fchmodat2", 2, asMode},
	{"fcntl", 1, asInt},
	{"ioctl", 1, asInt},
	{"memfd_create", 1, asInt},
	{"mkdir", 1, asMode},
	{"mkdirat", 2, asMode},
	{"mknod", 1, asMode},
	{"mknodat", 2, asMode},
	{"mmap", 3, asInt}, // a long, whose upper half has no meaning yet
	{"open", 1, asInt},
	{"open", 2, asMode},
	{"openat", 2, asInt},
	{"openat", 3, asMode},
	{"personality", 0, asInt},
	{"setns", 1, asInt},
	{"setsockopt", 1, asInt},
	{"setsockopt", 2, asInt},
	{"shmget", 2, asInt},
	{"socket", 0, asInt},
	{"socket", 1, asInt},
	{"socket", 2, asInt},
	{"socketpair", 0, asInt},
}

func findKept(name string, arg uint32) (bits uint32, ok bool) {
	for _, k := range usedArgBits {
		if k.name == name && k.arg == arg {
			return k.bits, true
		}
	}
	return 0, false
}

// A named value in the grammar of policies.
type named struct {
	name  string
	value uint32
}

// errnos are the answers a policy may give; more can be added freely. Their
// values are the same on both architectures, as are those of the constants
// (a test compares them).
var errnos = [...]named{
	{"EACCES", uint32(unix.EACCES)},
	{"EAFNOSUPPORT", uint32(unix.EAFNOSUPPORT)},
	{"EINVAL", uint32(unix.EINVAL)},
	{"ENOMEM", uint32(unix.ENOMEM)},
	{"ENOPROTOOPT", uint32(unix.ENOPROTOOPT)},
	{"ENOSYS", uint32(unix.ENOSYS)},
	{"EOPNOTSUPP", uint32(unix.EOPNOTSUPP)},
	{"EPERM", uint32(unix.EPERM)},
	{"EPROTONOSUPPORT", uint32(unix.EPROTONOSUPPORT)},
}

var constants = [...]named{
	{"ADDR_NO_RANDOMIZE", 0x0040000},
	{"AF_INET", unix.AF_INET},
	{"AF_INET6", unix.AF_INET6},
	{"AF_NETLINK", unix.AF_NETLINK},
	{"AF_UNIX", unix.AF_UNIX},
	{"CLONE_NEWCGROUP", unix.CLONE_NEWCGROUP},
	{"CLONE_NEWIPC", unix.CLONE_NEWIPC},
	{"CLONE_NEWNET", unix.CLONE_NEWNET},
	{"CLONE_NEWNS", unix.CLONE_NEWNS},
	{"CLONE_NEWPID", unix.CLONE_NEWPID},
	{"CLONE_NEWUSER", unix.CLONE_NEWUSER},
	{"CLONE_NEWUTS", unix.CLONE_NEWUTS},
	{"FS_IOC_ADD_ENCRYPTION_KEY", unix.FS_IOC_ADD_ENCRYPTION_KEY},
	{"FS_IOC_FSSETXATTR", 0x401c5820},
	{"FS_IOC_SETFLAGS", unix.FS_IOC_SETFLAGS},
	{"FS_IOC_SET_ENCRYPTION_POLICY", unix.FS_IOC_SET_ENCRYPTION_POLICY},
	{"F_OFD_GETLK", unix.F_OFD_GETLK},
	{"F_OFD_SETLK", unix.F_OFD_SETLK},
	{"F_OFD_SETLKW", unix.F_OFD_SETLKW},
	{"F_SETLEASE", unix.F_SETLEASE},
	{"F_SETDELEG", unix.F_SETDELEG},
	{"IPPROTO_ICMP", unix.IPPROTO_ICMP},
	{"IPPROTO_ICMPV6", unix.IPPROTO_ICMPV6},
	{"IPPROTO_MPTCP", unix.IPPROTO_MPTCP},
	{"IPPROTO_TCP", unix.IPPROTO_TCP},
	{"IPPROTO_UDP", unix.IPPROTO_UDP},
	{"MAP_HUGETLB", unix.MAP_HUGETLB},
	{"MFD_HUGETLB", unix.MFD_HUGETLB},
	{"NETLINK_AUDIT", unix.NETLINK_AUDIT},
	{"NETLINK_ROUTE", unix.NETLINK_ROUTE},
	{"O_CREAT", unix.O_CREAT},
	{"PER_LINUX32", 0x0008},
	{"SHM_HUGETLB", 0o4000},
	{"SOCK_DGRAM", unix.SOCK_DGRAM},
	{"SOCK_STREAM", unix.SOCK_STREAM},
	{"SOCK_TYPE_MASK", 0xf},
	{"SOL_TCP", unix.SOL_TCP},
	{"S_IFIFO", unix.S_IFIFO},
	{"S_IFMT", unix.S_IFMT},
	{"S_IFREG", unix.S_IFREG},
	{"S_IFSOCK", unix.S_IFSOCK},
	{"S_ISGID", unix.S_ISGID},
	{"S_ISUID", unix.S_ISUID},
	{"TCP_ULP", unix.TCP_ULP},
	{"TIOCLINUX", unix.TIOCLINUX},
	{"TIOCSETD", unix.TIOCSETD},
	{"TIOCSTI", unix.TIOCSTI},
	{"UNAME26", 0x0020000},
	// The bit that distinguishes O_TMPFILE; the rest of it is O_DIRECTORY, which differs between
	// architectures and does not mean that a file is created.
	{"__O_TMPFILE", 0o20000000},
}

func findNamed(table []named, name string) (uint32, bool) {
	for _, n := range table {
		if n.name == name {
			return n.value, true
		}
	}
	return 0, false
}
