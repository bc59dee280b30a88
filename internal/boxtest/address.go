// SPDX-License-Identifier: Apache-2.0

package boxtest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"testing"
)

// The ports of FreeAddress are below the ephemeral ports of Linux (ip_local_port_range): a connection, or another listener, could
// take one of those before the tested program listens there, or while it is restarted.
const (
	firstPort = 1 << 14
	ports     = 1 << 14
)

// given are the sockets that reserve the ports of this process, by port, until it ends.
var given sync.Map

// FreeAddress returns an address of this host where nothing listens. No other test process of this network namespace is given its port:
// an abstract Unix socket reserves that, which belongs to the namespace too (unix(7), network_namespaces(7)).
func FreeAddress(t testing.TB, ip string) string {
	t.Helper()
	addr, err := netip.ParseAddr(ip)
	if err != nil {
		t.Fatal(err)
	}
	for {
		port := uint16(firstPort + rand.IntN(ports))
		reserved, err := new(net.ListenConfig).Listen(context.WithoutCancel(t.Context()), "unix", fmt.Sprintf("@boxd-test-port-%d", port))
		if errors.Is(err, syscall.EADDRINUSE) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		given.Store(port, reserved)
		at := netip.AddrPortFrom(addr, port).String()
		ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", at)
		if errors.Is(err, syscall.EADDRINUSE) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		ln.Close()
		return at
	}
}
