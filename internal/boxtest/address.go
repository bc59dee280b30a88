// SPDX-License-Identifier: Apache-2.0

package boxtest

import (
	"net"
	"testing"
)

// FreeAddress is an address of this host where nothing listens. Of two that a test needs at a time each has an IP address of its own.
func FreeAddress(t testing.TB, ip string) string {
	t.Helper()
	ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", net.JoinHostPort(ip, "0"))
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return ln.Addr().String()
}
