// SPDX-License-Identifier: Apache-2.0

// A box in the host's network. It may not configure that, which belongs to another user
// namespace, but it can connect as any program of the host can.

package isolation

import (
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// SetUpLoopback sets lo up, in PID 1 of a new box. In a network namespace of the box's own it is
// down until then; if it is up already, the network is the host's.
func SetUpLoopback() (host bool, item string, err error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false, "socket", err
	}
	defer unix.Close(fd)
	ifr, err := unix.NewIfreq("lo")
	if err != nil {
		return false, "lo", err
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, ifr); err != nil {
		return false, "lo", err
	}
	if ifr.Uint16()&unix.IFF_UP != 0 {
		return true, "", nil
	}
	ifr.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return false, "lo", unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, ifr)
}

// minScopes is the first Landlock ABI version that can keep programs from abstract sockets of
// others (Linux 6.12).
const minScopes = 6

// CanScopeSockets reports whether this kernel can keep the programs of such a box from the host's
// abstract Unix sockets.
func CanScopeSockets() bool {
	version, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	return errno == 0 && version >= minScopes
}

// CheckHostNetwork warns that there are such profiles.
func CheckHostNetwork(profiles []string) Check {
	detail := "boxes of these profiles use the network of the host unfiltered, including services on loopback: " + strings.Join(profiles, ", ")
	if !CanScopeSockets() {
		detail += ", and abstract Unix sockets (blocked only from Linux 6.12 on, by Landlock)"
	}
	return Check{
		Name: "host network", Level: CheckWarn, Detail: detail,
		Hint: "allow these profiles only to trusted callers (policy.NAME.profiles), or set network = \"egress\"",
	}
}

// ScopeSockets keeps this thread, and every process it starts, from abstract Unix sockets of
// other processes, if the box shares the host's network and the kernel can do it. The thread must
// have no_new_privs, and must be the one that starts all programs of the box: those can then
// still reach each other.
func ScopeSockets(host bool) (item string, err error) {
	if !host || !CanScopeSockets() {
		return "", nil
	}
	rules := unix.LandlockRulesetAttr{Scoped: unix.LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET}
	fd, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&rules)), unsafe.Sizeof(rules), 0)
	if errno != 0 {
		return "landlock", errno
	}
	defer unix.Close(int(fd))
	if _, _, errno = unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, fd, 0, 0); errno != 0 {
		return "landlock", errno
	}
	return "", nil
}
