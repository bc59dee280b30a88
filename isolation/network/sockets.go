// SPDX-License-Identifier: Apache-2.0

// Sockets in the netns of a box for the egress proxy, which has no privilege and is not in that netns: where the
// box sends DNS queries, where its connections are redirected to, and connections that go on from there.

package network

import (
	"errors"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/network/rule"
)

// Ports on a box's loopback where the egress proxy listens. No program of a box can listen there.
const (
	dns          = 53
	redirectPort = 843 // connections to the proxy are redirected here
)

// Mark is on the packets of the proxy's connections. No program of a box can set it.
const Mark = 0x626f7864

// webPorts returns the ports whose connections name a host.
func webPorts() []uint16 { return []uint16{80, 443} }

// loopbacks returns the addresses that the kernel redirects to.
func loopbacks() []netip.Addr {
	return []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}
}

// Backlogs of the listening sockets.
const (
	fewWait  = 16
	manyWait = 128
)

// openSockets opens the sockets for the DNS queries of a box with rules by name: one for packets,
// and one for connections. With strict, the sockets to which connections are redirected follow,
// also for IPv6 if the box has that. Only root can listen at these ports, no program of a box.
// EADDRINUSE: the sockets of an earlier call are still open.
func openSockets(space *os.File, strict, ipv6 bool) ([]int, error) {
	local := loopbacks()
	list := []socket{{local[0], dns, unix.SOCK_DGRAM, 0}, {local[0], dns, unix.SOCK_STREAM, fewWait}}
	if strict {
		list = append(list, socket{local[0], redirectPort, unix.SOCK_STREAM, manyWait})
		if ipv6 {
			list = append(list, socket{local[1], redirectPort, unix.SOCK_STREAM, manyWait})
		}
	}
	var fds []int
	err := InNamespace(space, func() error {
		for _, s := range list {
			fd, err := s.open()
			if err != nil {
				return err
			}
			fds = append(fds, fd)
		}
		return nil
	})
	if err != nil {
		for _, fd := range fds {
			unix.Close(fd)
		}
		return nil, err
	}
	return fds, nil
}

// socket is a bound socket.
type socket struct {
	addr    netip.Addr
	port    int
	kind    int
	waiting int
}

func (s socket) open() (int, error) {
	family, at := socketAddress(s.addr, s.port)
	fd, err := unix.Socket(family, s.kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	if s.kind == unix.SOCK_STREAM { // earlier connections may be in TIME_WAIT
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	}
	if err == nil {
		err = unix.Bind(fd, at)
	}
	if err == nil && s.kind == unix.SOCK_STREAM {
		err = unix.Listen(fd, s.waiting)
	}
	if err != nil {
		return -1, errors.Join(os.NewSyscallError("bind", err), unix.Close(fd))
	}
	return fd, nil
}

func socketAddress(a netip.Addr, port int) (family int, at unix.Sockaddr) {
	if a.Is4() {
		return unix.AF_INET, &unix.SockaddrInet4{Port: port, Addr: a.As4()}
	}
	return unix.AF_INET6, &unix.SockaddrInet6{Port: port, Addr: a.As16()}
}

// dialOut starts a connection to an address that can be pinned. The descriptor does not block:
// the caller finds out whether the connection is established.
func dialOut(space *os.File, to *isolation.Endpoint) (int, error) {
	p, err := rule.NewPin(addrPort(to), rule.TCP, time.Second)
	if err != nil {
		return -1, err
	}
	if !slices.Contains(webPorts(), p.Port) {
		return -1, &rule.Refusal{Part: "port", Value: strconv.Itoa(int(p.Port)), Allowed: "80 or 443"}
	}
	fd := -1
	err = InNamespace(space, func() (err error) {
		fd, err = dial(&p)
		return err
	})
	return fd, err
}

func dial(p *rule.Pin) (int, error) {
	family, to := socketAddress(p.Addr, int(p.Port))
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, Mark)
	if err == nil {
		err = unix.Connect(fd, to)
	}
	if err != nil && !errors.Is(err, unix.EINPROGRESS) {
		return -1, errors.Join(os.NewSyscallError("connect", err), unix.Close(fd))
	}
	return fd, nil
}
