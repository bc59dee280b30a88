// SPDX-License-Identifier: Apache-2.0

package network

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation/network/rule"
)

// WordDenied asks what a box was refused by its rules: how many packets, and the last destinations of TCP and UDP, each
// as "ADDRESS PROTOCOL PORT PACKETS".
const WordDenied = "denied"

// Bounds of what is known of refusals.
const (
	maxDenied = 64          // destinations of each family; of more than that only the packets are counted
	deniedFor = time.Minute // since the last packet
)

// refusedChain answers what is refused in a box's table, and refusedPackets counts it.
const refusedChain, refusedPackets = "refused", "refused"

// deniedSet has the destinations of one family that were refused, with a count of packets each.
func deniedSet(t *nftables.Table, four bool) *nftables.Set {
	name, kind := "denied6", nftables.TypeIP6Addr
	if four {
		name, kind = "denied4", nftables.TypeIPAddr
	}
	key, _ := nftables.ConcatSetType(kind, nftables.TypeInetProto, nftables.TypeInetService) // of three, it cannot fail
	return &nftables.Set{Table: t, Name: name, KeyType: key, Concatenation: true, Dynamic: true, HasTimeout: true, Timeout: deniedFor, Size: maxDenied}
}

// refusals makes the chain that refuses and remembers: from here on refuse leads there. before are the packets that
// the box was refused by rules of before, and most is how many connections it may have. A set that is full does not
// hold up the answer.
func (w *writer) refusals(before uint64, most int) {
	w.c.AddObj(&nftables.CounterObj{Table: w.table, Name: refusedPackets, Packets: before})
	w.crowded(most) // while each rule answers by itself
	w.at = w.c.AddChain(&nftables.Chain{Name: refusedChain, Table: w.table})
	w.rule([]expr.Any{&expr.Objref{Type: unix.NFT_OBJECT_COUNTER, Name: refusedPackets}})
	for _, four := range []bool{true, false} {
		set := deniedSet(w.table, four)
		if err := w.c.AddSet(set, nil); err != nil && w.err == nil {
			w.err = err
		}
		second, third := uint32(register2), uint32(register3)
		if !four {
			second, third = register2v6, register3v6
		}
		for _, p := range []uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
			w.rule(transport(p), address(four, false), []expr.Any{
				&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: second},
				&expr.Payload{DestRegister: third, Base: expr.PayloadBaseTransportHeader, Offset: destinationPort, Len: 2},
				&expr.Dynset{SrcRegKey: 1, SetName: set.Name, SetID: set.ID, Operation: unix.NFT_DYNSET_OP_UPDATE, Exprs: []expr.Any{&expr.Counter{}}},
			})
		}
	}
	w.refuse()
	w.refusing = refusedChain
}

// denied reads what refusals has made.
func denied(space *os.File) (packets uint64, words []string, err error) {
	c, err := connect(nftables.WithNetNSFd(int(space.Fd())))
	if err != nil {
		return 0, nil, lacking("nf_tables", err)
	}
	t := &nftables.Table{Name: boxTable, Family: tableFamily}
	packets, known, err := refused(c, t)
	if err != nil || !known {
		return 0, nil, err
	}
	for _, four := range []bool{true, false} {
		list, err := c.GetSetElements(deniedSet(t, four))
		if err != nil {
			return 0, nil, fmt.Errorf("refusals: %w", err)
		}
		for _, e := range list {
			if word, ok := destinationOf(e, four); ok {
				words = append(words, word)
			}
		}
	}
	return packets, words, nil
}

// refused is how many packets a box was refused. known is false of a table that counts none, as a keeper of before has
// made it, and where there is no table. They are listed: the library's errors do not say what one that is missing is.
func refused(c *nftables.Conn, t *nftables.Table) (packets uint64, known bool, err error) {
	list, err := c.GetObjects(t)
	if err != nil {
		return 0, false, fmt.Errorf("refusals: %w", err)
	}
	for _, o := range list {
		if n, ok := o.(*nftables.CounterObj); ok && n.Name == refusedPackets {
			return n.Packets, true, nil
		}
	}
	return 0, false, nil
}

// destinationOf is the word of an element. Its parts are each at the beginning of a register.
func destinationOf(e nftables.SetElement, four bool) (string, bool) {
	size := 16
	if four {
		size = 4
	}
	if len(e.Key) != size+8 || e.Counter == nil {
		return "", false
	}
	a, _ := netip.AddrFromSlice(e.Key[:size])
	protocol := rule.TCP
	if e.Key[size] == unix.IPPROTO_UDP {
		protocol = rule.UDP
	}
	port := binary.BigEndian.Uint16(e.Key[size+4:])
	return a.String() + " " + protocol + " " + strconv.Itoa(int(port)) + " " + strconv.FormatUint(e.Counter.Packets, 10), true
}
