// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"cmp"
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
	// Name is a host name; with "*." in front it stands for all names below it, at any depth, but
	// not for the name itself; "*" is every name. The names of known DNS servers over HTTPS are
	// allowed only by a rule for exactly that name.
	Name string `json:"name"`
	// Protocol is "tcp", "udp" or "any" (both); "" is tcp.
	Protocol string `json:"protocol,omitempty"`
	// Ports are numbers and ranges such as "443" or "8000-8003", 16 ports at most; if empty, 80
	// and 443.
	Ports []string `json:"ports,omitempty"`
}

// Protocols of a rule.
const (
	TCP  = "tcp"
	UDP  = "udp"
	Both = "any"
)

// maxPorts is for one rule: each address of an answer is allowed port by port.
const maxPorts = 16

// Ports are those from First to Last, both included.
type Ports struct{ First, Last uint16 }

// String returns the form in which a rule is written.
func (p Ports) String() string {
	if p.First == p.Last {
		return strconv.Itoa(int(p.First))
	}
	return fmt.Sprintf("%d-%d", p.First, p.Last)
}

// Rule is a valid Spec.
type Rule struct {
	Name     Name // "" is every name
	Below    bool // names below it, not the name itself
	Protocol string
	Ports    []Ports
}

// Spec returns the rule as it could have been written.
func (r *Rule) Spec() Spec {
	s := Spec{Name: r.Pattern(), Protocol: r.Protocol}
	for _, p := range r.Ports {
		s.Ports = append(s.Ports, p.String())
	}
	return s
}

// Pattern returns the rule's name as it is written.
func (r *Rule) Pattern() string {
	switch {
	case r.Name == "":
		return Any
	case r.Below:
		return "*." + string(r.Name)
	}
	return string(r.Name)
}

// covers reports whether the rule applies to this name.
func (r *Rule) covers(n Name) bool {
	if !r.Below {
		return n == r.Name
	}
	if overHTTPS(n) || discovery(n) {
		return false
	}
	return r.Name == "" || len(n) > len(r.Name)+1 && strings.HasSuffix(string(n), "."+string(r.Name))
}

// Opening is a port that a rule lets a box connect to.
type Opening struct {
	Protocol string // TCP or UDP
	Port     uint16
}

// String returns the form that the keeper parses.
func (o Opening) String() string { return o.Protocol + " " + strconv.Itoa(int(o.Port)) }

// Openings returns those of several rules, each once.
func Openings(rules []Rule) []Opening {
	seen := map[Opening]bool{}
	var out []Opening
	for _, r := range rules {
		for _, protocol := range []string{TCP, UDP} {
			if r.Protocol != protocol && r.Protocol != Both {
				continue
			}
			for _, p := range r.Ports {
				for port := int(p.First); port <= int(p.Last); port++ {
					o := Opening{protocol, uint16(port)}
					if !seen[o] {
						seen[o] = true
						out = append(out, o)
					}
				}
			}
		}
	}
	return out
}

// Rules are all rules by name of a box. An empty list and a nil *Rules allow nothing.
type Rules struct {
	list  []Rule
	reach []netip.Prefix
}

// Reaching returns the same rules for a box that may connect to these networks whatever name
// their addresses come from: names may resolve to them although they are not public.
func (r *Rules) Reaching(networks []netip.Prefix) *Rules {
	out := &Rules{reach: slices.Clone(networks)}
	if r != nil {
		out.list = r.list
	}
	return out
}

// Permits reports whether an answer may contain the address.
func (r *Rules) Permits(a netip.Addr) bool {
	return Public(a) || !a.Is4In6() && a.Zone() == "" && slices.ContainsFunc(r.reach, func(p netip.Prefix) bool { return p.Contains(a) })
}

// CompileRules compiles rules. Errors name the rule's place in field and the key in it, as
// field[2].name.
func CompileRules(field string, specs []Spec) (*Rules, error) {
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
		if r.list[i].covers(n) {
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
	r.Protocol = cmp.Or(s.Protocol, TCP)
	if !slices.Contains([]string{TCP, UDP, Both}, r.Protocol) {
		return r, fault.Field(field+".protocol", s.Protocol, "tcp, udp, any")
	}
	list := s.Ports
	if len(list) == 0 {
		list = []string{"80", "443"}
	}
	count := 0
	for _, text := range list {
		p, ok := parsePorts(text)
		if !ok {
			return r, fault.Field(field+".ports", text, "a port from 1 to 65535, or a range such as 8000-8003")
		}
		if p.has(53) || p.has(853) {
			return r, fault.Field(field+".ports", text, "ports other than 53 and 853").WithHint("leave port 53 out: boxd resolves names for this box")
		}
		if count += int(p.Last) - int(p.First) + 1; count > maxPorts {
			return r, fault.Field(field+".ports", strings.Join(list, ", "), fmt.Sprintf("at most %d ports", maxPorts)).WithHint("use a CIDR rule, which may have any number of ports")
		}
		r.Ports = append(r.Ports, p)
	}
	return r, nil
}

func (p Ports) has(port uint16) bool { return p.First <= port && port <= p.Last }

func pattern(field, text string) (n Name, below bool, err error) {
	if text == Any {
		return "", true, nil
	}
	rest, below := strings.CutPrefix(text, "*.")
	if strings.Contains(rest, "*") {
		return "", false, fault.Field(field, text, "a host name, or one behind \"*.\" for all names below it, or \"*\" for every name").
			WithHint("use * only as the first label, for example \"*.example.com\"")
	}
	n, err = ParseName(field, rest)
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

// port parses a port number: no sign, no leading zero.
func port(text string) (uint16, bool) {
	n, err := strconv.ParseUint(text, 10, 16)
	return uint16(n), err == nil && n > 0 && strconv.FormatUint(n, 10) == text
}
