// SPDX-License-Identifier: Apache-2.0

// The veth pair that connects a box to the host: addresses, routes, sysctls, and its bandwidth.

package network

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// boxEnd is the name of the link in the box.
const boxEnd = "eth0"

// Veth describes one pair.
type Veth struct {
	Name      string // name of the host's end
	MTU       int
	Host, Box []netip.Addr
	Bandwidth uint64 // in each direction, in bytes per second; 0: no limit
}

// Lack is a feature that the kernel lacks, with the error that shows it.
type Lack struct {
	What string
	Err  error
}

func (l *Lack) Error() string { return l.What + ": " + l.Err.Error() }

// Unwrap returns Err.
func (l *Lack) Unwrap() error { return l.Err }

// queue is how many packets may wait at an end without a bandwidth limit.
const queue = 1000

// make makes both ends, with addresses and routes; space is the box's network namespace. The
// host's end routes only the box's address, and nothing passes either end before its sysctls are
// set. If it fails, Remove removes what it has made.
func (e *Veth) make(space *os.File) error {
	outer, inner, err := handles(space)
	if err != nil {
		return err
	}
	defer outer.Close()
	defer inner.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.TxQLen = e.Name, e.MTU, queue
	veth := &netlink.Veth{LinkAttrs: attrs, PeerName: boxEnd, PeerMTU: uint32(e.MTU), PeerNamespace: netlink.NsFd(space.Fd())}
	if err := outer.LinkAdd(veth); err != nil {
		return &Lack{"links in pairs (veth)", err}
	}
	peer, err := inner.LinkByName(boxEnd)
	if err != nil {
		return fmt.Errorf("the box's end: %w", err)
	}
	if err := configureVeth(e.Name, slices.ContainsFunc(e.Host, netip.Addr.Is6)); err != nil {
		return err
	}
	if err := InNamespace(space, reconcileBox); err != nil {
		return fmt.Errorf("the box's end: %w", err)
	}
	if err := errors.Join(addresses(outer, veth, e.Host), addresses(inner, peer, e.Box)); err != nil {
		return err
	}
	if e.Bandwidth > 0 {
		if err := errors.Join(limitRate(outer, veth, e.Bandwidth), limitRate(inner, peer, e.Bandwidth)); err != nil {
			return err
		}
	}
	for _, gateway := range e.Host {
		all := &net.IPNet{IP: make(net.IP, len(gateway.AsSlice())), Mask: make(net.IPMask, len(gateway.AsSlice()))}
		if err := inner.RouteAdd(&netlink.Route{LinkIndex: peer.Attrs().Index, Dst: all, Gw: gateway.AsSlice()}); err != nil {
			return fmt.Errorf("the box's route: %w", err)
		}
	}
	return nil
}

// handles opens netlink sockets in the host's network namespace, and in the box's.
func handles(space *os.File) (outer, inner *netlink.Handle, err error) {
	if outer, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
		return nil, nil, &Lack{"netlink", err}
	}
	if inner, err = netlink.NewHandleAt(netns.NsHandle(space.Fd()), unix.NETLINK_ROUTE); err != nil {
		outer.Close()
		return nil, nil, fmt.Errorf("the box's network: %w", err)
	}
	return outer, inner, nil
}

// addresses gives an end its addresses and sets it up.
func addresses(at *netlink.Handle, end netlink.Link, list []netip.Addr) error {
	for _, a := range list {
		bits := a.BitLen()
		address := &netlink.Addr{IPNet: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(bits-1, bits)}}
		if a.Is6() {
			address.Flags = unix.IFA_F_NODAD
		}
		if err := at.AddrAdd(end, address); err != nil {
			return fmt.Errorf("address %v: %w", a, err)
		}
	}
	if err := at.LinkSetUp(end); err != nil {
		return fmt.Errorf("set up: %w", err)
	}
	return nil
}

// removeVeth removes a pair by the name of the host's end, if it exists.
func removeVeth(name string) error {
	end, err := netlink.LinkByName(name)
	if err == nil {
		err = netlink.LinkDel(end)
	}
	var notFound netlink.LinkNotFoundError
	if errors.As(err, &notFound) || errors.Is(err, unix.ENODEV) { // the kernel was faster: it removes the pair with the box
		err = nil
	}
	if err != nil {
		return fmt.Errorf("link %s: %w", name, err)
	}
	return nil
}
