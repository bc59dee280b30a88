// SPDX-License-Identifier: Apache-2.0

package network

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/network/rule"
)

// uplink is how the host reaches other hosts.
type uplink struct {
	mtu  int
	ipv6 bool // IPv6 too
	// near are networks with public addresses on one of the host's own links.
	near []netip.Prefix
}

// ethernet is the usual MTU, in bytes.
const ethernet = 1500

// uplink checks that the host forwards packets of boxes and their answers, and that no other
// route uses the address block.
func (h *Host) uplink() (*uplink, error) {
	if !h.cfg.Block4.IsValid() {
		return nil, &failure{Reason: "network.ipv4 is empty", Errno: unix.EADDRNOTAVAIL}
	}
	up := &uplink{mtu: ethernet}
	var shut string
	open := false
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		list, err := routes(family)
		if err != nil {
			return nil, err
		}
		for i := range list {
			if err := h.free(&list[i]); err != nil {
				return nil, err
			}
			up.near = append(up.near, near(&list[i])...)
			if !isDefault(&list[i]) {
				continue
			}
			if family == netlink.FAMILY_V6 {
				up.ipv6 = h.cfg.Block6.IsValid() && isOn("ipv6/conf/all/forwarding")
				continue
			}
			for _, index := range hops(&list[i]) {
				end, err := netlink.LinkByIndex(index)
				if err != nil {
					continue // it was removed meanwhile
				}
				name := end.Attrs().Name
				if !isOn("ipv4/conf/" + name + "/forwarding") {
					shut = name
					continue
				}
				open = true
				up.mtu = min(up.mtu, end.Attrs().MTU)
			}
		}
	}
	if !open && shut != "" {
		return nil, &failure{Reason: "IP forwarding is off on this host (net.ipv4.conf." + shut + ".forwarding is 0)", Errno: unix.ENETDOWN}
	}
	return up, nil
}

// hops returns the links of a route; a multipath route has several.
func hops(r *netlink.Route) (list []int) {
	for _, hop := range r.MultiPath {
		list = append(list, hop.LinkIndex)
	}
	if r.LinkIndex > 0 {
		list = append(list, r.LinkIndex)
	}
	return list
}

// free returns an error if a route that is not ours leads to addresses of the block.
func (h *Host) free(r *netlink.Route) error {
	to, ok := prefixOf(r.Dst)
	if !ok || to.Bits() == 0 || r.Type == unix.RTN_UNREACHABLE || r.Type == unix.RTN_BLACKHOLE || r.Type == unix.RTN_PROHIBIT {
		return nil
	}
	for key, block := range map[string]netip.Prefix{"network.ipv4": h.cfg.Block4, "network.ipv6": h.cfg.Block6} {
		if !block.IsValid() || !block.Overlaps(to) {
			continue
		}
		name := "?"
		if end, err := netlink.LinkByIndex(r.LinkIndex); err == nil {
			name = end.Attrs().Name
		} else if len(hops(r)) > 0 {
			continue // of a link that was just removed, such as a box's
		}
		if !strings.HasPrefix(name, h.tag) {
			return &failure{Reason: fmt.Sprintf("%s = %v: this host has a route to %v already, via %s", key, block, to, name), Errno: unix.EADDRINUSE}
		}
	}
	return nil
}

// near returns the destination of a route if that is on one of the host's links, because of an
// address of the host or a router advertisement. Networks that are blocked in any case are left
// out.
func near(r *netlink.Route) []netip.Prefix {
	to, ok := prefixOf(r.Dst)
	if !ok || to.Bits() == 0 || r.Gw != nil || r.Protocol != unix.RTPROT_KERNEL && r.Protocol != unix.RTPROT_RA || r.Type != unix.RTN_UNICAST ||
		slices.ContainsFunc(rule.Blocked(), func(b netip.Prefix) bool { return rule.Within(to, b) }) {
		return nil
	}
	return []netip.Prefix{to}
}

// neighbours returns all networks that are near.
func neighbours() (found []netip.Prefix, err error) {
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		list, err := routes(family)
		if err != nil {
			return nil, err
		}
		for i := range list {
			found = append(found, near(&list[i])...)
		}
	}
	return found, nil
}

func isDefault(r *netlink.Route) bool {
	to, ok := prefixOf(r.Dst)
	return (!ok || to.Bits() == 0) && len(hops(r)) > 0 && (r.Type == unix.RTN_UNICAST || r.Type == 0)
}

func prefixOf(n *net.IPNet) (netip.Prefix, bool) {
	if n == nil {
		return netip.Prefix{}, false
	}
	a, ok := netip.AddrFromSlice(n.IP)
	bits, _ := n.Mask.Size()
	if a.Is4In6() && len(n.Mask) == net.IPv4len {
		a = a.Unmap()
	}
	return netip.PrefixFrom(a, bits), ok
}

// routes lists the routes of the main table.
func routes(family int) (list []netlink.Route, err error) {
	for range 5 {
		list, err = netlink.RouteList(nil, family)
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("routes: %w", err)
	}
	return list, nil
}

func isOn(name string) bool {
	data, err := os.ReadFile("/proc/sys/net/" + name)
	return err == nil && strings.TrimSpace(string(data)) != "0"
}

// Check reports whether boxes can have a network on this host, and what to do if not.
func (h *Host) Check() isolation.Check {
	c := isolation.Check{Name: "box network", Level: isolation.CheckWarn}
	up, err := h.uplink()
	if err == nil {
		err = h.tryTable()
	}
	if err != nil {
		c.Detail, c.Hint = "boxes cannot have a network: "+err.Error(), Hint(err)
		return c
	}
	detail := fmt.Sprintf("available, with addresses from %v", h.cfg.Block4)
	if up.ipv6 {
		detail += fmt.Sprintf(" and %v", h.cfg.Block6)
	} else {
		detail += "; no IPv6 (no forwarding, no default route, or network.ipv6 is empty)"
	}
	if blocking := h.blockingChains(up.ipv6); len(blocking) > 0 {
		c.Detail, c.Hint = detail, firewallHints(blocking, h.tag)
		for _, w := range blocking {
			c.Detail += "; " + w.String()
		}
		return c
	}
	c.Level, c.Detail = isolation.CheckOK, detail
	return c
}

// Hint returns what to do about a failure.
func Hint(err error) string {
	switch {
	case errors.Is(err, unix.ENETDOWN):
		return "sysctl -w net.ipv4.ip_forward=1, and add it to a file in /etc/sysctl.d (affects the whole host)"
	case errors.Is(err, unix.EADDRINUSE):
		return "set network.ipv4 or network.ipv6 in box.toml to a free block"
	case errors.Is(err, unix.EOPNOTSUPP):
		return "modprobe -a nf_tables veth, or use a kernel that has them"
	case errors.Is(err, unix.EUSERS):
		return "end boxes, or set network.ipv4 in box.toml to a larger block"
	}
	return ""
}

// blockingChains returns the chains of other firewalls that refuse what boxes send.
func (h *Host) blockingChains(ipv6 bool) []blockingChain {
	c, err := connect()
	if err != nil {
		return nil
	}
	blocking, err := findBlocking(c, h.tag, ipv6)
	if err != nil {
		h.log.Printf("cannot read the firewall chains of other programs: %v", err)
	}
	legacy, err := findLegacy(h.tag, ipv6)
	if err != nil {
		h.log.Printf("cannot read the firewall chains of other programs: %v", err)
	}
	return append(blocking, legacy...)
}
