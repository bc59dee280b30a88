// SPDX-License-Identifier: Apache-2.0

// Connections to ports at the loopback of boxes, made inside their netns.

package network

import (
	"errors"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// WordConnect is followed by an address of the box's own loopback and a port, and connects there. Boxes without a link
// have one too. The connection may not be there yet: whoever gets the file waits for that.
const WordConnect = "connect"

// Connect connects to a port of a box from within its network, which space is, where no rule is about it and nothing is published. It
// never waits.
func Connect(space *os.File, words []string) (files []int, err error) {
	if len(words) != 1 {
		return nil, unix.EINVAL
	}
	to, err := netip.ParseAddrPort(words[0])
	if err != nil || to.Port() == 0 || to.Addr() != netip.IPv6Loopback() && to.Addr() != localhost() {
		return nil, unix.EINVAL
	}
	family, addr := unix.AF_INET, unix.Sockaddr(&unix.SockaddrInet4{Port: int(to.Port()), Addr: localhost().As4()})
	if to.Addr().Is6() {
		family, addr = unix.AF_INET6, &unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()}
	}
	err = InNamespace(space, func() error {
		fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			return os.NewSyscallError("socket", err)
		}
		if err := unix.Connect(fd, addr); err != nil && !errors.Is(err, unix.EINPROGRESS) {
			unix.Close(fd)
			return os.NewSyscallError("connect", err)
		}
		files = []int{fd}
		return nil
	})
	return files, err
}

func localhost() netip.Addr { return netip.AddrFrom4([4]byte{127, 0, 0, 1}) }
