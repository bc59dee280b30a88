// SPDX-License-Identifier: Apache-2.0

package rule

import (
	"errors"
	"fmt"
	"hash/fnv"
	"net/netip"
	"strconv"
	"strings"
)

// Config is the keeper's network configuration, which comes from root.
type Config struct {
	Run       string       // the keeper's run directory, which distinguishes its links from another keeper's
	Block4    netip.Prefix // address block of the boxes; invalid: none
	Block6    netip.Prefix // invalid: boxes have no IPv6
	Resolvers []netip.Addr // empty: those of the host
	Shared    []string     // profiles whose boxes use the network of the host; empty: no box does
	Named     []Rule       // networks that are blocked otherwise and may occur in the rules of a box

	Caps      // for a box that has none of its own
	Most Caps // the most that a box may have of its own; 0: no limit
}

// LinkPrefix begins the names of all keepers' links.
const LinkPrefix = "bx"

// DigestLen is how long a Digest is.
const DigestLen = 13

// LinkTag begins the names of the links of the keeper with this run directory.
func LinkTag(run string) string { return LinkPrefix + Digest(run)[:4] }

// Digest makes letters and digits for the names of links from a text.
func Digest(text string) string {
	h := fnv.New64a()
	_, _ = h.Write([]byte(text))
	s := strconv.FormatUint(h.Sum64(), 36)
	return strings.Repeat("0", DigestLen-len(s)) + s
}

// Keys of the words of a keeper's configuration.
const (
	keyIPv4     = "ipv4"
	keyIPv6     = "ipv6"
	keyResolver = "resolver"
	keyNamed    = "named"
	keyShared   = "shared"

	keyConnections = "connections"
	keyBandwidth   = "bandwidth"
	prefixMost     = "most-" // followed by the key of a limit
)

// Bounds of limits. With less bandwidth than the least, a single packet would take seconds.
const (
	MaxConnections = 1 << 20
	LeastBandwidth = 16 << 10
	MaxBandwidth   = 1 << 40
)

// Words encodes the configuration, except Run, for the keeper's flags.
func (c *Config) Words() (words []string) {
	for _, b := range []struct {
		key   string
		block netip.Prefix
	}{{keyIPv4, c.Block4}, {keyIPv6, c.Block6}} {
		if b.block.IsValid() {
			words = append(words, b.key+"="+b.block.String())
		}
	}
	for _, r := range c.Resolvers {
		words = append(words, keyResolver+"="+r.String())
	}
	for _, r := range c.Named {
		words = append(words, keyNamed+"="+r.String())
	}
	for _, p := range c.Shared {
		words = append(words, keyShared+"="+p)
	}
	words = append(words, c.Caps.Words()...)
	for _, word := range c.Most.Words() {
		words = append(words, prefixMost+word)
	}
	return words
}

// number parses a number between minimum and maximum.
func number(text string, minimum, maximum uint64) (uint64, error) {
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil || n < minimum || n > maximum {
		return 0, &Refusal{Part: "number", Value: text, Allowed: fmt.Sprintf("%d to %d", minimum, maximum)}
	}
	return n, nil
}

// ParseConfig parses Words.
func ParseConfig(run string, words []string) (Config, error) {
	c := Config{Run: run}
	for _, word := range words {
		key, value, _ := strings.Cut(word, "=")
		var err error
		switch key {
		case keyIPv4:
			c.Block4, err = Block(value, true)
		case keyIPv6:
			c.Block6, err = Block(value, false)
		case keyResolver:
			var a netip.Addr
			a, err = Resolver(value)
			c.Resolvers = append(c.Resolvers, a)
		case keyShared:
			c.Shared = append(c.Shared, value)
		case keyNamed:
			var r Rule
			r, err = Parse(value)
			c.Named = append(c.Named, r)
		default:
			to, name := &c.Caps, key
			if of, limit := strings.CutPrefix(key, prefixMost); limit {
				to, name = &c.Most, of
			}
			var ok bool
			if ok, err = to.take(name, value); !ok {
				err = errors.New("unknown")
			}
		}
		if err != nil {
			return c, fmt.Errorf("network %q: %w", word, err)
		}
	}
	return c, nil
}

// Block parses a block of addresses for boxes: private ones, two for each box. "" is none.
func Block(text string, ipv4 bool) (netip.Prefix, error) {
	if text == "" {
		return netip.Prefix{}, nil
	}
	p, err := prefix(text)
	if err != nil {
		return p, err
	}
	allowed := "a private network of 4 to 2²⁰ addresses, such as 10.231.64.0/18"
	good := p.Bits() >= 12 && p.Bits() <= 30
	if !ipv4 {
		allowed, good = "a unique local network of 4 addresses or more, such as fd62:6f78:6400::/64", p.Bits() >= 48 && p.Bits() <= 126
	}
	if p.Addr().Is4() != ipv4 || !p.Addr().IsPrivate() || !good {
		return p, &Refusal{Part: "block", Value: text, Allowed: allowed}
	}
	return p, nil
}

// Resolver parses the address of a name server.
func Resolver(text string) (netip.Addr, error) {
	a, err := netip.ParseAddr(text)
	if err != nil || a.Is4In6() || a.Zone() != "" || !a.IsGlobalUnicast() {
		return netip.Addr{}, &Refusal{Part: "resolver", Value: text, Allowed: "the address of another host"}
	}
	return a, nil
}
