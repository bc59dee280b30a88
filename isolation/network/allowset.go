// SPDX-License-Identifier: Apache-2.0

package network

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation/network/rule"
)

// Bounds on pins.
const (
	maxPins     = 8192            // for one box; enough for a thousand names with 8 ports and addresses each
	pinSlack    = 5 * time.Second // how long an expired pin is remembered, since the kernel goes by its own clock
	register2   = unix.NFT_REG32_01
	register3   = unix.NFT_REG32_02
	register2v6 = unix.NFT_REG32_04
	register3v6 = unix.NFT_REG32_05
)

// pinSet is a set of addresses, protocols and ports of one family, whose elements time out.
func pinSet(t *nftables.Table, ipv4 bool) *nftables.Set {
	name, kind := "pins6", nftables.TypeIP6Addr
	if ipv4 {
		name, kind = "pins4", nftables.TypeIPAddr
	}
	key, _ := nftables.ConcatSetType(kind, nftables.TypeInetProto, nftables.TypeInetService)                           // cannot fail for three types
	return &nftables.Set{Table: t, Name: name, KeyType: key, Concatenation: true, HasTimeout: true, Size: 2 * maxPins} // twice, as expired elements count for a while
}

// pins adds the sets, empty, and for each a rule that accepts what is in it.
func (w *writer) pins(as dnsMode) {
	for _, ipv4 := range []bool{true, false} {
		set := pinSet(w.table, ipv4)
		if err := w.c.AddSet(set, nil); err != nil && w.err == nil {
			w.err = err
		}
		w.sets = append(w.sets, set)
		w.rule(w.pinned(ipv4), as.remember(), accept())
	}
}

// pinned matches packets whose destination is in a set of pins. A packet without ports matches
// none, as pins are only for TCP and UDP.
func (w *writer) pinned(ipv4 bool) []expr.Any {
	set, second, third := w.sets[0], uint32(register2), uint32(register3)
	if !ipv4 {
		set, second, third = w.sets[1], register2v6, register3v6
	}
	return append(address(ipv4, false),
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: second},
		&expr.Payload{DestRegister: third, Base: expr.PayloadBaseTransportHeader, Offset: destinationPort, Len: 2},
		&expr.Lookup{SourceRegister: 1, SetName: set.Name, SetID: set.ID})
}

// pin adds pins to the table in a box's network. A pin that exists already lasts as long as the
// longer of both, as it may come from another name. If there are too many, those that expire
// first are dropped.
func (l *Link) pin(space *os.File, pins []rule.Pin) error {
	l.pinMu.Lock()
	defer l.pinMu.Unlock()
	c, err := connect(nftables.WithNetNSFd(int(space.Fd())))
	if err != nil {
		return lacking("nf_tables", err)
	}
	t := &nftables.Table{Name: boxTable, Family: tableFamily}
	now := time.Now()
	if l.pinned == nil {
		if l.pinned, err = pinned(c, t, now); err != nil {
			return err
		}
	}
	dropped := l.pinned.makeRoom(len(pins), now)
	fresh, again := l.pinned.add(pins, now)
	send := func(do func(*nftables.Set, []nftables.SetElement) error, list map[string]time.Duration) {
		for _, ipv4 := range []bool{true, false} {
			var elements []nftables.SetElement
			for key, life := range list {
				if (len(key) < net.IPv6len) == ipv4 {
					elements = append(elements, nftables.SetElement{Key: []byte(key), Timeout: life})
				}
			}
			if len(elements) > 0 {
				err = errors.Join(err, do(pinSet(t, ipv4), elements))
			}
		}
	}
	for _, list := range []map[string]time.Duration{dropped, again} {
		send(c.SetAddElements, list) // add before deleting: to delete an expired element would fail the whole transaction
		send(c.SetDeleteElements, list)
	}
	send(c.SetAddElements, again)
	send(c.SetAddElements, fresh)
	if err == nil {
		err = c.Flush()
	}
	if err != nil {
		l.pinned = nil // read them from the kernel next time
		return fmt.Errorf("pins: %w", err)
	}
	return nil
}

// pinTable says when pins expire, by key.
type pinTable map[string]time.Time

// pinned reads the pins of a box from the kernel.
func pinned(c *nftables.Conn, t *nftables.Table, now time.Time) (pinTable, error) {
	known := pinTable{}
	for _, ipv4 := range []bool{true, false} {
		list, err := c.GetSetElements(pinSet(t, ipv4))
		if err != nil {
			return nil, fmt.Errorf("pins: %w", err)
		}
		for _, e := range list {
			known[string(e.Key)] = now.Add(e.Expires)
		}
	}
	return known, nil
}

// add enters pins, and returns those that have to be sent to the kernel: new ones, and extended
// ones.
func (known pinTable) add(pins []rule.Pin, now time.Time) (fresh, again map[string]time.Duration) {
	fresh, again = map[string]time.Duration{}, map[string]time.Duration{}
	for i := range pins {
		p := &pins[i]
		key := string(keyOf(p))
		before, exists := known[key]
		switch _, isNew := fresh[key]; {
		case exists && !before.Before(now.Add(p.For)):
			continue
		case exists && !isNew:
			again[key] = p.For
		default:
			fresh[key] = p.For
		}
		known[key] = now.Add(p.For)
	}
	return fresh, again
}

// makeRoom forgets pins that expired some time ago, and drops as many of the others as would be
// too many with n more.
func (known pinTable) makeRoom(n int, now time.Time) map[string]time.Duration {
	maps.DeleteFunc(known, func(_ string, end time.Time) bool { return now.Sub(end) > pinSlack })
	if len(known)+n <= maxPins {
		return nil
	}
	dropped := map[string]time.Duration{}
	for _, key := range slices.SortedFunc(maps.Keys(known), func(a, b string) int { return known[a].Compare(known[b]) })[:len(known)+n-maxPins] {
		dropped[key] = rule.LongestPin
		delete(known, key)
	}
	return dropped
}

// keyOf pads each part, so that it begins at a register.
func keyOf(p *rule.Pin) []byte {
	protocol := byte(unix.IPPROTO_TCP)
	if p.Protocol == rule.UDP {
		protocol = unix.IPPROTO_UDP
	}
	key := append(p.Addr.AsSlice(), protocol, 0, 0, 0)
	return append(binary.BigEndian.AppendUint16(key, p.Port), 0, 0)
}
