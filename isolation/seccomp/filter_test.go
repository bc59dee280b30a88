// SPDX-License-Identifier: Apache-2.0

package seccomp

import (
	"testing"

	"golang.org/x/sys/unix"
)

const allowed = unix.SECCOMP_RET_ALLOW

func errno(e unix.Errno) uint32 { return unix.SECCOMP_RET_ERRNO | uint32(e) }

// Every number in every kind of box, with every argument that matters, must be answered as the
// policy says.
func TestFilterMeansThePolicy(t *testing.T) {
	rules, err := parse(Default())
	if err != nil {
		t.Fatal(err)
	}
	for _, target := range targets {
		f := mustCompile(t, Default(), target.options)
		checkValid(t, f)
		t.Logf("%v: %d instructions", target.options, f.Len())
		names := numbers(t, target.options.Arch)
		for nr := range uint32(601) {
			valid := inForce(rules[names[nr]], &target.options)
			for _, args := range variants(valid, everything) {
				_, want := expect(valid, args)
				if got := f.run(call{target.audit, nr, args}); got != want {
					t.Errorf("%v: %s (%d) %#x: verdict %#x, want %#x", target.options, names[nr], nr, args, got, want)
				}
			}
		}
	}
}

func TestUnknownSyscallNumbersGetENOSYS(t *testing.T) {
	for _, target := range targets {
		f := mustCompile(t, Default(), target.options)
		for _, nr := range []uint32{601, 1000, 0x3fffffff, 0x7fffffff, 0x80000000, 0xfffffffe, 0xffffffff} {
			if got := f.run(call{arch: target.audit, number: nr}); got != errno(unix.ENOSYS) {
				t.Errorf("%v: number %#x: verdict %#x", target.options, nr, got)
			}
		}
	}
}

func TestForeignABIs(t *testing.T) {
	foreign := map[string]uint32{
		"i386": unix.AUDIT_ARCH_I386, "amd64": unix.AUDIT_ARCH_X86_64,
		"arm": unix.AUDIT_ARCH_ARM, "arm64": unix.AUDIT_ARCH_AARCH64,
		"riscv64": unix.AUDIT_ARCH_RISCV64, "none": 0,
	}
	const x32 = 0x40000000
	for _, target := range targets {
		f := mustCompile(t, Default(), target.options)
		for nr := range uint32(601) {
			for name, audit := range foreign {
				if got := f.run(call{arch: audit, number: nr}); audit != target.audit && got != errno(unix.ENOSYS) {
					t.Errorf("%v: number %d of %s: verdict %#x", target.options, nr, name, got)
				}
			}
			if got := f.run(call{arch: target.audit, number: nr | x32}); got != errno(unix.ENOSYS) {
				t.Errorf("%v: number %d of x32: verdict %#x", target.options, nr, got)
			}
		}
	}
}

