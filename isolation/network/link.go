// SPDX-License-Identifier: Apache-2.0

package network

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation/network/rule"
)

// Link is a box's way out.
type Link struct {
	host *Host
	key  string
	pair uint32

	pinning sync.Mutex // held while pins are made, or the table that has them
	pinned  pinTable   // nil: the kernel knows
}

// Attach makes the link of a box in which no program runs yet, and returns the text of its resolv.conf(5). pid is its
// PID 1, and alive reports whether that is still the one that is meant: its number may have been given to another. The
// words are rule.Egress and the rules. When that fails nothing is left.
func (h *Host) Attach(key string, pid int, alive func() bool, words []string) (resolv string, err error) {
	if words[0] != rule.Egress {
		return "", &Failure{Reason: "network " + words[0] + " is none", Errno: unix.EINVAL}
	}
	as, rules, err := h.read(words[1:])
	if err != nil {
		return "", err
	}
	up, err := h.uplink()
	if err != nil {
		return "", err
	}
	space, err := h.namespace(pid, alive)
	if err != nil {
		return "", err
	}
	defer space.Close()
	written := make(chan error, 1)
	go func() { // beside the link, which it does not need; waited for below
		written <- h.writeBoxTable(int(space.Fd()), inOrder(rules, up.near), h.resolvers(true), as, false)
	}()
	if err = errors.Join(h.join(key, space, up, as.caps.Bandwidth), <-written); err != nil {
		h.Remove(key)
		return "", err
	}
	if as.rules != 0 {
		return resolvAt, nil
	}
	return resolvConf(h.resolvers(up.six)), nil
}

// join makes the link of a box. What is made of it when that fails is for Remove.
func (h *Host) join(key string, space *os.File, up *uplink, bandwidth uint64) error {
	if err := h.ensure(); err != nil {
		return err
	}
	n, err := h.take()
	if err != nil {
		return err
	}
	l := &Link{host: h, key: key, pair: n, pinned: pinTable{}}
	h.mu.Lock()
	h.links[key] = l
	h.mu.Unlock()
	return l.build(space, up, bandwidth)
}

// namespace opens the network of a box. The host's own is none: what is written there would be for all.
func (h *Host) namespace(pid int, alive func() bool) (*os.File, error) {
	space, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", pid))
	if err != nil {
		return nil, fmt.Errorf("the box's network: %w", err)
	}
	var box unix.Stat_t
	err = unix.Fstat(int(space.Fd()), &box)
	if err == nil && (!alive() || h.own.Ino == 0 || h.own.Ino == box.Ino && h.own.Dev == box.Dev) {
		err = unix.ESRCH
	}
	if err != nil {
		space.Close()
		return nil, err
	}
	return space, nil
}

// parse reads the rules of a box, and holds them against what root has named.
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
			return nil, &Failure{Reason: "no profile of box.toml names " + r.String() + ", which is blocked otherwise", Errno: unix.EPERM}
		}
	}
	return rules, nil
}

// build makes both ends.
func (l *Link) build(space *os.File, up *uplink, bandwidth uint64) error {
	h := l.host
	ends := Veth{Name: h.LinkName(l.key), MTU: up.mtu, Host: h.addresses(l.pair, up.six, true), Box: h.addresses(l.pair, up.six, false), Bandwidth: bandwidth}
	return lackingCaps(ends.Make(space))
}

// addresses are those of one end.
func (h *Host) addresses(n uint32, six, host bool) (list []netip.Addr) {
	for _, block := range []netip.Prefix{h.cfg.Block4, h.cfg.Block6} {
		if !block.IsValid() || block.Addr().Is6() && !six {
			continue
		}
		own, box := couple(block, n)
		if !host {
			own = box
		}
		list = append(list, own)
	}
	return list
}

// Remove ends the link of a box, if it has one.
func (h *Host) Remove(key string) {
	h.mu.Lock()
	l := h.links[key]
	delete(h.links, key)
	h.mu.Unlock()
	if l == nil {
		return
	}
	if err := RemoveVeth(h.LinkName(key)); err != nil {
		h.log.Printf("box %s: %v", key, err) // and it keeps its addresses
		return
	}
	own := h.addresses(l.pair, true, false)
	h.forgetFlows(func(a netip.Addr) bool { return slices.Contains(own, a) })
	h.release(l.pair)
}

