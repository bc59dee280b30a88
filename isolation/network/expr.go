// SPDX-License-Identifier: Apache-2.0

package network

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation/network/rule"
)

// Lengths and offsets in the headers of packets, in bytes.
const (
	source4, destination4 = 12, 16 // of the IPv4 header
	source6, destination6 = 8, 24
	destinationPort       = 2
)

// buffer is the size of the socket buffers, in bytes: one transaction fits, and so do the answers
// to it.
const buffer = 4 << 20

// answerTimeout is how long the kernel may take for a transaction.
const answerTimeout = 20 * time.Second

// prepare enlarges the buffers for many messages: otherwise messages are refused, or answers are
// lost and the outcome is unknown. The library waits for an answer to each message, whereas a
// kernel without nf_tables sends one for all of them, so it also sets a timeout.
func prepare(timeout time.Duration) func(*netlink.Conn) error {
	return func(c *netlink.Conn) error {
		return errors.Join(c.SetReadBuffer(buffer), c.SetWriteBuffer(buffer), c.SetDeadline(time.Now().Add(timeout)))
	}
}

// writer adds to a table. Nothing happens before the flush.
type writer struct {
	c     *nftables.Conn
	table *nftables.Table
	at    *nftables.Chain
	err   error // the first error
	// refusing is the chain that answers what is refused; "": each rule does so itself.
	refusing string
	sets     []*nftables.Set // sets of pins, once they are added: IPv4, IPv6
}

func (w *writer) chain(name string, hook *nftables.ChainHook, priority *nftables.ChainPriority, policy nftables.ChainPolicy) {
	w.at = w.c.AddChain(&nftables.Chain{Name: name, Table: w.table, Type: nftables.ChainTypeFilter, Hooknum: hook, Priority: priority, Policy: &policy})
}

func (w *writer) nat(name string) {
	w.at = w.c.AddChain(&nftables.Chain{Name: name, Table: w.table, Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource})
}

// rule adds a rule made of these parts, in order.
func (w *writer) rule(parts ...[]expr.Any) {
	w.c.AddRule(&nftables.Rule{Table: w.table, Chain: w.at, Exprs: slices.Concat(parts...)})
}

// refuse answers what matches: TCP with a reset, and everything else with an ICMP error
// (prohibited).
func (w *writer) refuse(parts ...[]expr.Any) {
	if w.refusing != "" {
		w.rule(append(slices.Clone(parts), []expr.Any{&expr.Verdict{Kind: expr.VerdictGoto, Chain: w.refusing}})...)
		return
	}
	w.rule(append(slices.Clone(parts), transport(unix.IPPROTO_TCP), []expr.Any{&expr.Counter{}, &expr.Reject{Type: unix.NFT_REJECT_TCP_RST}})...)
	w.rule(append(slices.Clone(parts), []expr.Any{&expr.Counter{}, &expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: unix.NFT_REJECT_ICMPX_ADMIN_PROHIBITED}})...)
}

// neighbours accepts IPv6 neighbour discovery between the two ends of a link.
func (w *writer) neighbours(parts ...[]expr.Any) {
	for _, kind := range []byte{135, 136} { // solicitation, advertisement
		w.rule(append(slices.Clone(parts), transport(unix.IPPROTO_ICMPV6), []expr.Any{
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Len: 1}, equal([]byte{kind}),
		}, accept())...)
	}
}

// requireGateway drops packets that would not go to a gateway. A program can send as if its destinations were neighbours (SO_DONTROUTE),
// and the kernel keeps the neighbours of all networks in one table, which would fill up for the host and all boxes.
func (w *writer) requireGateway(gateways []netip.Addr) {
	for _, a := range gateways {
		family, key := byte(unix.NFPROTO_IPV4), expr.RtNexthop4
		if a.Is6() {
			family, key = unix.NFPROTO_IPV6, expr.RtNexthop6
		}
		w.rule([]expr.Any{
			&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1}, equal([]byte{family}),
			&expr.Rt{Key: key, Register: 1}, &expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: a.AsSlice()},
		}, drop())
	}
}

// allow accepts what a rule allows.
func (w *writer) allow(r rule.Rule) {
	protocols := map[string][]uint8{rule.TCP: {unix.IPPROTO_TCP}, rule.UDP: {unix.IPPROTO_UDP}, rule.Any: {unix.IPPROTO_TCP, unix.IPPROTO_UDP}}[r.Protocol]
	for _, p := range protocols {
		if len(r.Ports) == 0 {
			w.rule(destination(r.To), transport(p), accept())
		}
		for _, q := range r.Ports {
			w.rule(destination(r.To), transport(p), ports(q), accept())
		}
	}
}

// blocked adds the sets of blocked networks, and returns for each what matches a destination in
// it.
func (w *writer) blocked() (lookups [][]expr.Any) {
	for _, ipv4 := range []bool{true, false} {
		name, kind := "blocked6", nftables.TypeIP6Addr
		if ipv4 {
			name, kind = "blocked4", nftables.TypeIPAddr
		}
		set := &nftables.Set{Table: w.table, Name: name, KeyType: kind, Interval: true, Constant: true}
		if err := w.c.AddSet(set, intervals(ipv4)); err != nil && w.err == nil {
			w.err = err
		}
		lookups = append(lookups, slices.Concat(address(ipv4, false), []expr.Any{&expr.Lookup{SourceRegister: 1, SetName: set.Name, SetID: set.ID}}))
	}
	return lookups
}