// verdicts states the policy a second time, by hand, as a reader expects it. hostrw is left out
// where it makes no difference.
var verdicts = []struct {
	name   string
	args   [6]uint64
	want   uint32
	hostrw uint32
}{
	{name: "read", want: allowed},
	{name: "clone3", want: allowed},
	{name: "memfd_secret", want: errno(unix.ENOSYS)},

	{name: "ioctl", args: [6]uint64{0, unix.TCGETS}, want: allowed},
	{name: "ioctl", args: [6]uint64{0, unix.TIOCSTI}, want: errno(unix.EPERM)},
	{name: "ioctl", args: [6]uint64{0, 1<<32 | unix.TIOCSTI}, want: errno(unix.EPERM)},
	{name: "ioctl", args: [6]uint64{0, 0xffffffff00000000 | unix.TIOCSTI}, want: errno(unix.EPERM)},
	{name: "ioctl", args: [6]uint64{0, 1<<63 | unix.TIOCLINUX}, want: errno(unix.EPERM)},
	{name: "ioctl", args: [6]uint64{0, unix.TIOCSETD}, want: errno(unix.EPERM)},
	{name: "ioctl", args: [6]uint64{0, 1<<32 | unix.FS_IOC_SETFLAGS}, want: errno(unix.EPERM)},
	{name: "ioctl", args: [6]uint64{0, 0x401c5820}, want: errno(unix.EPERM)},
	{name: "ioctl", args: [6]uint64{0, unix.FS_IOC_GETFLAGS}, want: allowed},
	{name: "ioctl", args: [6]uint64{unix.TIOCSTI, 0, unix.TIOCSTI}, want: allowed},

	{name: "socket", args: [6]uint64{unix.AF_UNIX, unix.SOCK_STREAM}, want: allowed},
	{name: "socket", args: [6]uint64{unix.AF_UNIX, unix.SOCK_SEQPACKET | unix.SOCK_CLOEXEC}, want: allowed},
	{name: "socket", args: [6]uint64{unix.AF_INET, unix.SOCK_STREAM | unix.SOCK_NONBLOCK, unix.IPPROTO_TCP}, want: allowed},
	{name: "socket", args: [6]uint64{unix.AF_INET6, unix.SOCK_DGRAM, unix.IPPROTO_ICMPV6}, want: allowed},
	{name: "socket", args: [6]uint64{unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_MPTCP}, want: allowed},
	{name: "socket", args: [6]uint64{unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP}, want: errno(unix.EPERM)},
	{name: "socket", args: [6]uint64{unix.AF_INET, unix.SOCK_SEQPACKET}, want: errno(unix.EPERM)},
	{name: "socket", args: [6]uint64{unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP}, want: errno(unix.EPERM)},
	{name: "socket", args: [6]uint64{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE}, want: allowed},
	{name: "socket", args: [6]uint64{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_NETFILTER}, want: errno(unix.EPERM)},
	{name: "socket", args: [6]uint64{unix.AF_NETLINK, unix.SOCK_RAW, 1<<32 | unix.NETLINK_NETFILTER}, want: errno(unix.EPERM)},
	{name: "socket", args: [6]uint64{unix.AF_VSOCK, unix.SOCK_STREAM}, want: errno(unix.EPERM)},
	{name: "socket", args: [6]uint64{1<<32 | unix.AF_VSOCK, unix.SOCK_STREAM}, want: errno(unix.EPERM)},
	{name: "socket", args: [6]uint64{unix.AF_ALG, unix.SOCK_SEQPACKET}, want: errno(unix.EPERM)},
	{name: "socket", args: [6]uint64{unix.AF_PACKET, unix.SOCK_RAW}, want: errno(unix.EPERM)},
	{name: "socket", args: [6]uint64{}, want: errno(unix.EPERM)},
	{name: "socketpair", args: [6]uint64{unix.AF_UNIX, unix.SOCK_STREAM}, want: allowed},
	{name: "socketpair", args: [6]uint64{unix.AF_TIPC, unix.SOCK_STREAM}, want: errno(unix.EPERM)},
	{name: "setsockopt", args: [6]uint64{3, unix.SOL_TCP, unix.TCP_ULP}, want: errno(unix.ENOPROTOOPT)},
	{name: "setsockopt", args: [6]uint64{3, 1<<32 | unix.SOL_TCP, 1<<32 | unix.TCP_ULP}, want: errno(unix.ENOPROTOOPT)},
	{name: "setsockopt", args: [6]uint64{3, unix.SOL_TCP, unix.TCP_NODELAY}, want: allowed},
	{name: "setsockopt", args: [6]uint64{3, unix.SOL_SOCKET, unix.TCP_ULP}, want: allowed},

	{name: "clone", args: [6]uint64{unix.CLONE_VM | unix.CLONE_VFORK | uint64(unix.SIGCHLD)}, want: allowed},
	{name: "clone", args: [6]uint64{unix.CLONE_NEWUSER | uint64(unix.SIGCHLD)}, want: errno(unix.EPERM)},
	{name: "clone", args: [6]uint64{1<<32 | unix.CLONE_NEWCGROUP}, want: errno(unix.EPERM)},
	{name: "clone", args: [6]uint64{0, unix.CLONE_NEWNET}, want: allowed},

	{name: "personality", args: [6]uint64{0xffffffff}, want: allowed},
	{name: "personality", args: [6]uint64{0x0008}, want: allowed},
	{name: "personality", args: [6]uint64{0x0040000}, want: allowed},
	{name: "personality", args: [6]uint64{0x0400000}, want: errno(unix.EPERM)},
	{name: "personality", args: [6]uint64{0x0440000}, want: errno(unix.EPERM)},

	{name: "mknod", args: [6]uint64{0, unix.S_IFIFO | 0o600}, want: allowed},
	{name: "mknod", args: [6]uint64{0, 0o600}, want: allowed},
	{name: "mknod", args: [6]uint64{0, unix.S_IFCHR | 0o600}, want: errno(unix.EPERM)},
	{name: "mknod", args: [6]uint64{0, 0xabcd0000 | unix.S_IFBLK | 0o600}, want: errno(unix.EPERM)},
	{name: "mknod", args: [6]uint64{0, unix.S_IFREG | 0o4755}, want: allowed, hostrw: errno(unix.EPERM)},
	{name: "mknodat", args: [6]uint64{0, 0, unix.S_IFSOCK | 0o600}, want: allowed},
	{name: "mknodat", args: [6]uint64{0, 0, unix.S_IFBLK | 0o600}, want: errno(unix.EPERM)},
	{name: "mknodat", args: [6]uint64{0, 0, unix.S_IFREG | 0o2755}, want: allowed, hostrw: errno(unix.EPERM)},

	{name: "chmod", args: [6]uint64{0, 0o1777}, want: allowed},
	{name: "chmod", args: [6]uint64{0, 0o4755}, want: allowed, hostrw: errno(unix.EPERM)},
	{name: "chmod", args: [6]uint64{0, 1<<16 | 0o2755}, want: allowed, hostrw: errno(unix.EPERM)},
	{name: "fchmod", args: [6]uint64{3, 0o6755}, want: allowed, hostrw: errno(unix.EPERM)},
	{name: "fchmodat", args: [6]uint64{0, 0, 1<<32 | 0o4755}, want: allowed, hostrw: errno(unix.EPERM)},
	{name: "fchmodat2", args: [6]uint64{0, 0, 0o4755}, want: allowed, hostrw: errno(unix.EPERM)},
	{name: "mkdir", args: [6]uint64{0, 0o2775}, want: allowed, hostrw: errno(unix.EPERM)},
	{name: "mkdirat", args: [6]uint64{0, 0, 0o2775}, want: allowed, hostrw: errno(unix.EPERM)},
	{name: "creat", args: [6]uint64{0, 0o4755}, want: allowed, hostrw: errno(unix.EPERM)},
	{name: "open", args: [6]uint64{0, unix.O_RDONLY, 0o7777}, want: allowed},
	{name: "open", args: [6]uint64{0, unix.O_RDONLY | unix.O_DIRECTORY, 0o7777}, want: allowed},
	{name: "open", args: [6]uint64{0, unix.O_CREAT, 0o755}, want: allowed},
	{name: "open", args: [6]uint64{0, unix.O_CREAT, 0o4755}, want: allowed, hostrw: errno(unix.EPERM)},
	{name: "openat", args: [6]uint64{0, 0, unix.O_RDONLY, 0o7777}, want: allowed},
	{name: "openat", args: [6]uint64{0, 0, unix.O_DIRECTORY, 0o7777}, want: allowed},
	{name: "openat", args: [6]uint64{0, 0, 1<<32 | unix.O_CREAT, 0o2755}, want: allowed, hostrw: errno(unix.EPERM)},
	{name: "openat", args: [6]uint64{0, 0, unix.O_TMPFILE, 0o4755}, want: allowed, hostrw: errno(unix.EPERM)},
	{name: "openat", args: [6]uint64{0, 0, unix.O_TMPFILE, 0o755}, want: allowed},
	{name: "openat2", want: allowed, hostrw: errno(unix.ENOSYS)},
}

