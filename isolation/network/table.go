// SPDX-License-Identifier: Apache-2.0

package network

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation/network/rule"
)

// tableFamily covers IPv4 and IPv6.
const tableFamily = nftables.TableFamilyINet

// connect opens a transaction.
func connect(options ...nftables.ConnOption) (*nftables.Conn, error) {
	return nftables.New(append(options, nftables.WithSockOptions(prepare(answerTimeout)))...)
}

// ensure writes the host's table, unless it exists and this keeper has written it.
func (h *Host) ensure() error {
	h.tableMu.Lock()
	defer h.tableMu.Unlock()
	c, err := connect()
	if err != nil {
		return lacking("nf_tables", err)
	}
	servers := h.resolvers(true)
	if h.written && slices.Equal(h.known, servers) && h.hasTable(c) {
		return nil
	}
	h.watching.Do(func() { h.done.Go(h.watch) })
	if err := h.writeTable(c, h.table(), true); err != nil {
		if h.writeTable(c, h.table(), false) != nil {
			return err
		}
		h.log.Printf("connection tracking keeps ended connections of boxes for two minutes: nf_tables has no ct timeout (%v)", err)
	}
	h.written, h.known = true, servers
	return nil
}

func (h *Host) hasTable(c *nftables.Conn) bool {
	list, err := c.ListTablesOfFamily(tableFamily)
	if err != nil {
		return false
	}
	for _, t := range list {
		if t.Name == h.table() {
			return true
		}
	}
	return false
}

// tryTable makes a table and removes it, to test that the kernel can.
func (h *Host) tryTable() error {
	c, err := connect()
	if err == nil {
		err = h.writeTable(c, h.table()+"-try", false)
	}
	if err != nil {
		return lacking("nf_tables", err)
	}
	err = h.tryCap(c, h.table()+"-try")
	c.DelTable(&nftables.Table{Name: h.table() + "-try", Family: tableFamily})
	return errors.Join(err, c.Flush())
}

// removeTable removes the host's table, if it exists.
func (h *Host) removeTable() error {
	h.tableMu.Lock()
	defer h.tableMu.Unlock()
	c, err := connect()
	if err != nil || !h.hasTable(c) { // a kernel without nf_tables has none
		return nil
	}
	c.DelTable(&nftables.Table{Name: h.table(), Family: tableFamily})
	if err := c.Flush(); err != nil {
		return fmt.Errorf("nftables table %s: %w", h.table(), err)
	}
	return nil
}

// writeTable replaces the host's table, in one transaction.
//
//	prerouting   drop what a box sends from an address that is not its own, and source-routed packets, before connection
//	             tracking sees them
//	input        a box reaches nothing on the host; it may ask for the host's link address
//	forward      no box reaches another, nor a blocked network that root has not named; from outside only answers come in;
//	             if forget is set, connections of boxes are forgotten soon after their end
//	output       nothing on the host opens a connection to a box
//	postrouting  boxes have the host's address outside
func (h *Host) writeTable(c *nftables.Conn, name string, forget bool) error {
	t := c.AddTable(&nftables.Table{Name: name, Family: tableFamily})
	c.DelTable(t)
	t = c.AddTable(&nftables.Table{Name: name, Family: tableFamily})
	w := &writer{c: c, table: t}
	from, to, other := named(expr.MetaKeyIIFNAME, h.tag), named(expr.MetaKeyOIFNAME, h.tag), named(expr.MetaKeyOIFNAME, rule.LinkPrefix)

	w.chain("prerouting", nftables.ChainHookPrerouting, nftables.ChainPriorityRaw, nftables.ChainPolicyAccept)
	w.rule(from, []expr.Any{&expr.Fib{Register: 1, ResultOIF: true, FlagSADDR: true, FlagIIF: true}, equal(make([]byte, 4))}, drop())
	for _, route := range sourceRoutes() {
		w.rule(from, route, drop())
	}

	w.chain("input", nftables.ChainHookInput, earlyPriority(), nftables.ChainPolicyAccept)
	w.neighbours(from)
	w.refuse(from)

	w.chain("forward", nftables.ChainHookForward, earlyPriority(), nftables.ChainPolicyAccept)
	if forget {
		w.forgetEnded(from)
	}
	w.refuse(from, other)
	for _, r := range h.cfg.Named {
		w.rule(from, destination(r.To), accept())
	}
	for _, a := range h.resolvers(true) {
		w.rule(from, destination(netip.PrefixFrom(a, a.BitLen())), accept())
	}
	for _, set := range w.blocked() {
		w.refuse(from, set)
	}
	w.rule(to, established(), accept())
	w.rule(to, drop())

	w.chain("output", nftables.ChainHookOutput, earlyPriority(), nftables.ChainPolicyAccept)
	w.neighbours(to)
	w.rule(to, established(), accept())
	w.refuse(to)

	w.nat("postrouting")
	for _, block := range []netip.Prefix{h.cfg.Block4, h.cfg.Block6} {
		if block.IsValid() {
			w.rule(source(block), notNamed(expr.MetaKeyOIFNAME, h.tag), []expr.Any{&expr.Masq{}})
		}
	}
	if w.err != nil {
		return w.err
	}
	if err := c.Flush(); err != nil {
		return lacking("nf_tables with nat, masq, fib and reject", err)
	}
	return nil
}

