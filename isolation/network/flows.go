// SPDX-License-Identifier: Apache-2.0

package network

import (
	"errors"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// forgetFlows removes connection tracking entries of connections from these addresses, whose
// boxes are gone: otherwise late packets to them would reach the next box with that address.
func (h *Host) forgetFlows(of func(netip.Addr) bool) {
	for family, block := range map[netlink.InetFamily]netip.Prefix{unix.AF_INET: h.cfg.Block4, unix.AF_INET6: h.cfg.Block6} {
		if !block.IsValid() {
			continue
		}
		var err error = netlink.ErrDumpInterrupted
		for tries := 0; tries < 5 && errors.Is(err, netlink.ErrDumpInterrupted); tries++ {
			_, err = netlink.ConntrackDeleteFilters(netlink.ConntrackTable, family, flowsFrom(of))
		}
		if err != nil {
			h.log.Printf("cannot remove tracked connections of ended boxes: %v", err)
		}
	}
}

// flowsFrom matches connections that were begun from some addresses.
type flowsFrom func(netip.Addr) bool

// MatchConntrackFlow implements netlink.CustomConntrackFilter.
func (of flowsFrom) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool {
	a, ok := netip.AddrFromSlice(flow.Forward.SrcIP)
	return ok && of(a.Unmap())
}
