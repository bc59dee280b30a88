// SPDX-License-Identifier: Apache-2.0

package console_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
)

// Addresses of a network with an uplink: of the host, of its neighbour, and of a server outside.
const (
	hostAddress   = "45.33.0.2"
	nextAddress   = "45.33.0.1"
	serverAddress = "11.22.33.44"
)

// newNetwork gives the test a network namespace of its own with an uplink, where a server listens on port 80 of one address. The
// test's goroutine and what it starts are in it; its thread ends with it.
func newNetwork(t *testing.T) {
	t.Helper()
	boxtest.RequireRoot(t)
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	here, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	defer here.Close()
	ready := make(chan error, 1)
	end := make(chan struct{})
	t.Cleanup(func() { close(end) })
	go func() {
		runtime.LockOSThread() // its thread ends with the goroutine, and so does the server's network
		server, err := outside(int(here.Fd()))
		ready <- err
		if err == nil {
			<-end
			server.Close()
		}
	}()
	if err := <-ready; err != nil {
		t.Fatal(err)
	}
	_, all, _ := net.ParseCIDR("0.0.0.0/0")
	up, err := netlink.LinkByName("up0")
	if err == nil {
		err = errors.Join(address("lo", ""), address("up0", hostAddress+"/24"))
	}
	if err == nil {
		err = netlink.RouteAdd(&netlink.Route{LinkIndex: up.Attrs().Index, Dst: all, Gw: net.ParseIP(nextAddress)})
	}
	if err == nil {
		err = os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// outside creates the server's network namespace, with a link to the host's, and starts to listen.
func outside(host int) (net.Listener, error) {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return nil, err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "down0"
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "up0", PeerNamespace: netlink.NsFd(host)}); err != nil {
		return nil, err
	}
	if err := errors.Join(address("lo", serverAddress+"/32"), address("down0", nextAddress+"/24")); err != nil {
		return nil, err
	}
	server, err := new(net.ListenConfig).Listen(context.Background(), "tcp4", serverAddress+":80")
	if err != nil {
		return nil, err
	}
	go func() {
		for {
			conn, err := server.Accept()
			if err != nil {
				return
			}
			fmt.Fprintln(conn, "hello from outside") // the client sees failures
			conn.Close()
		}
	}()
	return server, nil
}

// address gives a link an address, unless it is "", and sets the link up.
func address(link, text string) error {
	l, err := netlink.LinkByName(link)
	if err != nil {
		return err
	}
	if text != "" {
		a, err := netlink.ParseAddr(text)
		if err == nil {
			err = netlink.AddrAdd(l, a)
		}
		if err != nil {
			return err
		}
	}
	return netlink.LinkSetUp(l)
}

// The page of a box with a network shows its addresses, rules and traffic, and each refused connection with the rule that would
// allow it, live; the rule is added there, and then the connection succeeds.
func TestTheNetworkOfABoxIsSeenAndChanged(t *testing.T) {
	requireBrowser(t)
	if _, err := bundle(); err != nil { // later npm is unreachable
		t.Fatal(err)
	}
	newNetwork(t)
	d := boxtest.Start(t, "[network]\nresolvers = [\"10.99.0.53\"]\n")
	d.NewSession(t, api.SessionRequest{ID: "work", Profile: "network_basic", NetworkRules: []string{"11.22.33.55/32 tcp 443"}})
	do := manage(t, d)
	do["connect"] = func(port string) string {
		r := d.Result(t, "work", api.ExecRequest{Argv: []string{"bash", "-c", "exec 3<>/dev/tcp/" + serverAddress + "/" + port + " && cat <&3"}})
		return r.Stdout
	}
	browse(t, "network.mjs", login(t, admin, d.Socket, boxtest.Programs(t)), do, "CONSOLE_SERVER="+serverAddress)
}
