// SPDX-License-Identifier: Apache-2.0

package network

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation/network/rule"
)

func only(port uint16) []expr.Any { return ports(rule.Ports{First: port, Last: port}) }

func single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// marked are packets of whoever looks, or all others.
func marked(op expr.CmpOp) []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyMARK, Register: 1}, &expr.Cmp{Op: op, Register: 1, Data: binary.NativeEndian.AppendUint32(nil, Mark)}}
}

// rememberRedirecting has the kernel remember what is answered on loopback where connections are looked at: it translates
// the answers back.
func (w *writer) rememberRedirecting(as dnsMode) {
	for _, a := range Loopbacks() {
		if as.strict {
			w.rule(within(expr.MetaKeyOIFNAME), source(single(a)), transport(unix.IPPROTO_TCP),
				[]expr.Any{&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Len: 2}, equal(binary.BigEndian.AppendUint16(nil, redirectPort))}, accept())
		}
	}
}

// redirecting lets through what was led to who looks, as many connections as there may be, and nothing else there. It
// comes before what is within the box: a packet that was led there still has the link as its way out.
func (w *writer) redirecting(as dnsMode, most int) {
	if !as.strict {
		return
	}
	w.refuse(within(expr.MetaKeyOIFNAME), transport(unix.IPPROTO_TCP), only(redirectPort))
	for _, a := range Loopbacks() {
		if most > 0 {
			w.rule(destination(single(a)), transport(unix.IPPROTO_TCP), only(redirectPort), beginnings(), over(most), []expr.Any{&expr.Verdict{Kind: expr.VerdictGoto, Chain: crowdedChain}})
		}
		w.rule(destination(single(a)), transport(unix.IPPROTO_TCP), only(redirectPort), accept())
	}
}

// unseen refuses what a pin would let through without a look: a packet that was not led away, since there was no pin
// yet, and what could not be looked at, QUIC. It stands between the rules by cidr and the pins.
func (w *writer) unseen(as dnsMode) {
	if !as.strict {
		return
	}
	for _, port := range WebPorts() {
		w.refuse(transport(unix.IPPROTO_TCP), only(port), marked(expr.CmpOpNeq))
		w.refuse(transport(unix.IPPROTO_UDP), only(port))
	}
}

// lead leads what a pin would let through to who looks, behind the sets of pins. What a rule by cidr is about goes on.
func (w *writer) lead(as dnsMode, rules ordered) {
	if !as.strict {
		return
	}
	w.at = w.c.AddChain(&nftables.Chain{Name: "looking", Table: w.table, Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookOutput, Priority: nftables.ChainPriorityNATDest})
	w.rule(marked(expr.CmpOpEq), accept())
	for _, r := range slices.Concat(rules.first, rules.others) {
		if r.Protocol == rule.UDP {
			continue
		}
		for _, port := range WebPorts() {
			if len(r.Ports) == 0 || slices.ContainsFunc(r.Ports, func(p rule.Ports) bool { return p.First <= port && port <= p.Last }) {
				w.rule(destination(r.To), transport(unix.IPPROTO_TCP), only(port), accept())
			}
		}
	}
	for _, four := range []bool{true, false} {
		for _, port := range WebPorts() {
			w.rule(transport(unix.IPPROTO_TCP), only(port), w.pinned(four), []expr.Any{
				&expr.Immediate{Register: 1, Data: binary.BigEndian.AppendUint16(nil, redirectPort)}, &expr.Redir{RegisterProtoMin: 1},
			})
		}
	}
}
