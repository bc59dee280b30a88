// SPDX-License-Identifier: Apache-2.0

package boxes_test

import (
	"errors"
	"net"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation"
)

func TestLoopbackIsUpAndTheOnlyLink(t *testing.T) {
	b := newBox(t, start(t))
	if diff := cmp.Diff([]string{"lo 127.0.0.1/8,::1/128"}, b.ask("links")); diff != "" {
		t.Errorf("links (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"tcp4 OK", "tcp6 OK", "name OK", "abstract OK"}, b.ask("loopback")); diff != "" {
		t.Errorf("talking to itself (-want +got):\n%s", diff)
	}
	if routes := lines(b.run("cat", "/proc/net/route")); len(routes) > 1 {
		t.Errorf("routes: routes = %q, want len(routes) <= 1", routes)
	}
	b.try(all("EPERM", "addlink", "socket=packet", "socket=raw4", "socket=raw6")...)
}

// A keeper gives no box the host's network on a boxd's request alone: root must have allowed that in the keeper's configuration.
func TestAKeeperGivesNobodyTheNetworkOfTheHost(t *testing.T) {
	k := startKeeper(t)
	for _, network := range []isolation.NetworkSpec{{Kind: isolation.NetworkHost}, {Kind: isolation.NetworkHost, Rules: []string{"0.0.0.0/0 tcp"}}} {
		_, err := k.Launch(t.Context(), &isolation.Spec{
			Key: bareKey, Hostname: "box", Scratch: isolation.Scratch{Bytes: 64 << 20, Inodes: 10_000}, ManagedWork: true, Network: network,
		})
		if f, ok := errors.AsType[*isolation.StepError](err); !ok || f.Step != isolation.StepNetwork || f.Errno != unix.EPERM {
			t.Errorf("%+v: err = %v, want ok == true and f.Step == isolation.StepNetwork and f.Errno == unix.EPERM",
				network, err)
		}
	}
}

func TestNoRouteLeadsOutOfABox(t *testing.T) {
	b := newBox(t, start(t))
	b.try(all("ENETUNREACH",
		"dial=tcp4,192.0.2.1:80", "dial=tcp4,10.0.0.1:80", "dial=tcp4,169.254.169.254:80", "dial=tcp6,[2001:db8::1]:80", "dial=tcp6,[fd00::1]:80",
		"send=udp4,192.0.2.1:53", "send=udp4,224.0.0.1:5353", "send=udp4,255.255.255.255:9", "send=udp6,[2001:db8::1]:53",
	)...)
	// Every address of the host.
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addresses {
		if ip, _, err := net.ParseCIDR(a.String()); err == nil && !ip.IsLoopback() && !ip.IsLinkLocalUnicast() {
			b.try(attempt{"dial=tcp," + net.JoinHostPort(ip.String(), "22"), "ENETUNREACH"})
			b.try(attempt{"bindhost=" + bracket(ip), "EADDRNOTAVAIL"})
		}
	}
}

func bracket(ip net.IP) string {
	if s := ip.String(); strings.Contains(s, ":") {
		return "[" + s + "]"
	}
	return ip.String()
}
