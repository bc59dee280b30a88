// SPDX-License-Identifier: Apache-2.0

package network

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/network/rule"
)

// Link is the network link of a box.
type Link struct {
	host *Host
	key  string
	pair uint32

	pinMu  sync.Mutex // held while pins, or the table that has them, are written
	pinned pinTable   // nil: read them from the kernel
}

// Box is a box whose network a request is about.
type Box struct {
	Key   string
	Space *os.File // its network namespace
}

// Attach makes the link of a box in which no program runs yet, and returns the text of its
// resolv.conf(5). If it fails it leaves nothing behind.
func (h *Host) Attach(b *Box, spec *isolation.NetworkSpec) (resolv string, err error) {
	as, rules, err := h.read(spec)
	if err != nil {
		return "", err
	}
	up, err := h.uplink()
	if err != nil {
		return "", err
	}
	if err := h.notOurs(b.Space); err != nil {
		return "", err
	}
	l, err := h.reserve(b.Key)
	if err != nil {
		return "", err
	}
	written := make(chan error, 1)
	go func() { // in parallel with the link, which it does not need; waited for below
		written <- h.writeBoxTable(int(b.Space.Fd()), inOrder(rules, up.near, h.addresses(l.pair, up.ipv6, true)), h.resolvers(true), as, false)
	}()
	if err = h.ensure(); err == nil {
		err = l.build(b.Space, up, as.caps.Bandwidth)
	}
	if err = errors.Join(err, <-written); err != nil {
		h.Remove(b.Key)
		return "", err
	}
	if as.rules != 0 {
		return resolvAt, nil
	}
	return resolvConf(h.resolvers(up.ipv6)), nil
}

// reserve takes addresses for the link of a box, which Remove gives back.
func (h *Host) reserve(key string) (*Link, error) {
	n, err := h.take()
	if err != nil {
		return nil, err
	}
	l := &Link{host: h, key: key, pair: n, pinned: pinTable{}}
	h.mu.Lock()
	h.links[key] = l
	h.mu.Unlock()
	return l, nil
}

// notOurs refuses the network namespace of the host: a table written there would apply to everything.
func (h *Host) notOurs(space *os.File) error {
	var box unix.Stat_t
	if err := unix.Fstat(int(space.Fd()), &box); err != nil {
		return fmt.Errorf("the box's network: %w", err)
	}
	if h.hostNS.Ino == 0 || h.hostNS.Ino == box.Ino && h.hostNS.Dev == box.Dev {
		return unix.ESRCH
	}
	return nil
}

// parse parses the rules of a box, and checks them against the configuration.
func (h *Host) parse(words []string) ([]rule.Rule, error) {
	rules, err := rule.ParseAll(words)
	if err != nil {
		return nil, err
	}
	for _, r := range rules {
		if !r.Named() {
			continue
		}
		named := false
		for _, n := range h.cfg.Named {
			named = named || r.Within(n)
		}
		if !named {
			return nil, &failure{Reason: "no profile of box.toml names " + r.String() + ", which is blocked otherwise", Errno: unix.EPERM}
		}
	}
	return rules, nil
}

// build makes both ends.
func (l *Link) build(space *os.File, up *uplink, bandwidth uint64) error {
	h := l.host
	ends := Veth{Name: h.linkName(l.key), MTU: up.mtu, Host: h.addresses(l.pair, up.ipv6, true), Box: h.addresses(l.pair, up.ipv6, false), Bandwidth: bandwidth}
	return lackingCaps(ends.make(space))
}

// addresses returns the addresses of one end.
func (h *Host) addresses(n uint32, ipv6, host bool) (list []netip.Addr) {
	for _, block := range []netip.Prefix{h.cfg.Block4, h.cfg.Block6} {
		if !block.IsValid() || block.Addr().Is6() && !ipv6 {
			continue
		}
		addr, box := pairAddresses(block, n)
		if !host {
			addr = box
		}
		list = append(list, addr)
	}
	return list
}

// Remove removes the link of a box, if it has one.
func (h *Host) Remove(key string) {
	h.mu.Lock()
	l := h.links[key]
	delete(h.links, key)
	h.mu.Unlock()
	if l == nil {
		return
	}
	if err := removeVeth(h.linkName(key)); err != nil {
		h.log.Printf("cannot remove the veth pair of box %s: %v", key, err) // its addresses stay reserved
		return
	}
	addrs := h.addresses(l.pair, true, false)
	h.forgetFlows(func(a netip.Addr) bool { return slices.Contains(addrs, a) })
	h.release(l.pair)
}

// link returns the link of a box, if it has one.
func (h *Host) link(key string) (*Link, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	l := h.links[key]
	if l == nil {
		return nil, &failure{Reason: "the box has no network", Errno: unix.ENONET}
	}
	return l, nil
}

// open returns the link of a box whose network namespace is one of its own.
func (h *Host) open(b *Box) (*Link, error) {
	l, err := h.link(b.Key)
	if err != nil {
		return nil, err
	}
	return l, h.notOurs(b.Space)
}

// SetRules gives a live box other rules, and returns the text of the resolv.conf(5) for them.
// They apply to existing connections too, and all pins end.
func (h *Host) SetRules(b *Box, spec *isolation.NetworkSpec) (resolv string, err error) {
	l, err := h.open(b)
	if err != nil {
		return "", err
	}
	as, rules, err := h.read(spec)
	if err != nil {
		return "", err
	}
	return h.rewrite(l, b.Space, rules, as)
}

