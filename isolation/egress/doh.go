// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"slices"
	"strings"
)

// resolvers returns the names of DNS servers over HTTPS and TLS that programs have built in. No
// wildcard covers them: a program that can reach one can bypass the box's resolver. Addresses
// that it learns there are not allowed by anything, so a name missing from this list lets
// programs learn addresses, not reach them.
func resolvers() []string {
	return []string{
		"dns.google", "dns64.dns.google", "dns.google.com", "cloudflare-dns.com", "one.one.one.one", "quad9.net",
		"opendns.com", "umbrella.com", "dns.nextdns.io", "anycast.dns.nextdns.io", "firefox.dns.nextdns.io",
		"adguard-dns.com", "dns.adguard.com", "doh.cleanbrowsing.org", "controld.com", "dns.mullvad.net", "doh.mullvad.net",
		"dns.sb", "dns.alidns.com", "doh.pub", "dot.pub", "doh.360.cn", "dns.twnic.tw", "public.dns.iij.jp", "doh.libredns.gr",
		"dns.switch.ch", "doh.dns4all.eu", "dns0.eu", "joindns4.eu", "doh.xfinity.com", "doh.applied-privacy.net", "odvr.nic.cz",
		"dns.digitale-gesellschaft.ch", "use-application-dns.net", "doh.opendns.com", "doh.la.ahadns.net", "doh.ffmuc.net",
	}
}

// overHTTPS reports whether a name is that of a known resolver, or below it.
func overHTTPS(n Name) bool {
	return slices.ContainsFunc(resolvers(), func(r string) bool {
		rest, ok := strings.CutSuffix(string(n), r)
		return ok && (rest == "" || rest[len(rest)-1] == '.')
	})
}

// discovery reports whether programs find encrypted resolvers by this name, which no wildcard
// covers either.
func discovery(n Name) bool {
	return n == "resolver.arpa" || strings.HasSuffix(string(n), ".resolver.arpa") || strings.HasPrefix(string(n), "_dns.")
}