// Words of Do.
const (
	WordLook  = "look"  // how the network is
	WordRules = "rules" // other rules: those that follow; the answer is the text of resolv.conf(5) for them
	WordPins  = "pins"  // let through what follows, see Pin
)

// Do answers about the network of a living box, or changes it. A change of rules is in force for connections that are
// there already: it forgets the pins too.
func (h *Host) Do(key string, pid int, alive func() bool, words []string) (answer []string, files []int, err error) {
	h.mu.Lock()
	l := h.links[key]
	h.mu.Unlock()
	switch {
	case len(words) == 0:
		return nil, nil, unix.EINVAL
	case l == nil && words[0] != WordConnect:
		return nil, nil, &Failure{Reason: "the box has no network", Errno: unix.ENONET}
	}
	if words[0] == WordLook {
		answer, err = h.look(l)
		return answer, nil, err
	}
	space, err := h.namespace(pid, alive)
	if err != nil {
		return nil, nil, err
	}
	defer space.Close()
	switch words[0] {
	case WordConnect:
		files, err = Connect(space, words[1:])
		return nil, files, err
	case WordSockets:
		if answer, err = h.look(l); err == nil {
			six := slices.ContainsFunc(answer, func(a string) bool { return strings.Contains(a, ":") })
			files, err = OpenSockets(space, slices.Equal(words[1:], []string{WordStrict}), six)
		}
		return answer, files, err
	case WordDial:
		files, err = Dial(space, words[1:])
		return nil, files, err
	case WordRules:
		as, rules, err := h.read(words[1:])
		if err != nil {
			return nil, nil, err
		}
		return h.rewrite(l, space, rules, as)
	case WordDenied:
		answer, err = denied(space)
		return answer, nil, err
	case WordPins:
		if len(words) > pinsAtOnce {
			return nil, nil, unix.E2BIG
		}
		var pins []rule.Pin
		for _, text := range words[1:] {
			p, err := rule.ParsePin(text)
			if err != nil {
				return nil, nil, err
			}
			pins = append(pins, p)
		}
		return nil, nil, l.pin(space, pins)
	}
	return nil, nil, unix.EINVAL
}

// rewrite replaces the rules and caps of a box, and answers with the text of its resolv.conf(5) under these.
func (h *Host) rewrite(l *Link, space *os.File, rules []rule.Rule, as asking) ([]string, []int, error) {
	_, six, err := h.end(l)
	if err != nil {
		return nil, nil, err
	}
	near, err := neighbours()
	if err != nil {
		return nil, nil, err
	}
	if err := lackingCaps(LimitVeth(h.LinkName(l.key), space, as.caps.Bandwidth)); err != nil {
		return nil, nil, err
	}
	resolvers := h.resolvers(six)
	l.pinning.Lock()
	defer l.pinning.Unlock()
	l.pinned = nil
	if err := h.writeBoxTable(int(space.Fd()), inOrder(rules, near), resolvers, as, true); err != nil {
		return nil, nil, err
	}
	if as.rules != 0 {
		return []string{resolvAt}, nil, nil
	}
	return []string{resolvConf(resolvers)}, nil, nil
}

// end finds the host's end of a link, and whether it has addresses of IPv6.
func (h *Host) end(l *Link) (end netlink.Link, six bool, err error) {
	if end, err = netlink.LinkByName(h.LinkName(l.key)); err != nil {
		return nil, false, err
	}
	list, err := netlink.AddrList(end, netlink.FAMILY_V6)
	return end, slices.ContainsFunc(list, func(a netlink.Addr) bool { return a.IP.IsPrivate() }), err
}

// look describes a link: its addresses in the box, and what has gone to the box and come from it.
func (h *Host) look(l *Link) ([]string, error) {
	end, six, err := h.end(l)
	if err != nil {
		return nil, err
	}
	var words []string
	for _, a := range h.addresses(l.pair, six, false) {
		words = append(words, a.String())
	}
	s := end.Attrs().Statistics
	if s == nil {
		s = &netlink.LinkStatistics{}
	}
	for _, n := range []uint64{s.TxBytes, s.TxPackets, s.RxBytes, s.RxPackets} { // the host's end sends what the box receives
		words = append(words, strconv.FormatUint(n, 10))
	}
	return words, nil
}
