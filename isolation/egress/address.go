// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"net/netip"
	"slices"
)

// special returns the networks that are not part of the public internet, or whose addresses embed
// those of other networks.
func special() []netip.Prefix {
	texts := []string{
		"0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12",
		"192.0.0.0/24", "192.0.2.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24", "192.168.0.0/16",
		"192.175.48.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/3",
		"168.63.129.16/32", // Azure's platform talks to its virtual machines from there
		"2001::/23",        // Teredo, ORCHID and other protocols
		"2001:db8::/32", "2002::/16", "2620:4f:8000::/48", "3fff::/20",
	}
	out := make([]netip.Prefix, len(texts))
	for i, text := range texts {
		out[i] = netip.MustParsePrefix(text)
	}
	return out
}

// Public reports whether an address is one of the public internet: not a loopback, private,
// shared, link-local, multicast or documentation address, and not one that embeds an IPv4
// address.
func Public(a netip.Addr) bool {
	if !a.IsValid() || a.Zone() != "" || a.Is6() && !netip.MustParsePrefix("2000::/3").Contains(a) {
		return false
	}
	return !slices.ContainsFunc(special(), func(p netip.Prefix) bool { return p.Contains(a) })
}