// Pin allows a live box to connect to addresses for a limited time.
func (h *Host) Pin(b *Box, requested []isolation.Pin) error {
	l, err := h.open(b)
	if err != nil {
		return err
	}
	if len(requested) > isolation.MaxPins {
		return unix.E2BIG
	}
	pins := make([]rule.Pin, len(requested))
	for i := range requested {
		if pins[i], err = readPin(&requested[i]); err != nil {
			return err
		}
	}
	return l.pin(b.Space, pins)
}

// readPin checks a pin that boxd asks for.
func readPin(p *isolation.Pin) (rule.Pin, error) {
	protocol := rule.TCP
	if p.UDP {
		protocol = rule.UDP
	}
	return rule.NewPin(addrPort(&p.To), protocol, time.Duration(p.Seconds)*time.Second)
}

// addrPort converts an endpoint of a message. The result is invalid if that has no address.
func addrPort(e *isolation.Endpoint) netip.AddrPort {
	a, _ := netip.AddrFromSlice(e.Address)
	return netip.AddrPortFrom(a, e.Port)
}

// Refusals returns what a live box was refused.
func (h *Host) Refusals(b *Box) (*isolation.Refusals, error) {
	if _, err := h.open(b); err != nil {
		return nil, err
	}
	return denied(b.Space)
}

// OpenSockets opens the sockets for a live box with rules by name, see openSockets. They are the
// caller's. ipv6 says that the box has IPv6 addresses.
func (h *Host) OpenSockets(b *Box, strict bool) (files []int, ipv6 bool, err error) {
	l, err := h.open(b)
	if err != nil {
		return nil, false, err
	}
	_, gateways, err := h.end(l)
	if err != nil {
		return nil, false, err
	}
	ipv6 = hasIPv6(gateways) && h.cfg.Block6.IsValid()
	files, err = openSockets(b.Space, strict, ipv6)
	return files, ipv6, err
}

// Dial starts a connection out of a live box for the proxy: its packets are not redirected to the
// proxy again. The descriptor is the caller's.
func (h *Host) Dial(b *Box, to *isolation.Endpoint) (int, error) {
	if _, err := h.open(b); err != nil {
		return -1, err
	}
	return dialOut(b.Space, to)
}

// DialLoopback starts a connection to a loopback port of a running box with this network namespace, which boxes without a link
// have too. It may still be connecting: the receiver of the descriptor has to wait for that.
func (h *Host) DialLoopback(space *os.File, to *isolation.Endpoint) (int, error) {
	if err := h.notOurs(space); err != nil {
		return -1, err
	}
	return dialLoopback(space, addrPort(to))
}

// rewrite replaces the rules and limits of a box, and returns the text of the resolv.conf(5) for
// them.
func (h *Host) rewrite(l *Link, space *os.File, rules []rule.Rule, as dnsMode) (resolv string, err error) {
	_, gateways, err := h.end(l)
	if err != nil {
		return "", err
	}
	near, err := neighbours()
	if err != nil {
		return "", err
	}
	if err := lackingCaps(limitVeth(h.linkName(l.key), space, as.caps.Bandwidth)); err != nil {
		return "", err
	}
	resolvers := h.resolvers(hasIPv6(gateways))
	l.pinMu.Lock()
	defer l.pinMu.Unlock()
	l.pinned = nil
	if err := h.writeBoxTable(int(space.Fd()), inOrder(rules, near, gateways), resolvers, as, true); err != nil {
		return "", err
	}
	if as.rules != 0 {
		return resolvAt, nil
	}
	return resolvConf(resolvers), nil
}

// end returns the host's end of a link, and its addresses, which are the gateways of the box.
func (h *Host) end(l *Link) (end netlink.Link, gateways []netip.Addr, err error) {
	if end, err = netlink.LinkByName(h.linkName(l.key)); err != nil {
		return nil, nil, err
	}
	list, err := netlink.AddrList(end, netlink.FAMILY_ALL)
	for _, a := range list {
		if g, ok := netip.AddrFromSlice(a.IP); ok && !g.IsLinkLocalUnicast() {
			gateways = append(gateways, g.Unmap())
		}
	}
	return end, gateways, err
}

func hasIPv6(list []netip.Addr) bool { return slices.ContainsFunc(list, netip.Addr.Is6) }

// Traffic returns the traffic counters of a box's link, and the addresses of the box.
func (h *Host) Traffic(key string) (*isolation.Traffic, error) {
	l, err := h.link(key)
	if err != nil {
		return nil, err
	}
	end, gateways, err := h.end(l)
	if err != nil {
		return nil, err
	}
	t := &isolation.Traffic{}
	for _, a := range h.addresses(l.pair, hasIPv6(gateways), false) {
		t.Addresses = append(t.Addresses, a.AsSlice())
	}
	if s := end.Attrs().Statistics; s != nil { // what the host's end sends is what the box receives
		t.Received, t.Sent = isolation.Amount{Bytes: s.TxBytes, Packets: s.TxPackets}, isolation.Amount{Bytes: s.RxBytes, Packets: s.RxPackets}
	}
	return t, nil
}
