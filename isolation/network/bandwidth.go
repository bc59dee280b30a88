// SPDX-License-Identifier: Apache-2.0

package network

import (
	"errors"
	"fmt"
	"math"
	"os"

	"github.com/vishvananda/netlink"
)

// Sizes of the queue in front of a link with a bandwidth limit, in bytes.
const (
	minBurst   = 64 << 10 // the largest packet before it is segmented for the link
	burstShare = 20       // a burst is a twentieth of what is sent in a second
	queueShare = 4        // and the queue a quarter
)

// limitRate limits what an end of a link sends, in bytes per second; 0 removes the limit. A sender
// above it waits, and then loses packets.
func limitRate(at *netlink.Handle, end netlink.Link, rate uint64) error {
	attrs := netlink.QdiscAttrs{LinkIndex: end.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT}
	if rate == 0 {
		return unlimitRate(at, end, attrs)
	}
	burst := max(minBurst, rate/burstShare)
	qdisc := &netlink.Tbf{
		QdiscAttrs: attrs,
		Rate:       rate, Buffer: netlink.Xmittime(rate, uint32(min(burst, math.MaxUint32))),
		Limit: uint32(min(burst+max(minBurst, rate/queueShare), math.MaxUint32)),
	}
	if err := at.QdiscReplace(qdisc); err != nil {
		return &Lack{lackCap, fmt.Errorf("bandwidth: %w", err)}
	}
	return nil
}

// lackCap is the Lack of a kernel that cannot limit bandwidth.
const lackCap = "sch_tbf"

// unlimitRate removes the limit of an end, if it has one.
func unlimitRate(at *netlink.Handle, end netlink.Link, attrs netlink.QdiscAttrs) error {
	list, err := at.QdiscList(end)
	if err != nil {
		return fmt.Errorf("bandwidth: %w", err)
	}
	for _, q := range list {
		if q.Type() == "tbf" && q.Attrs().Parent == netlink.HANDLE_ROOT {
			return at.QdiscDel(&netlink.GenericQdisc{QdiscAttrs: attrs, QdiscType: "tbf"})
		}
	}
	return nil
}

// limitVeth changes the bandwidth limit of an existing pair.
func limitVeth(name string, space *os.File, rate uint64) error {
	outer, inner, err := handles(space)
	if err != nil {
		return err
	}
	defer outer.Close()
	defer inner.Close()
	end, err := outer.LinkByName(name)
	if err != nil {
		return fmt.Errorf("link %s: %w", name, err)
	}
	peer, err := inner.LinkByName(boxEnd)
	if err != nil {
		return fmt.Errorf("the box's end: %w", err)
	}
	return errors.Join(limitRate(outer, end, rate), limitRate(inner, peer, rate))
}
