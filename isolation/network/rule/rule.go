// SPDX-License-Identifier: Apache-2.0

// Package rule says which addresses the programs of a box may connect to. It is plain data: boxd
// parses rules for its callers, and the keeper parses them again for itself.
package rule

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Egress is the network of a box whose programs connect to other hosts, as rules allow.
const Egress = "egress"

// Protocols of a Rule.
const (
	TCP = "tcp"
	UDP = "udp"
	Any = "any" // both
)

// Bounds of rules.
const (
	Max      = 64 // rules of one session
	MaxPorts = 16 // ports of one rule
)

// Rule lets programs connect to addresses.
type Rule struct {
	To       netip.Prefix
	Protocol string  // TCP, UDP or Any
	Ports    []Ports // empty: all
}

// Ports are those from First to Last, both included. Port 0 means none.
type Ports struct{ First, Last uint16 }

// Refusal says which part of a rule is not acceptable, and what would be.
type Refusal struct{ Part, Value, Allowed string }

func (r *Refusal) Error() string {
	return r.Part + " = " + strconv.Quote(r.Value) + ": must be " + r.Allowed
}

// New parses the parts of a rule as people write them. "" is TCP, no ports are all ports. The
// error is a *Refusal.
func New(cidr, protocol string, ports []string) (Rule, error) {
	r := Rule{Protocol: cmp.Or(protocol, TCP)}
	var err error
	if r.To, err = prefix(cidr); err != nil {
		return r, err
	}
	if slices.ContainsFunc(never(), func(p netip.Prefix) bool { return Within(r.To, p) }) {
		return r, &Refusal{"cidr", cidr, "addresses of other hosts, without loopback, multicast, broadcast and reserved ranges, and IPv4 in dotted form"}
	}
	if !slices.Contains([]string{TCP, UDP, Any}, r.Protocol) {
		return r, &Refusal{"protocol", protocol, "tcp, udp or any"}
	}
	if len(ports) > MaxPorts {
		return r, &Refusal{"ports", strconv.Itoa(len(ports)), "at most " + strconv.Itoa(MaxPorts)}
	}
	for _, text := range ports {
		p, ok := parsePorts(text)
		if !ok {
			return r, &Refusal{"ports", text, `a port from 1 to 65535, or a range such as "8000-8100"`}
		}
		r.Ports = append(r.Ports, p)
	}
	return r, nil
}

// prefix parses a network: an address of either family in its usual form, a slash, and the number
// of network bits; all other bits must be zero.
func prefix(text string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(text)
	if err != nil || p.Addr().Is4In6() || p != p.Masked() {
		return netip.Prefix{}, &Refusal{"cidr", text, `a network such as "203.0.113.0/24" or "2001:db8::/32", whose other bits are zero`}
	}
	return p, nil
}

func parsePorts(text string) (p Ports, ok bool) {
	first, last, ranged := strings.Cut(text, "-")
	if !ranged {
		last = first
	}
	for _, e := range []struct {
		text string
		to   *uint16
	}{{first, &p.First}, {last, &p.Last}} {
		n, err := strconv.ParseUint(e.text, 10, 16)
		if err != nil || strconv.FormatUint(n, 10) != e.text {
			return p, false
		}
		*e.to = uint16(n)
	}
	return p, p.First > 0 && p.First <= p.Last
}

// String returns the canonical form, which Parse parses.
func (r Rule) String() string {
	parts := []string{r.To.String(), r.Protocol}
	for _, p := range r.Ports {
		parts = append(parts, p.String())
	}
	return strings.Join(parts, " ")
}

// String returns the form in which ports are written in rules.
func (p Ports) String() string {
	first := strconv.FormatUint(uint64(p.First), 10)
	if p.First == p.Last {
		return first
	}
	return first + "-" + strconv.FormatUint(uint64(p.Last), 10)
}

// Compare orders rules.
func Compare(a, b Rule) int { return cmp.Compare(a.String(), b.String()) }

// Parse parses only what String returns; Read accepts other texts for the same rule, as people may write it.
func Parse(text string) (Rule, error) {
	parts := strings.Split(text, " ")
	if len(parts) < 2 || parts[1] == "" {
		return Rule{}, errors.New("not a rule")
	}
	r, err := New(parts[0], parts[1], parts[2:])
	if err == nil && r.String() != text {
		return Rule{}, fmt.Errorf("not in the usual form: %q", r)
	}
	return r, err
}

// Read parses a rule as people write it: like String, with the defaults of New for what is left
// out.
func Read(text string) (Rule, error) {
	parts := strings.Split(text, " ")
	protocol := ""
	if len(parts) > 1 {
		if protocol = parts[1]; protocol == "" {
			return Rule{}, &Refusal{"protocol", "", "tcp, udp or any, after one space"}
		}
	}
	return New(parts[0], protocol, parts[min(len(parts), 2):])
}

// ParseAll parses several rules, at most Max.
func ParseAll(texts []string) ([]Rule, error) {
	if len(texts) > Max {
		return nil, fmt.Errorf("%d rules: at most %d", len(texts), Max)
	}
	rules := make([]Rule, len(texts))
	for i, text := range texts {
		var err error
		if rules[i], err = Parse(text); err != nil {
			return nil, err
		}
	}
	return rules, nil
}

// Within reports whether o allows everything that r allows.
func (r Rule) Within(o Rule) bool {
	if !Within(r.To, o.To) || o.Protocol != Any && r.Protocol != o.Protocol {
		return false
	}
	return len(o.Ports) == 0 || len(r.Ports) > 0 && !slices.ContainsFunc(r.Ports, func(p Ports) bool {
		return !slices.ContainsFunc(o.Ports, func(q Ports) bool { return q.First <= p.First && p.Last <= q.Last })
	})
}

// Named reports whether the rule is about addresses that are blocked unless a rule names them, as
// this one does.
func (r Rule) Named() bool {
	return slices.ContainsFunc(Blocked(), func(p netip.Prefix) bool { return Within(r.To, p) })
}

// Within reports whether the prefix p is o or a part of it.
func Within(p, o netip.Prefix) bool {
	return p.Addr().Is4() == o.Addr().Is4() && p.Bits() >= o.Bits() && o.Contains(p.Addr())
}

// never returns the networks that no rule can allow: no other host has an address there, or an
// address there stands for one of another network.
func never() []netip.Prefix {
	return prefixes(
		"0.0.0.0/8", "127.0.0.0/8", "224.0.0.0/4", "240.0.0.0/4",
		"::/64", "fe80::/10", "ff00::/8")
}

// Blocked returns the networks that are allowed only by a rule for them or for a part of them:
// addresses of this host or its neighbours (private, link-local with the metadata services of
// clouds, carrier-grade NAT, unique local), addresses that are not those of one host, and those
// that embed an IPv4 address. No two of them overlap.
func Blocked() []netip.Prefix {
	return slices.Concat(never(), prefixes(
		"10.0.0.0/8", "100.64.0.0/10", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24",
		"192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", // private and documentation, RFC 6890
		"168.63.129.16/32",                                         // Azure's platform talks to its virtual machines from there, with their secrets
		"64:ff9b::/96", "64:ff9b:1::/48", "2001::/32", "2002::/16", // NAT64, Teredo, 6to4
		"100::/64", "2001:2::/48", "2001:10::/28", "2001:20::/28", "2001:db8::/32", "3fff::/20", "5f00::/16", "fc00::/7", "fec0::/10"))
}

func prefixes(texts ...string) []netip.Prefix {
	list := make([]netip.Prefix, len(texts))
	for i, text := range texts {
		list[i] = netip.MustParsePrefix(text)
	}
	return list
}
