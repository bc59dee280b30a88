// SPDX-License-Identifier: Apache-2.0

package network

import (
	"encoding/binary"
	"errors"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// crowdedChain refuses a connection over the limit. It counts as refused, but is not listed under
// its destination.
const crowdedChain = "crowded"

// crowded adds that chain, if there is a limit.
func (w *writer) crowded(limit int) {
	if limit == 0 {
		return
	}
	w.at = w.c.AddChain(&nftables.Chain{Name: crowdedChain, Table: w.table})
	for _, counter := range []string{refusedPackets, crowdedPackets} {
		w.rule([]expr.Any{&expr.Objref{Type: unix.NFT_OBJECT_COUNTER, Name: counter}})
	}
	w.refuse()
}

// limit sends the first packet of a connection over the limit to the chain of crowded. The kernel
// does not count connections that have ended, nor those over UDP that have been silent for a
// while.
func (w *writer) limit(limit int) {
	if limit > 0 {
		w.rule(newConnections(), overLimit(limit), []expr.Any{&expr.Verdict{Kind: expr.VerdictGoto, Chain: crowdedChain}})
	}
}

// forgetLoopback disables connection tracking for connections within the box: no limit of ours
// counts them, and their entries are not charged to the box's memory.
func (w *writer) forgetLoopback(as dnsMode) {
	w.chain("loopback-out", nftables.ChainHookOutput, nftables.ChainPriorityRaw, nftables.ChainPolicyAccept)
	w.rememberRedirecting(as)
	w.rule(loopbackOnly(expr.MetaKeyOIFNAME), []expr.Any{&expr.Notrack{}})
	w.chain("loopback-in", nftables.ChainHookPrerouting, nftables.ChainPriorityRaw, nftables.ChainPolicyAccept)
	w.rule(loopbackOnly(expr.MetaKeyIIFNAME), []expr.Any{&expr.Notrack{}})
}

// endedTimeouts is the object of the host's table that forgetEnded makes.
const endedTimeouts = "ended"

// forgetEnded makes the host's connection tracking remember ended TCP connections for a second or two, not for two minutes. The
// limit of a box does not count them, so a box that begins and ends connections all the time would fill the table of the host.
// All other timeouts are the kernel's own, although the library has another default.
func (w *writer) forgetEnded(parts ...[]expr.Any) {
	const established = 5 * 24 * 60 * 60
	w.c.AddObj(&nftables.NamedObj{Table: w.table, Name: endedTimeouts, Type: nftables.ObjTypeCtTimeout, Obj: &expr.CtTimeout{
		L3Proto: unix.NFPROTO_INET, L4Proto: unix.IPPROTO_TCP,
		Policy: expr.CtStatePolicyTimeout{expr.CtStateTCPESTABLISHED: established, expr.CtStateTCPTIMEWAIT: 2, expr.CtStateTCPCLOSE: 1},
	}})
	w.rule(append(slices.Clone(parts), newConnections(), []expr.Any{&expr.Objref{Type: unix.NFT_OBJECT_CT_TIMEOUT, Name: endedTimeouts}})...)
}

// newConnections matches the first packets of connections.
func newConnections() []expr.Any {
	mask := binary.NativeEndian.AppendUint32(nil, expr.CtStateBitNEW)
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATE, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: mask, Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)},
	}
}

// overLimit matches one connection more than limit.
func overLimit(limit int) []expr.Any {
	return []expr.Any{&expr.Connlimit{Count: uint32(limit), Flags: expr.NFT_CONNLIMIT_F_INV}}
}

// lackCount is the Lack of a kernel that cannot count connections.
const lackCount = "connlimit of nf_tables"

// tryCap tests whether the kernel can count connections, in an existing table.
func (h *Host) tryCap(c *nftables.Conn, table string) error {
	if h.cfg.Connections == 0 {
		return nil
	}
	w := &writer{c: c, table: &nftables.Table{Name: table, Family: tableFamily}}
	w.at = c.AddChain(&nftables.Chain{Name: crowdedChain, Table: w.table})
	w.rule(newConnections(), overLimit(h.cfg.Connections), drop())
	if err := c.Flush(); err != nil {
		return lackingCaps(&Lack{What: lackCount, Err: err})
	}
	return nil
}

// lackingCaps names what the kernel lacks for a link or a limit, with the key of box.toml that
// avoids the need for it.
func lackingCaps(err error) error {
	lack, ok := errors.AsType[*Lack](err)
	switch {
	case !ok:
		return err
	case lack.What == lackCount:
		return lacking(lack.What+" (network.connections = 0 does without)", lack.Err)
	case lack.What == lackCap:
		return lacking(lack.What+" (network.bandwidth = 0 does without)", lack.Err)
	}
	return lacking(lack.What, lack.Err)
}
