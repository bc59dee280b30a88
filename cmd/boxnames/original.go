// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
)

// originalDst is SO_ORIGINAL_DST, and IP6T_SO_ORIGINAL_DST.
const originalDst = 80

// original asks the kernel for the original destination of a redirected connection.
func original(c net.Conn) (to netip.AddrPort, err error) {
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return to, errors.New("not a TCP connection")
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return to, err
	}
	local, _ := netip.ParseAddrPort(tcp.LocalAddr().String())
	var serr error
	err = raw.Control(func(fd uintptr) {
		if local.Addr().Is4() {
			var m *unix.IPv6Mreq // a struct of the required size
			if m, serr = unix.GetsockoptIPv6Mreq(int(fd), unix.SOL_IP, originalDst); serr == nil {
				to = netip.AddrPortFrom(netip.AddrFrom4([4]byte(m.Multiaddr[4:8])), binary.BigEndian.Uint16(m.Multiaddr[2:4]))
			}
			return
		}
		var m *unix.IPv6MTUInfo
		if m, serr = unix.GetsockoptIPv6MTUInfo(int(fd), unix.SOL_IPV6, originalDst); serr == nil {
			port := binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, m.Addr.Port))
			to = netip.AddrPortFrom(netip.AddrFrom16(m.Addr.Addr), port)
		}
	})
	return to, errors.Join(err, serr)
}
