// SPDX-License-Identifier: Apache-2.0

package network_test

import (
	"io"
	"log"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/isolation/network"

	"github.com/boxd-dev/boxd/isolation/network/rule"
)

// A box's link accepts no source-routed packets and no route announcements, whatever the host's settings for other links.
func TestLinksTakeNoSourceRoutes(t *testing.T) {
	w := newWorld(t)
	careless := func() {
		t.Helper()
		for _, of := range []string{"all", "default"} {
			for _, name := range []string{"ipv4/conf/%/accept_source_route", "ipv4/conf/%/accept_redirects", "ipv4/conf/%/route_localnet", "ipv6/conf/%/accept_source_route", "ipv6/conf/%/accept_redirects"} {
				must(t, os.WriteFile("/proc/sys/net/"+strings.Replace(name, "%", of, 1), []byte("1"), 0))
			}
		}
	}
	careless()
	box := exec.CommandContext(t.Context(), "sleep", "1000")
	box.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
	must(t, box.Start())
	defer func() {
		_ = box.Process.Kill()
		_ = box.Wait()
	}()
	cfg := rule.Config{Run: "/test", Block4: netip.MustParsePrefix("10.77.0.0/24"), Block6: netip.MustParsePrefix("fd62:6f78:6400::/64")}
	h := network.New(cfg, log.New(io.Discard, "", 0))
	defer h.Close()
	_, err := h.Attach(&network.Box{Key: "key", Space: netnsOf(t, box.Process.Pid)}, byRules(public4+"/32 udp 80", public6+"/128 udp 80"))
	must(t, err)
	defer h.Remove("key")
	space, err := os.Open("/proc/" + strconv.Itoa(box.Process.Pid) + "/ns/net")
	must(t, err)
	defer space.Close()
	careless() // once more
	settled := func(link, forwarding string) func() error {
		return func() error {
			for name, want := range map[string]string{
				"ipv4/conf/%/accept_source_route": "0", "ipv4/conf/%/accept_redirects": "0", "ipv4/conf/%/route_localnet": "0", "ipv4/conf/%/proxy_arp": "0", "ipv4/conf/%/rp_filter": "1",
				"ipv6/conf/%/accept_source_route": "-1", "ipv6/conf/%/accept_redirects": "0", "ipv6/conf/%/accept_ra": "0", "ipv6/conf/%/autoconf": "0", "ipv6/conf/%/seg6_enabled": "0",
				"ipv4/conf/%/forwarding": forwarding, "ipv6/conf/%/forwarding": forwarding,
			} {
				name = strings.Replace(name, "%", link, 1)
				data, err := os.ReadFile("/proc/sys/net/" + name)
				if err != nil || strings.TrimSpace(string(data)) != want {
					t.Errorf("%s is %q, and should be %s: %v", name, data, want, err)
				}
			}
			return nil
		}
	}
	must(t, settled(w.links()[0], "1")())
	must(t, network.InNamespace(space, settled("eth0", "0")))

	// An earlier keeper left another setting.
	must(t, os.WriteFile("/proc/sys/net/ipv4/conf/"+w.links()[0]+"/accept_source_route", []byte("1"), 0))
	next := network.New(cfg, log.New(io.Discard, "", 0))
	_, err = next.Adopt([]string{"key"})
	must(t, err)
	defer next.Close()
	must(t, settled(w.links()[0], "1")())

	traffic, err := h.Traffic("key")
	must(t, err)
	if len(traffic.Addresses) != 2 {
		t.Fatalf("addresses: traffic.Addresses = %v, want len(traffic.Addresses) == 2", traffic.Addresses)
	}
	before := dropped(t)
	for i, send := range []func() error{
		optioned,
		func() error { return strictly(netip.AddrFrom4([4]byte(traffic.Addresses[0]))) },
		func() error { return routed(netip.AddrFrom16([16]byte(traffic.Addresses[1]))) },
	} {
		must(t, network.InNamespace(space, send))
		boxtest.Eventually(t, "the packet with a source route is dropped", func() bool { return dropped(t) == before+uint64(i)+1 })
	}
}

// optioned sends a packet to one server via another, as any program can: loose source and record route.
func optioned() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	via := netip.MustParseAddr(public4).As4()
	if err := unix.SetsockoptString(fd, unix.IPPROTO_IP, unix.IP_OPTIONS, string([]byte{1, 131, 7, 4, via[0], via[1], via[2], via[3]})); err != nil {
		return os.NewSyscallError("IP_OPTIONS", err)
	}
	return unix.Sendto(fd, []byte("x"), 0, &unix.SockaddrInet4{Port: 80, Addr: netip.MustParseAddr(other4).As4()})
}

// strictly sends one with the strict variant, which the kernel does not let programs send via a router.
func strictly(from netip.Addr) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	to := netip.MustParseAddr(public4)
	packet := append([]byte{4<<4 | 7, 0, 0, 28 + 8, 0, 1, 0, 0, 64, 17, 0, 0}, from.AsSlice()...)
	packet = append(packet, to.AsSlice()...)
	packet = append(packet, 1, 137, 7, 4)
	packet = append(packet, netip.MustParseAddr(other4).AsSlice()...)
	packet = append(packet, 0, 80, 0, 80, 0, 8, 0, 0)
	return unix.Sendto(fd, packet, 0, &unix.SockaddrInet4{Addr: to.As4()})
}

// routed sends one with IPv6's original routing header.
func routed(from netip.Addr) error {
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	to := netip.MustParseAddr(public6)
	packet := append([]byte{6 << 4, 0, 0, 0, 0, 24 + 8, 43, 64}, from.AsSlice()...)
	packet = append(packet, to.AsSlice()...)
	packet = append(packet, 17, 2, 0, 1, 0, 0, 0, 0)
	packet = append(packet, netip.MustParseAddr(web6).AsSlice()...)
	packet = append(packet, 0, 80, 0, 80, 0, 8, 0, 0)
	return unix.Sendto(fd, packet, 0, &unix.SockaddrInet6{Addr: to.As16()})
}
