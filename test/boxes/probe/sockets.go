// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// dialTimeout is the timeout of a connection attempt; unreachable addresses fail at once here.
const dialTimeout = 5 * time.Second

func dial(network, address string) (net.Conn, error) {
	d := net.Dialer{Timeout: dialTimeout}
	return d.DialContext(context.Background(), network, address)
}

func listen(network, address string) (net.Listener, error) {
	return new(net.ListenConfig).Listen(context.Background(), network, address)
}

// sockets returns the ways to other machines, other boxes and the host.
func sockets() map[string]attempt {
	families := map[string][3]int{
		"vsock": {unix.AF_VSOCK, unix.SOCK_STREAM}, "packet": {unix.AF_PACKET, unix.SOCK_RAW}, "alg": {unix.AF_ALG, unix.SOCK_SEQPACKET},
		"xdp": {unix.AF_XDP, unix.SOCK_RAW}, "can": {unix.AF_CAN, unix.SOCK_RAW, unix.CAN_RAW}, "key": {unix.AF_KEY, unix.SOCK_RAW, 2},
		"bluetooth": {unix.AF_BLUETOOTH, unix.SOCK_STREAM}, "tipc": {unix.AF_TIPC, unix.SOCK_STREAM}, "rds": {unix.AF_RDS, unix.SOCK_SEQPACKET},
		"raw4": {unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP}, "raw6": {unix.AF_INET6, unix.SOCK_RAW, unix.IPPROTO_ICMPV6},
		"sctp":      {unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP},
		"netfilter": {unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_NETFILTER}, "audit": {unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_AUDIT},
		"uevent": {unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_KOBJECT_UEVENT}, "generic": {unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_GENERIC},
		"sockdiag": {unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_SOCK_DIAG},
	}
	return map[string]attempt{
		"socket": func(a []string) error {
			f, known := families[a[0]]
			if !known {
				return errors.New("no such family")
			}
			fd, err := unix.Socket(f[0], f[1], f[2])
			if err == nil {
				unix.Close(fd)
			}
			return err
		},
		"dial": func(a []string) error { // network, address
			conn, err := dial(a[0], a[1])
			if err != nil {
				return err
			}
			return conn.Close()
		},
		"send": func(a []string) error { // network, address
			conn, err := dial(a[0], a[1])
			if err != nil {
				return err
			}
			defer conn.Close()
			_, err = conn.Write([]byte("hello"))
			return err
		},
		"bindhost": func(a []string) error { // an address that the box does not have
			l, err := listen("tcp", a[0]+":0")
			if err != nil {
				return err
			}
			return l.Close()
		},
		"addlink": addAddress,
		"shmget": func(a []string) error { // key, "create"
			flags := uintptr(0)
			if len(a) > 1 {
				flags = unix.IPC_CREAT | 0o666
			}
			return call(unix.SYS_SHMGET, number(a[0]), 4096, flags)
		},
		"mq": func(a []string) error { // name, "create"
			flags := uintptr(unix.O_RDWR)
			if len(a) > 1 {
				flags |= unix.O_CREAT
			}
			return call(unix.SYS_MQ_OPEN, text(a[0][1:]), flags, 0o666, 0)
		},
	}
}

// addAddress requests another address on lo: route netlink is only open for reading.
func addAddress([]string) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	// struct nlmsghdr, struct ifaddrmsg, and IFA_LOCAL 10.9.9.9.
	msg := []byte{
		32, 0, 0, 0, unix.RTM_NEWADDR, 0, 5, 6, 1, 0, 0, 0, 0, 0, 0, 0,
		unix.AF_INET, 24, 0, 0, 1, 0, 0, 0,
		8, 0, 2, 0, 10, 9, 9, 9,
	}
	if err := unix.Sendto(fd, msg, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	n, _, err := unix.Recvfrom(fd, scratch[:], 0)
	if err != nil {
		return err
	}
	if n < 20 {
		return io.ErrUnexpectedEOF
	}
	code := int32(uint32(scratch[16]) | uint32(scratch[17])<<8 | uint32(scratch[18])<<16 | uint32(scratch[19])<<24)
	return errnoOf(unix.Errno(-code))
}

// listenAt accepts connections at addresses until EOF on its input; addresses with a colon are TCP.
func listenAt(addresses []string) error {
	for _, a := range addresses {
		network := "unix"
		if strings.Contains(a, ":") {
			network = "tcp"
		}
		l, err := listen(network, a)
		if err != nil {
			return err
		}
		defer l.Close()
	}
	return hold(nil)
}

// loopback prints "tcp4 OK" and so on for a conversation with itself over each transport.
func loopback([]string) error {
	for _, way := range []struct{ name, network, address string }{
		{"tcp4", "tcp4", "127.0.0.1:0"}, {"tcp6", "tcp6", "[::1]:0"}, {"name", "tcp", "localhost:0"}, {"abstract", "unix", "@probe"},
	} {
		fmt.Println(way.name, nameOf(exchange(way.network, way.address)))
	}
	return nil
}

func exchange(network, address string) error {
	l, err := listen(network, address)
	if err != nil {
		return err
	}
	defer l.Close()
	done := make(chan error, 1)
	go func() {
		conn, err := l.Accept()
		if err == nil {
			_, err = io.Copy(conn, io.LimitReader(conn, 5))
			conn.Close()
		}
		done <- err
	}()
	conn, err := dial(network, l.Addr().String())
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("hello")); err != nil {
		return err
	}
	answer, err := io.ReadAll(conn)
	if err == nil && string(answer) != "hello" {
		err = errors.New("another answer")
	}
	return errors.Join(err, <-done)
}

// links prints "NAME ADDRESS,…" for every link, as the kernel reports it.
func links([]string) error {
	list, err := net.Interfaces()
	if err != nil {
		return err
	}
	for _, l := range list {
		addresses, err := l.Addrs()
		if err != nil {
			return err
		}
		var names []string
		for _, a := range addresses {
			names = append(names, a.String())
		}
		fmt.Println(l.Name, strings.Join(names, ","))
	}
	return nil
}
