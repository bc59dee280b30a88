// SPDX-License-Identifier: Apache-2.0

package network

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/vishvananda/netlink"
)

// Adopt takes over the links of the boxes with these keys, which an earlier keeper has left, and
// removes all other links. It returns the keys of those that have a link. Errors about a single link are only logged: the boxes
// keep running.
func (h *Host) Adopt(keys []string) (linked []string, err error) {
	all, err := links()
	if err != nil {
		return nil, fmt.Errorf("adopt the veth pairs of boxes: %w", err)
	}
	names := map[string]string{}
	for _, key := range keys {
		names[h.linkName(key)] = key
	}
	for _, end := range all {
		name := end.Attrs().Name
		if !strings.HasPrefix(name, h.tag) || end.Type() != "veth" {
			continue
		}
		key, lives := names[name]
		if !lives {
			if err := removeVeth(name); err != nil {
				h.log.Printf("cannot remove an unused veth pair: %v", err)
			}
			continue
		}
		n, ok := h.pairOf(end)
		if !ok {
			h.log.Printf("the veth pair %s has no address in network.ipv4 (%v)", name, h.cfg.Block4)
		}
		l := &Link{host: h, key: key, pair: n}
		h.mu.Lock()
		h.links[key], h.used[n] = l, true
		h.mu.Unlock()
		h.reconcile(l)
		linked = append(linked, key)
	}
	h.mu.Lock()
	h.adopted = true
	h.mu.Unlock()
	if len(linked) == 0 {
		return nil, h.removeTable()
	}
	if err := h.ensure(); err != nil {
		h.log.Printf("cannot restore the nftables table of boxes: %v", err) // watch tries again
	}
	return linked, nil
}

// reconcile applies to a link the settings that an earlier version of the keeper may not have
// set.
func (h *Host) reconcile(l *Link) {
	_, gateways, err := h.end(l)
	if err == nil {
		err = configureVeth(h.linkName(l.key), hasIPv6(gateways))
	}
	if err != nil {
		h.log.Printf("cannot configure the veth pair of box %s: %v", l.key, err)
	}
}

// pairOf returns the number of a link's pair of addresses.
func (h *Host) pairOf(end netlink.Link) (uint32, bool) {
	list, err := netlink.AddrList(end, netlink.FAMILY_V4)
	if err != nil || !h.cfg.Block4.IsValid() {
		return 1 << 31, false
	}
	for _, a := range list {
		addr, ok := netip.AddrFromSlice(a.IP.To4())
		if !ok || !h.cfg.Block4.Contains(addr) {
			continue
		}
		var n uint32
		base := h.cfg.Block4.Addr().As4()
		for i, b := range addr.As4() {
			n = n<<8 | uint32(b-base[i])
		}
		return n / 2, true
	}
	return 1 << 31, false
}

// links lists all links of the host. It repeats if the kernel says that the list has changed
// meanwhile.
func links() (list []netlink.Link, err error) {
	for range 5 {
		list, err = netlink.LinkList()
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("links: %w", err)
	}
	return list, nil
}
