// SPDX-License-Identifier: Apache-2.0

// Package network_test tests boxes with a network, in a world of network namespaces on one machine.
package network_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/boxtest"
)

func TestMain(m *testing.M) {
	boxtest.BePatient()
	os.Exit(m.Run())
}

// Addresses of the world.
const (
	public4, public6 = "11.22.33.44", "2a00:1111::44"     // a server on the internet
	other4           = "11.22.33.55"                      // another one
	cloud4, cloud6   = "169.254.169.254", "fd00:ec2::254" // the metadata service
	host4, host6     = "45.33.0.2", "2600:9999::2"        // the host's address outside
	dns4             = "10.99.0.53"                       // its name server
	web4, web6       = "11.22.33.66", "2a00:1111::66"     // a server for HTTP and TLS
	webOther4        = "11.22.33.67"                      // another one
)

// world is a host with an uplink, and the internet beyond it. The test's goroutine, and what it starts, is in the host's network
// namespace.
type world struct {
	t     *testing.T
	there int // network namespace of the outside
}

// newWorld creates the host's network namespace. The goroutine stays in it: its thread ends with it.
func newWorld(t *testing.T) *world {
	t.Helper()
	boxtest.RequireRoot(t)
	runtime.LockOSThread()
	w := &world{t: t}
	must(t, unix.Unshare(unix.CLONE_NEWNET))
	here, err := os.Open("/proc/thread-self/ns/net")
	must(t, err)
	ready := make(chan error, 1)
	go func() { // it waits below
		runtime.LockOSThread()
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			w.there, err = unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		}
		if err == nil {
			err = outside(int(here.Fd()))
		}
		ready <- err
	}()
	must(t, <-ready)
	t.Cleanup(func() {
		unix.Close(w.there)
		here.Close()
	})
	lo, err := netlink.LinkByName("lo")
	must(t, err)
	must(t, netlink.LinkSetUp(lo))
	up, err := netlink.LinkByName("up0")
	must(t, err)
	must(t, address(up, host4+"/24"))
	must(t, address(up, host6+"/64"))
	must(t, netlink.LinkSetUp(up))
	for _, via := range []string{"45.33.0.1", "2600:9999::1"} {
		_, all, _ := net.ParseCIDR(map[bool]string{true: "0.0.0.0/0", false: "::/0"}[strings.Contains(via, ".")])
		must(t, netlink.RouteAdd(&netlink.Route{LinkIndex: up.Attrs().Index, Dst: all, Gw: net.ParseIP(via)}))
	}
	w.forward("1")
	return w
}

// forward switches the host's forwarding on or off.
func (w *world) forward(on string) {
	w.t.Helper()
	must(w.t, os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte(on), 0))
	must(w.t, os.WriteFile("/proc/sys/net/ipv6/conf/all/forwarding", []byte(on), 0))
}

// outside sets up the network of the outside, and the link to the host's.
func outside(host int) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "down0"
	err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "up0", PeerNamespace: netlink.NsFd(host)})
	if err != nil {
		return err
	}
	for name, list := range map[string][]string{
		"down0": {"45.33.0.1/24", "2600:9999::1/64"},
		"lo": {
			public4 + "/32", other4 + "/32", cloud4 + "/32", dns4 + "/32", "10.99.0.1/32", "172.20.0.1/32", "192.168.7.7/32", "100.64.1.1/32", "198.18.0.1/32",
			web4 + "/32", webOther4 + "/32", web6 + "/128", public6 + "/128", cloud6 + "/128", "64:ff9b::a9fe:a9fe/128", "2002:a9fe:a9fe::1/128",
		},
	} {
		end, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		for _, a := range list {
			err = errors.Join(err, address(end, a))
		}
		if err = errors.Join(err, netlink.LinkSetUp(end)); err != nil {
			return err
		}
	}
	for port, answer := range map[string]string{"80": "tcp", "443": "tls", "53": "dns"} {
		if err := serve(port, answer); err != nil {
			return err
		}
	}
	return nil
}

// serve answers on a port of every address: with a word, its own address and the client's address.
func serve(port, word string) error {
	l, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "[::]:"+port)
	if err != nil {
		return err
	}
	go func() { // until the end of the tests
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			if isWeb(c, port) {
				continue
			}
			go func() {
				defer c.Close()
				fmt.Fprintf(c, "%s %v %v\n", word, c.LocalAddr(), c.RemoteAddr())
				_, _ = c.Read(make([]byte, 1)) // until the client closes the connection
			}()
		}
	}()
	for _, a := range []string{public4, dns4} { // one socket per address, so that an answer comes from the address that was asked
		if err := answer(net.JoinHostPort(a, port)); err != nil {
			return err
		}
	}
	return nil
}

// answer starts a server on a UDP port.
func answer(at string) error {
	u, err := new(net.ListenConfig).ListenPacket(context.Background(), "udp4", at)
	if err != nil {
		return err
	}
	go func() { // until the end of the tests
		b := make([]byte, 100)
		for {
			_, from, err := u.ReadFrom(b)
			if err != nil {
				return
			}
			_, _ = u.WriteTo([]byte("udp "+from.String()+"\n"), from)
		}
	}()
	return nil
}

func address(end netlink.Link, text string) error {
	a, err := netlink.ParseAddr(text)
	if err == nil {
		a.Flags = unix.IFA_F_NODAD
		err = netlink.AddrAdd(end, a)
	}
	return err
}

// links lists the host's links that belong to boxes.
func (w *world) links() (names []string) {
	w.t.Helper()
	list, err := netlink.LinkList()
	for tries := 0; tries < 100 && errors.Is(err, netlink.ErrDumpInterrupted); tries++ { // links changed during the dump
		list, err = netlink.LinkList()
	}
	must(w.t, err)
	for _, l := range list {
		if strings.HasPrefix(l.Attrs().Name, "bx") {
			names = append(names, l.Attrs().Name)
		}
	}
	return names
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// tables lists boxd's tables in the host's network namespace.
func tables(t *testing.T) (names []string) {
	t.Helper()
	c, err := nftables.New()
	must(t, err)
	list, err := c.ListTables()
	must(t, err)
	for _, table := range list {
		if strings.HasPrefix(table.Name, "boxd") {
			names = append(names, table.Name)
		}
	}
	return names
}

// flush removes all of the host's tables, as "nft flush ruleset" does.
func flush(t *testing.T) {
	t.Helper()
	c, err := nftables.New()
	must(t, err)
	c.FlushRuleset()
	must(t, c.Flush())
}

// dropped returns how many packets from boxes the host's table has dropped.
func dropped(t *testing.T) (packets uint64) {
	t.Helper()
	c, err := nftables.New()
	must(t, err)
	chains, err := c.ListChains()
	must(t, err)
	for _, chain := range chains {
		if chain.Name != "prerouting" {
			continue
		}
		rules, err := c.GetRules(chain.Table, chain)
		must(t, err)
		for _, r := range rules {
			for _, e := range r.Exprs {
				if n, ok := e.(*expr.Counter); ok {
					packets += n.Packets
				}
			}
		}
	}
	return packets
}