// intervals returns the blocked networks of one family, sorted, with adjacent ones joined: a set
// does not take an address twice.
func intervals(ipv4 bool) (elements []nftables.SetElement) {
	list := slices.DeleteFunc(rule.Blocked(), func(p netip.Prefix) bool { return p.Addr().Is4() != ipv4 })
	slices.SortFunc(list, func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) })
	for i, p := range list {
		if i == 0 || last(list[i-1]).Next() != p.Addr() {
			elements = append(elements, nftables.SetElement{Key: p.Addr().AsSlice()})
		}
		after := last(p).Next() // invalid after the last address of all
		if after.IsValid() && (i == len(list)-1 || list[i+1].Addr() != after) {
			elements = append(elements, nftables.SetElement{Key: after.AsSlice(), IntervalEnd: true})
		}
	}
	return elements
}

// last returns the last address of a network.
func last(p netip.Prefix) netip.Addr {
	bytes := p.Addr().AsSlice()
	for i := range bytes {
		free := min(max((i+1)*8-p.Bits(), 0), 8)
		bytes[i] |= byte(1<<free - 1)
	}
	a, _ := netip.AddrFromSlice(bytes)
	return a
}

func accept() []expr.Any { return []expr.Any{&expr.Verdict{Kind: expr.VerdictAccept}} }
func drop() []expr.Any   { return []expr.Any{&expr.Counter{}, &expr.Verdict{Kind: expr.VerdictDrop}} }

func equal(data []byte) *expr.Cmp { return &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: data} }

// named matches a link whose name has this prefix.
func named(key expr.MetaKey, name string) []expr.Any {
	return []expr.Any{&expr.Meta{Key: key, Register: 1}, equal([]byte(name))}
}

// loopbackOnly matches the loopback of a box.
func loopbackOnly(key expr.MetaKey) []expr.Any {
	full := make([]byte, unix.IFNAMSIZ)
	copy(full, "lo")
	return []expr.Any{&expr.Meta{Key: key, Register: 1}, equal(full)}
}

// notNamed matches a link whose name does not have this prefix.
func notNamed(key expr.MetaKey, name string) []expr.Any {
	return []expr.Any{&expr.Meta{Key: key, Register: 1}, &expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: []byte(name)}}
}

// address loads the source or the destination of packets of one family.
func address(ipv4, from bool) []expr.Any {
	family, offset, length := byte(unix.NFPROTO_IPV6), uint32(destination6), uint32(16)
	if from {
		offset = source6
	}
	if ipv4 {
		family, offset, length = unix.NFPROTO_IPV4, destination4, 4
		if from {
			offset = source4
		}
	}
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1}, equal([]byte{family}),
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: length},
	}
}

func destination(p netip.Prefix) []expr.Any { return prefixed(p, false) }
func source(p netip.Prefix) []expr.Any      { return prefixed(p, true) }

func prefixed(p netip.Prefix, from bool) []expr.Any {
	length := p.Addr().BitLen() / 8
	mask := make([]byte, length)
	for i := range mask {
		mask[i] = ^byte(1<<min(max((i+1)*8-p.Bits(), 0), 8) - 1)
	}
	return append(address(p.Addr().Is4(), from),
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: uint32(length), Mask: mask, Xor: make([]byte, length)},
		equal(p.Addr().AsSlice()))
}

// transport matches a protocol above IP.
func transport(protocol uint8) []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, equal([]byte{protocol})}
}

// ports matches destination ports of a transport that has them.
func ports(p rule.Ports) []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: destinationPort, Len: 2},
		&expr.Range{Op: expr.CmpOpEq, Register: 1, FromData: binary.BigEndian.AppendUint16(nil, p.First), ToData: binary.BigEndian.AppendUint16(nil, p.Last)},
	}
}

// established matches packets of connections that the box has begun, and errors about those.
func established() []expr.Any {
	mask := binary.NativeEndian.AppendUint32(nil, expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED)
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATE, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: mask, Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)},
	}
}

// sourceRoutes matches source-routed packets: those with an IPv4 option (loose or strict source
// and record route), or with the routing header of IPv6.
func sourceRoutes() [][]expr.Any {
	const loose, strict, routing = 131, 137, 43
	header := func(family byte, op expr.ExthdrOp, kind uint8) []expr.Any {
		return []expr.Any{
			&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1}, equal([]byte{family}),
			&expr.Exthdr{DestRegister: 1, Type: kind, Len: 1, Flags: unix.NFT_EXTHDR_F_PRESENT, Op: op}, equal([]byte{1}),
		}
	}
	return [][]expr.Any{
		header(unix.NFPROTO_IPV4, optionsOfIPv4, loose), header(unix.NFPROTO_IPV4, optionsOfIPv4, strict), header(unix.NFPROTO_IPV6, expr.ExthdrOpIpv6, routing),
	}
}

// optionsOfIPv4 is NFT_EXTHDR_OP_IPV4, which the library does not name.
const optionsOfIPv4 expr.ExthdrOp = 2