func TestVerdicts(t *testing.T) {
	for _, target := range targets {
		a, err := archNamed(target.options.Arch)
		if err != nil {
			t.Fatal(err)
		}
		f := mustCompile(t, Default(), target.options)
		for _, v := range verdicts {
			row, ok := findSyscall(v.name)
			if !ok {
				t.Fatalf("%s is no system call", v.name)
			}
			if a.number(row) == absent {
				continue
			}
			want := v.want
			if target.options.HostWritable && v.hostrw != 0 {
				want = v.hostrw
			}
			if got := f.run(call{target.audit, uint32(a.number(row)), v.args}); got != want {
				t.Errorf("%v: %s %#x: verdict %#x, want %#x", target.options, v.name, v.args, got, want)
			}
		}
	}
}

// The search must stay shallow: it runs for each call that is not always allowed.
func TestTheSyscallSearchTreeIsShallow(t *testing.T) {
	for _, target := range targets {
		f := mustCompile(t, Default(), target.options)
		deepest := 0
		for nr := range uint32(601) {
			steps, pc := 0, 4
			for in := f.at(pc); in.op == opAbove || in.op == opJump; in = f.at(pc) {
				steps++
				pc++
				if in.op == opJump {
					pc += int(in.k)
				} else {
					pc += in.branch(nr >= in.k)
				}
			}
			deepest = max(deepest, steps)
		}
		if deepest > 10 {
			t.Errorf("%v: %d comparisons before a verdict", target.options, deepest)
		}
	}
}

// Lists and blocks longer than an 8-bit jump must still be jumped over.
func TestLongJumps(t *testing.T) {
	policy := ""
	for i := range 8 {
		policy += "deny ioctl EPERM when arg1 in"
		for j := range 64 {
			policy += " " + string(rune('0'+i)) + "0" + string(rune('0'+j/8)) + string(rune('0'+j%8))
		}
		policy += " # r\n"
	}
	policy += "allow ioctl # r\ndeny socket EACCES when arg0 in"
	for range 64 {
		policy += " 7"
	}
	policy += " and arg1 in"
	for range 64 {
		policy += " 8"
	}
	policy += " and arg2 in"
	for range 64 {
		policy += " 9"
	}
	policy += " and arg2 != 5 # r\nallow socket # r\nallow read bpf # r\n"
	rules, err := parse(policy)
	if err != nil {
		t.Fatal(err)
	}
	for _, target := range targets {
		f := mustCompile(t, policy, target.options)
		checkValid(t, f)
		names := numbers(t, target.options.Arch)
		for nr := range uint32(601) {
			valid := rules[names[nr]]
			for _, args := range variants(valid, everything) {
				_, want := expect(valid, args)
				if got := f.run(call{target.audit, nr, args}); got != want {
					t.Errorf("%v: %s (%d) %#x: verdict %#x, want %#x", target.options, names[nr], nr, args, got, want)
				}
			}
		}
	}
}