// earlyPriority comes before the tables of other programs, so that our own table makes the refusals.
func earlyPriority() *nftables.ChainPriority { return nftables.ChainPriorityRef(-10) }

// ordered are the rules of a box: first those for networks that are blocked otherwise.
type ordered struct {
	first, others []rule.Rule
	near          []netip.Prefix // refused between them: networks near the host, which a rule for all addresses does not include
	gateways      []netip.Addr   // whatever is allowed goes to one of them first
}

func inOrder(rules []rule.Rule, near []netip.Prefix, gateways []netip.Addr) ordered {
	o := ordered{near: near, gateways: gateways}
	for _, r := range rules {
		if r.Named() || slices.ContainsFunc(near, func(p netip.Prefix) bool { return rule.Within(r.To, p) }) {
			o.first = append(o.first, r)
		} else {
			o.others = append(o.others, r)
		}
	}
	return o
}

// boxTable is the name of the table in a box's network.
const boxTable = "boxd"

// writeBoxTable replaces the table in a box's network, in one transaction, so that at no moment
// packets pass without it. again says that there may be one already, whose counters of refusals
// are carried over.
func (h *Host) writeBoxTable(space int, rules ordered, resolvers []netip.Addr, as dnsMode, again bool) error {
	c, err := connect(nftables.WithNetNSFd(space))
	if err != nil {
		return lacking("nf_tables", err)
	}
	var before counts
	if again {
		if before, _, err = refused(c, &nftables.Table{Name: boxTable, Family: tableFamily}); err != nil {
			return err
		}
	}
	t := c.AddTable(&nftables.Table{Name: boxTable, Family: tableFamily})
	if again { // deleting one takes the kernel a grace period of many milliseconds
		c.DelTable(t)
		t = c.AddTable(&nftables.Table{Name: boxTable, Family: tableFamily})
	}
	w := &writer{c: c, table: t}
	if as.caps.Connections > 0 || as.rules != 0 {
		w.forgetLoopback(as)
	}
	w.refusals(before, as.caps.Connections)
	w.chain("output", nftables.ChainHookOutput, nftables.ChainPriorityFilter, nftables.ChainPolicyDrop)
	w.acceptRedirected(as, as.caps.Connections)
	w.rule(loopbackOnly(expr.MetaKeyOIFNAME), accept())
	w.neighbours()
	w.requireGateway(rules.gateways)
	w.limit(as.caps.Connections)
	w.continuePinned(as)
	if as.rules != 0 {
		resolvers = nil
	}
	for _, a := range resolvers {
		for _, p := range []uint8{unix.IPPROTO_UDP, unix.IPPROTO_TCP} {
			w.rule(destination(netip.PrefixFrom(a, a.BitLen())), transport(p), ports(rule.Ports{First: 53, Last: 53}), accept())
		}
	}
	for _, r := range rules.first {
		w.allow(r)
	}
	for _, set := range w.blocked() {
		w.refuse(set)
	}
	for _, p := range rules.near {
		w.refuse(destination(p))
	}
	for _, r := range rules.others {
		w.allow(r)
	}
	w.refuseUnchecked(as)
	w.pins(as)
	w.refuse()
	w.redirect(as, rules)
	if w.err != nil {
		return w.err
	}
	if err := c.Flush(); err != nil {
		return lacking("nf_tables in the box's network, with ct, connlimit, dynset and redir", err)
	}
	return nil
}
