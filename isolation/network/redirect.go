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

// marked matches packets of the proxy, or all others.
func marked(op expr.CmpOp) []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyMARK, Register: 1}, &expr.Cmp{Op: op, Register: 1, Data: binary.NativeEndian.AppendUint32(nil, Mark)}}
}

// rememberRedirecting enables connection tracking for the answers of the proxy on loopback, so
// that the kernel translates them back.
func (w *writer) rememberRedirecting(as dnsMode) {
	for _, a := range loopbacks() {
		if as.strict {
			w.rule(loopbackOnly(expr.MetaKeyOIFNAME), source(single(a)), transport(unix.IPPROTO_TCP),
				[]expr.Any{&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Len: 2}, equal(binary.BigEndian.AppendUint16(nil, redirectPort))}, accept())
		}
	}
}

// acceptRedirected accepts what was redirected to the proxy, up to the limit of connections, and
// nothing else there. It comes before the rules for loopback: a redirected packet still has the
// link as its output interface.
func (w *writer) acceptRedirected(as dnsMode, limit int) {
	if !as.strict {
		return
	}
	w.refuse(loopbackOnly(expr.MetaKeyOIFNAME), transport(unix.IPPROTO_TCP), only(redirectPort))
	for _, a := range loopbacks() {
		if limit > 0 {
			w.rule(destination(single(a)), transport(unix.IPPROTO_TCP), only(redirectPort), newConnections(), overLimit(limit), []expr.Any{&expr.Verdict{Kind: expr.VerdictGoto, Chain: crowdedChain}})
		}
		w.rule(destination(single(a)), transport(unix.IPPROTO_TCP), only(redirectPort), accept())
	}
}

// refuseUnchecked refuses what a pin would let through without a check: a packet that was not redirected,
// since there was no pin yet, and QUIC, which cannot be checked. It comes between the rules by
// CIDR and the pins.
func (w *writer) refuseUnchecked(as dnsMode) {
	if !as.strict {
		return
	}
	for _, port := range webPorts() {
		w.refuse(transport(unix.IPPROTO_TCP), only(port), marked(expr.CmpOpNeq))
		w.refuse(transport(unix.IPPROTO_UDP), only(port))
	}
}

// redirect redirects what a pin would let through to the proxy. It comes after the sets of pins; what
// a rule by CIDR allows is not redirected.
func (w *writer) redirect(as dnsMode, rules ordered) {
	if !as.strict {
		return
	}
	w.at = w.c.AddChain(&nftables.Chain{Name: "looking", Table: w.table, Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookOutput, Priority: nftables.ChainPriorityNATDest})
	w.rule(marked(expr.CmpOpEq), accept())
	for _, r := range slices.Concat(rules.first, rules.others) {
		if r.Protocol == rule.UDP {
			continue
		}
		for _, port := range webPorts() {
			if len(r.Ports) == 0 || slices.ContainsFunc(r.Ports, func(p rule.Ports) bool { return p.First <= port && port <= p.Last }) {
				w.rule(destination(r.To), transport(unix.IPPROTO_TCP), only(port), accept())
			}
		}
	}
	for _, ipv4 := range []bool{true, false} {
		for _, port := range webPorts() {
			w.rule(transport(unix.IPPROTO_TCP), only(port), w.pinned(ipv4), []expr.Any{
				&expr.Immediate{Register: 1, Data: binary.BigEndian.AppendUint16(nil, redirectPort)}, &expr.Redir{RegisterProtoMin: 1},
			})
		}
	}
}
