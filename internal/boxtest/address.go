// SPDX-License-Identifier: Apache-2.0

package boxtest

import (
	"errors"
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

// given are the ports that this process has used.
var given sync.Map

// FreeAddress returns an address of this host where nothing listens, and nothing is likely to, unless another test process
// chooses the same.
func FreeAddress(t testing.TB, ip string) string {
	t.Helper()
	addr, err := netip.ParseAddr(ip)
	if err != nil {
		t.Fatal(err)
	}
	for {
		port := uint16(firstPort + rand.IntN(ports))
		if _, again := given.LoadOrStore(port, true); again {
			continue
		}
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
