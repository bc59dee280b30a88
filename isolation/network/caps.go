// SPDX-License-Identifier: Apache-2.0

package network

import (
	"encoding/binary"
	"errors"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// crowdedChain refuses what would be one connection too many. It counts as refused, and no destination is to blame.
const crowdedChain = "crowded"

// crowded makes the chain of that name, where there is a cap.
func (w *writer) crowded(most int) {
	if most == 0 {
		return
	}
	w.at = w.c.AddChain(&nftables.Chain{Name: crowdedChain, Table: w.table})
	for _, counter := range []string{refusedPackets, crowdedPackets} {
		w.rule([]expr.Any{&expr.Objref{Type: unix.NFT_OBJECT_COUNTER, Name: counter}})
	}
	w.refuse()
}

// most leads what begins one connection too many to the chain of crowded. Those that have ended are not counted by the
// kernel, nor those of UDP that nothing was heard of for a while.
func (w *writer) most(most int) {
	if most > 0 {
		w.rule(beginnings(), over(most), []expr.Any{&expr.Verdict{Kind: expr.VerdictGoto, Chain: crowdedChain}})
	}
}

// forgetLoopback keeps connections within the box out of what the kernel remembers, which no cap of ours counts and no
// limit of the box's memory has.
func (w *writer) forgetLoopback(as dnsMode) {
	w.chain("loopback-out", nftables.ChainHookOutput, nftables.ChainPriorityRaw, nftables.ChainPolicyAccept)
	w.rememberRedirecting(as)
	w.rule(within(expr.MetaKeyOIFNAME), []expr.Any{&expr.Notrack{}})
	w.chain("loopback-in", nftables.ChainHookPrerouting, nftables.ChainPriorityRaw, nftables.ChainPolicyAccept)
	w.rule(within(expr.MetaKeyIIFNAME), []expr.Any{&expr.Notrack{}})
}

// beginnings are the first packets of connections.
func beginnings() []expr.Any {
	mask := binary.NativeEndian.AppendUint32(nil, expr.CtStateBitNEW)
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATE, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: mask, Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)},
	}
}

// over is one connection more than most.
func over(most int) []expr.Any {
	return []expr.Any{&expr.Connlimit{Count: uint32(most), Flags: expr.NFT_CONNLIMIT_F_INV}}
}

// lackCount is the Lack of a kernel that cannot count connections.
const lackCount = "connlimit of nf_tables"

// tryCap sees whether the kernel can count connections, in a table that is there.
func (h *Host) tryCap(c *nftables.Conn, table string) error {
	if h.cfg.Connections == 0 {
		return nil
	}
	w := &writer{c: c, table: &nftables.Table{Name: table, Family: tableFamily}}
	w.at = c.AddChain(&nftables.Chain{Name: crowdedChain, Table: w.table})
	w.rule(beginnings(), over(h.cfg.Connections), drop())
	if err := c.Flush(); err != nil {
		return lackingCaps(&Lack{What: lackCount, Err: err})
	}
	return nil
}

// lackingCaps names what an error about a pair or a cap is about, with the key of box.toml that can do without.
func lackingCaps(err error) error {
	lack, ok := errors.AsType[*Lack](err)
	switch {
	case !ok:
		return err
	case lack.What == lackCount:
		return lacking(lack.What+" (network.connections = 0 does without)", lack.Err)
	case lack.What == LackCap:
		return lacking(lack.What+" (network.bandwidth = 0 does without)", lack.Err)
	}
	return lacking(lack.What, lack.Err)
}
