// SPDX-License-Identifier: Apache-2.0

package names

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/boxd-dev/boxd/internal/fault"
)

// MaxRules is how many rules by name a box may have.
const MaxRules = 1024

// Any is the pattern of every name.
const Any = "*"

// Spec is a rule as it is written. Errors about it name its keys.
type Spec struct {
	// Name is a host name; with "*." in front of it all names below it, at any depth, but not the name itself; "*" is
	// every name. The names of servers of DNS over HTTPS that are known are allowed by a rule for that very name alone.
	Name string
	// Ports are numbers and ranges such as "443" or "8000-8010"; none: every port but those of the DNS.
	Ports []string
	// Protocol is "tcp", "udp" or "", both.
	Protocol string
	// Within are networks. With any of them an answer's addresses count if they are in one of them, whatever it is;
	// with none if they are addresses of the public internet.
	Within []string
}

// Protocols of a rule.
const (
	TCP = "tcp"
	UDP = "udp"
)

// Ports are those from First to Last, both included.
type Ports struct{ First, Last uint16 }

// String is the form that a rule is written in.
func (p Ports) String() string {
	if p.First == p.Last {
		return strconv.Itoa(int(p.First))
	}
	return fmt.Sprintf("%d-%d", p.First, p.Last)
}

// Rule is a Spec that was found good.
type Rule struct {
	Name     Name // "" is every name
	Below    bool // names below it, not the name itself
	Ports    []Ports
	Protocol string
	Within   []netip.Prefix
}

// Pattern is the rule's name as it is written.
func (r *Rule) Pattern() string {
	switch {
	case r.Name == "":
		return Any
	case r.Below:
		return "*." + string(r.Name)
	}
	return string(r.Name)
}

// Covers says that the rule is for this name.
func (r *Rule) Covers(n Name) bool {
	if !r.Below {
		return n == r.Name
	}
	if overHTTPS(n) || discovery(n) {
		return false
	}
	return r.Name == "" || len(n) > len(r.Name)+1 && strings.HasSuffix(string(n), "."+string(r.Name))
}

// Permits says that an answer to a name of this rule may have the address.
func (r *Rule) Permits(a netip.Addr) bool {
	if len(r.Within) == 0 {
		return Public(a)
	}
	return !a.Is4In6() && slices.ContainsFunc(r.Within, func(p netip.Prefix) bool { return p.Contains(a) })
}

// Rules are all rules by name of a box. None of them, and a nil *Rules, allow nothing.
type Rules struct{ list []Rule }

// Compile reads rules. Errors name the rule's place in field and the key in it, as field[2].name.
func Compile(field string, specs []Spec) (*Rules, error) {
	if len(specs) > MaxRules {
		return nil, fault.Field(field, fmt.Sprintf("%d rules by name", len(specs)), fmt.Sprintf("at most %d", MaxRules))
	}
	out := &Rules{}
	for i := range specs {
		r, err := specs[i].compile(fmt.Sprintf("%s[%d]", field, i))
		if err != nil {
			return nil, err
		}
		out.list = append(out.list, r)
	}
	return out, nil
}

// Match returns the rules that cover a name.
func (r *Rules) Match(n Name) []Rule {
	if r == nil {
		return nil
	}
	var out []Rule
	for i := range r.list {
		if r.list[i].Covers(n) {
			out = append(out, r.list[i])
		}
	}
	return out
}

// All returns the rules in the order they were written.
func (r *Rules) All() []Rule {
	if r == nil {
		return nil
	}
	return slices.Clone(r.list)
}

func (s *Spec) compile(field string) (r Rule, err error) {
	if r.Name, r.Below, err = pattern(field+".name", s.Name); err != nil {
		return r, err
	}
	if !slices.Contains([]string{"", TCP, UDP}, s.Protocol) {
		return r, fault.Field(field+".protocol", s.Protocol, "tcp, udp, or none for both")
	}
	r.Protocol = s.Protocol
	for _, text := range s.Ports {
		p, ok := parsePorts(text)
		if !ok {
			return r, fault.Field(field+".ports", text, "a port from 1 to 65535, or a range such as 8000-8010")
		}
		r.Ports = append(r.Ports, p)
	}
	for _, text := range s.Within {
		p, err := netip.ParsePrefix(text)
		if err != nil || p != p.Masked() || p.Addr().Is4In6() {
			return r, fault.Field(field+".within", text, "a network such as 10.1.0.0/16 or fd00:1::/64, with no bit set behind its length")
		}
		r.Within = append(r.Within, p)
	}
	return r, nil
}

func pattern(field, text string) (n Name, below bool, err error) {
	if text == Any {
		return "", true, nil
	}
	rest, below := strings.CutPrefix(text, "*.")
	if strings.Contains(rest, "*") {
		return "", false, fault.Field(field, text, "a host name, or one behind \"*.\" for all names below it, or \"*\" for every name").
			WithHint("a * stands for whole labels, at the beginning alone")
	}
	n, err = Parse(field, rest)
	return n, below, err
}

func parsePorts(text string) (Ports, bool) {
	first, last, isRange := strings.Cut(text, "-")
	if !isRange {
		last = first
	}
	a, okA := port(first)
	b, okB := port(last)
	return Ports{a, b}, okA && okB && a <= b
}

// port reads a number as one writes it: no sign, no zero in front.
func port(text string) (uint16, bool) {
	n, err := strconv.ParseUint(text, 10, 16)
	return uint16(n), err == nil && n > 0 && strconv.FormatUint(n, 10) == text
}
