// SPDX-License-Identifier: Apache-2.0

// Package network gives boxes a way to other hosts: a veth pair, addresses for its ends, rules for what the kernel allows. It
// runs in boxnet, a child of the keeper.
//
// What a box may reach is decided in its own network namespace, by a table that nothing in the
// box has the capability to change and that ends with it. The host has one small table for all
// boxes, as a second line of defence: it checks the sender of each link, keeps boxes from the
// host and from each other, and translates addresses.
package network

import (
	"errors"
	"fmt"
	"log"
	"math/rand/v2"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation/network/rule"
)

// Host is the part of this host's network that belongs to one keeper.
type Host struct {
	cfg    rule.Config
	tag    string // prefix of the names of its links
	log    *log.Logger
	hostNS unix.Stat_t // identity of the host's network namespace. /proc/self has that of the main thread, which may be inside a box for a while
	stop   chan struct{}
	done   sync.WaitGroup

	watching sync.Once
	tableMu  sync.Mutex   // held while the host's table is written
	written  bool         // this process has written it
	known    []netip.Addr // name servers that the table lets boxes reach

	mu      sync.Mutex // guards the fields below
	links   map[string]*Link
	adopted bool            // Adopt has run, so used includes the pairs of living boxes
	used    map[uint32]bool // numbers of the pairs of addresses in use
	// next is the pair to try first, so that one is reused as late as possible. It starts at a random one, since that
	// of the last keeper is unknown.
	next uint32
}

// keyChars is how many characters of the digest of a box's key are in the name of its link, after rule.LinkTag: a name has at most 15.
const keyChars = 9

// New returns the part of one keeper. The network of the calling thread must be the host's.
func New(cfg rule.Config, l *log.Logger) *Host {
	h := &Host{cfg: cfg, tag: rule.LinkTag(cfg.Run), log: l, stop: make(chan struct{}), links: map[string]*Link{}, used: map[uint32]bool{}, next: rand.Uint32()}
	if err := unix.Stat("/proc/thread-self/ns/net", &h.hostNS); err != nil {
		l.Printf("boxes cannot have a network: %v", err)
	}
	return h
}

// linkName returns the name of the host's end of a box's link.
func (h *Host) linkName(key string) string { return h.tag + rule.Digest(key)[rule.DigestLen-keyChars:] }

// table returns the name of the host's table.
func (h *Host) table() string { return "boxd-" + strings.TrimPrefix(h.tag, rule.LinkPrefix) }

// failure says why a box cannot have a network.
type failure struct {
	Reason string
	// Errno is EUSERS if no address is free, EADDRINUSE if the block is in use, ENETDOWN if the host does not forward,
	// and EOPNOTSUPP if the kernel lacks something.
	Errno unix.Errno
}

func (f *failure) Error() string { return f.Reason }

// Unwrap returns the Errno.
func (f *failure) Unwrap() error { return f.Errno }

// lacking names what the kernel lacks, if that is what err means.
func lacking(what string, err error) error {
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EAFNOSUPPORT) {
		return &failure{Reason: "this kernel lacks " + what + ": " + err.Error(), Errno: unix.EOPNOTSUPP}
	}
	return fmt.Errorf("%s: %w", what, err)
}

// take reserves a pair of addresses.
func (h *Host) take() (uint32, error) {
	pairs := uint32(1) << (min(32-h.cfg.Block4.Bits(), 21) - 1)
	if b := h.cfg.Block6; b.IsValid() && 128-b.Bits() < 21 {
		pairs = min(pairs, 1<<(128-b.Bits()-1))
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for range pairs {
		n := h.next % pairs
		h.next = n + 1
		if !h.used[n] {
			h.used[n] = true
			return n, nil
		}
	}
	return 0, &failure{Reason: fmt.Sprintf("network.ipv4 is %v, which has addresses for %d boxes, and all are in use", h.cfg.Block4, pairs), Errno: unix.EUSERS}
}

func (h *Host) release(n uint32) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.used, n)
}

// pairAddresses returns the addresses of the host's end and the box's.
func pairAddresses(block netip.Prefix, n uint32) (host, box netip.Addr) {
	bytes := block.Addr().AsSlice()
	carry := uint64(n) * 2
	for i := len(bytes) - 1; carry > 0 && i >= 0; i-- {
		carry += uint64(bytes[i])
		bytes[i] = byte(carry)
		carry >>= 8
	}
	host, _ = netip.AddrFromSlice(bytes)
	return host, host.Next()
}

// Close ends the keeper's use of the network. The table is removed unless links of running boxes may remain: it keeps those from
// the host and from each other. It reports whether nothing is left.
func (h *Host) Close() (clean bool) {
	close(h.stop)
	h.done.Wait()
	h.mu.Lock()
	idle := h.adopted && len(h.links) == 0
	h.mu.Unlock()
	if !idle {
		return false
	}
	if err := h.removeTable(); err != nil {
		h.log.Printf("cannot remove the table of the host: %v", err)
		return false
	}
	return true
}

// tableWatch is how often Host checks whether the host's table has been removed, as "nft flush
// ruleset" does.
const tableWatch = 3 * time.Second

// watch restores a removed table as long as there are links.
func (h *Host) watch() {
	ticker := time.NewTicker(tableWatch)
	defer ticker.Stop()
	for {
		select {
		case <-h.stop:
			return
		case <-ticker.C:
		}
		h.mu.Lock()
		idle := len(h.links) == 0
		h.mu.Unlock()
		if idle {
			continue
		}
		if err := h.ensure(); err != nil {
			h.log.Printf("cannot restore the nftables table of boxes: %v", err)
		}
	}
}

// resolvers returns the name servers for a box.
func (h *Host) resolvers(ipv6 bool) []netip.Addr {
	list := h.cfg.Resolvers
	for _, file := range []string{"/etc/resolv.conf", "/run/systemd/resolve/resolv.conf"} {
		if len(list) > 0 {
			break
		}
		data, err := os.ReadFile(file)
		if err == nil {
			list = nameservers(string(data))
		}
	}
	var usable []netip.Addr
	for _, a := range list {
		if a.Is4() || ipv6 {
			usable = append(usable, a)
		}
	}
	return usable
}

// nameservers parses resolv.conf(5). A server on the host itself is left out, since boxes cannot
// reach it.
func nameservers(text string) (list []netip.Addr) {
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) < 2 || f[0] != "nameserver" {
			continue
		}
		if a, err := rule.Resolver(f[1]); err == nil && len(list) < 3 {
			list = append(list, a)
		}
	}
	return list
}

// resolvConf returns the text of a box's file.
func resolvConf(list []netip.Addr) string {
	if len(list) == 0 {
		return "# This host has no name server for boxes: see network.resolvers in box.toml(5).\n"
	}
	var s strings.Builder
	for _, a := range list {
		s.WriteString("nameserver " + a.String() + "\n")
	}
	return s.String()
}
