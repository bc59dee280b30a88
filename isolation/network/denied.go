// SPDX-License-Identifier: Apache-2.0

package network

import (
	"encoding/binary"
	"fmt"
	"os"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation"
)

// Bounds on what is remembered of refusals.
const (
	maxDenied = 64          // destinations of each family; beyond that packets are only counted
	deniedFor = time.Minute // time since the last packet
)

// refusedChain answers what a box's table refuses. refusedPackets counts that, and crowdedPackets
// those over the limit of connections.
const refusedChain, refusedPackets, crowdedPackets = "refused", "refused", "crowded"

// counts are the counters in a box's table.
type counts struct{ refused, crowded uint64 }

// deniedSet is the set of refused destinations of one family, each with a count of packets.
func deniedSet(t *nftables.Table, ipv4 bool) *nftables.Set {
	name, kind := "denied6", nftables.TypeIP6Addr
	if ipv4 {
		name, kind = "denied4", nftables.TypeIPAddr
	}
	key, _ := nftables.ConcatSetType(kind, nftables.TypeInetProto, nftables.TypeInetService) // cannot fail for three types
	return &nftables.Set{Table: t, Name: name, KeyType: key, Concatenation: true, Dynamic: true, HasTimeout: true, Timeout: deniedFor, Size: maxDenied}
}

// refusals adds the chain that refuses and records; from here on refuse jumps to it. before are
// the counters under earlier rules, and limit is that of connections. If a set is full, the
// packet is answered all the same.
func (w *writer) refusals(before counts, limit int) {
	w.c.AddObj(&nftables.CounterObj{Table: w.table, Name: refusedPackets, Packets: before.refused})
	w.c.AddObj(&nftables.CounterObj{Table: w.table, Name: crowdedPackets, Packets: before.crowded})
	w.crowded(limit) // before refusing is set: its rule answers by itself
	w.at = w.c.AddChain(&nftables.Chain{Name: refusedChain, Table: w.table})
	w.rule([]expr.Any{&expr.Objref{Type: unix.NFT_OBJECT_COUNTER, Name: refusedPackets}})
	for _, ipv4 := range []bool{true, false} {
		set := deniedSet(w.table, ipv4)
		if err := w.c.AddSet(set, nil); err != nil && w.err == nil {
			w.err = err
		}
		second, third := uint32(register2), uint32(register3)
		if !ipv4 {
			second, third = register2v6, register3v6
		}
		for _, p := range []uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
			w.rule(transport(p), address(ipv4, false), []expr.Any{
				&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: second},
				&expr.Payload{DestRegister: third, Base: expr.PayloadBaseTransportHeader, Offset: destinationPort, Len: 2},
				&expr.Dynset{SrcRegKey: 1, SetName: set.Name, SetID: set.ID, Operation: unix.NFT_DYNSET_OP_UPDATE, Exprs: []expr.Any{&expr.Counter{}}},
			})
		}
	}
	w.refuse()
	w.refusing = refusedChain
}

// denied reads what the chain of refusals has recorded.
func denied(space *os.File) (*isolation.Refusals, error) {
	c, err := connect(nftables.WithNetNSFd(int(space.Fd())))
	if err != nil {
		return nil, lacking("nf_tables", err)
	}
	t := &nftables.Table{Name: boxTable, Family: tableFamily}
	n, known, err := refused(c, t)
	if err != nil {
		return nil, err
	}
	all := &isolation.Refusals{Packets: n.refused, Crowded: n.crowded}
	if !known {
		return all, nil
	}
	for _, ipv4 := range []bool{true, false} {
		list, err := c.GetSetElements(deniedSet(t, ipv4))
		if err != nil {
			return nil, fmt.Errorf("refusals: %w", err)
		}
		for _, e := range list {
			if d, ok := destinationOf(e, ipv4); ok {
				all.Lately = append(all.Lately, d)
			}
		}
	}
	return all, nil
}

// refused returns how many packets a box was refused. known is false if there is no table, or if
// an earlier keeper has made one without counters. The counters are listed, since the library's
// errors do not say that one is missing.
func refused(c *nftables.Conn, t *nftables.Table) (now counts, known bool, err error) {
	list, err := c.GetObjects(t)
	if err != nil {
		return now, false, fmt.Errorf("refusals: %w", err)
	}
	for _, o := range list {
		n, ok := o.(*nftables.CounterObj)
		switch {
		case ok && n.Name == refusedPackets:
			now.refused, known = n.Packets, true
		case ok && n.Name == crowdedPackets:
			now.crowded = n.Packets
		}
	}
	return now, known, nil
}

// destinationOf decodes an element. Each of its parts begins at a register.
func destinationOf(e nftables.SetElement, ipv4 bool) (d isolation.RefusedDestination, ok bool) {
	size := 16
	if ipv4 {
		size = 4
	}
	if len(e.Key) != size+8 || e.Counter == nil {
		return d, false
	}
	d.To = isolation.Endpoint{Address: e.Key[:size], Port: binary.BigEndian.Uint16(e.Key[size+4:])}
	d.UDP, d.Packets = e.Key[size] == unix.IPPROTO_UDP, e.Counter.Packets
	return d, true
}
