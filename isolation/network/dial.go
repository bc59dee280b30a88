// SPDX-License-Identifier: Apache-2.0

// Connections to ports at the loopback of boxes, made inside their netns.

package network

import (
	"errors"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// dialLoopback connects to a port of a box from inside its network namespace, space, where no
// rules apply and no port has to be published. It never blocks.
func dialLoopback(space *os.File, to netip.AddrPort) (int, error) {
	if to.Port() == 0 || to.Addr() != netip.IPv6Loopback() && to.Addr() != localhost() {
		return -1, unix.EINVAL
	}
	fd := -1
	family, addr := unix.AF_INET, unix.Sockaddr(&unix.SockaddrInet4{Port: int(to.Port()), Addr: localhost().As4()})
	if to.Addr().Is6() {
		family, addr = unix.AF_INET6, &unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()}
	}
	err := InNamespace(space, func() error {
		s, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			return os.NewSyscallError("socket", err)
		}
		if err := unix.Connect(s, addr); err != nil && !errors.Is(err, unix.EINPROGRESS) {
			unix.Close(s)
			return os.NewSyscallError("connect", err)
		}
		fd = s
		return nil
	})
	return fd, err
}

func localhost() netip.Addr { return netip.AddrFrom4([4]byte{127, 0, 0, 1}) }
