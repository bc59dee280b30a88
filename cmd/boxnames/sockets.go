// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/boxd-dev/boxd/internal/fdpass"
)

// sockets turns descriptors, which it takes over, into the DNS sockets of a box, and for a strict
// box the listeners to which its connections are redirected.
func sockets(files []int, strict bool) (packets net.PacketConn, streams net.Listener, redirected []net.Listener, err error) {
	if len(files) < 2 || strict != (len(files) > 2) || len(files) > 4 {
		fdpass.CloseAll(files)
		return nil, nil, nil, fmt.Errorf("%d sockets: an unexpected number", len(files))
	}
	udp := os.NewFile(uintptr(files[0]), "udp")
	packets, err = net.FilePacketConn(udp)
	udp.Close()
	if err != nil {
		fdpass.CloseAll(files[1:])
		return nil, nil, nil, fmt.Errorf("socket for packets: %w", err)
	}
	var list []net.Listener
	for _, fd := range files[1:] {
		tcp := os.NewFile(uintptr(fd), "tcp")
		l, lerr := net.FileListener(tcp)
		tcp.Close()
		if lerr != nil {
			err = errors.Join(err, fmt.Errorf("socket for connections: %w", lerr))
			continue
		}
		list = append(list, l)
	}
	if err != nil {
		closeAll(list)
		return nil, nil, nil, errors.Join(err, packets.Close())
	}
	return packets, list[0], list[1:], nil
}

func closeAll(list []net.Listener) {
	for _, l := range list {
		l.Close()
	}
}
