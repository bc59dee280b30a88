// SPDX-License-Identifier: Apache-2.0

package network

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

// ownTables is the prefix of the names of boxd's tables.
const ownTables = "boxd-"

// blockingChain is a chain of another firewall that refuses what boxes send, or the answers.
type blockingChain struct {
	Table, Chain string // the table with its family; the base chain
	At           string // the chain that refuses, by a rule or by its policy
	Answers      bool   // it accepts what boxes send, but not the answers
	Hint         string // commands that allow boxes, for firewalls that are known here; "": others
}

// String returns a sentence for people, without its full stop.
func (w *blockingChain) String() string {
	what := "packets from boxes"
	if w.Answers {
		what = "replies to boxes"
	}
	s := fmt.Sprintf("chain %s of table %s drops %s", w.Chain, w.Table, what)
	if w.At != w.Chain {
		s += ", in chain " + w.At
	}
	return s
}

// findBlocking finds chains of other firewalls (firewalld, ufw, Docker) that refuse what boxes send. It
// changes nothing. It evaluates all chains of the forward hook for a new TCP connection from a link whose
// name begins with tag, and for its answers. Conditions on anything else of a packet (addresses, ports,
// other links) are taken not to hold. IPv6 counts if boxes have it.
func findBlocking(c *nftables.Conn, tag string, ipv6 bool) (blocking []blockingChain, err error) {
	all, err := c.ListChains()
	if err != nil {
		return nil, fmt.Errorf("chains: %w", err)
	}
	for _, base := range all {
		if !inTheWay(base, ipv6) {
			continue
		}
		t := &firewallTable{chains: map[string]*nftables.Chain{}, rules: func(ch *nftables.Chain) ([]*nftables.Rule, error) { return c.GetRules(ch.Table, ch) }}
		for _, ch := range all {
			if ch.Table.Name == base.Table.Name && ch.Table.Family == base.Table.Family {
				t.chains[ch.Name] = ch
			}
		}
		w, err := t.blockingChain(base.Name, tag, base.Policy != nil && *base.Policy == nftables.ChainPolicyDrop)
		if err != nil {
			return nil, fmt.Errorf("chain %s of table %s: %w", base.Name, base.Table.Name, err)
		}
		if w != nil {
			w.Table, w.Hint = family(base.Table.Family)+" "+base.Table.Name, t.hint(base, tag)
			blocking = append(blocking, *w)
		}
	}
	return blocking, nil
}

// blockingChain returns how a base chain blocks boxes, nil if it does not. shut says that its policy is to
// drop.
func (t *firewallTable) blockingChain(chain, tag string, shut bool) (*blockingChain, error) {
	for _, p := range []packet{{from: tag}, {to: tag}} {
		result, at, err := t.walk(chain, p, 0)
		if err != nil {
			return nil, err
		}
		if result == continues && shut {
			result, at = drops, chain
		}
		if result == drops {
			return &blockingChain{Chain: chain, At: at, Answers: p.to != ""}, nil
		}
	}
	return nil, nil
}

// firewallHints returns the hints for all blocking chains.
func firewallHints(blocking []blockingChain, tag string) string {
	var hints []string
	for _, w := range blocking {
		hint := cmp.Or(w.Hint, "allow packets from and to interfaces "+tag+"* there")
		if !slices.Contains(hints, hint) {
			hints = append(hints, hint)
		}
	}
	return strings.Join(hints, "\n")
}

// inTheWay reports whether a chain sees forwarded packets and is not boxd's own.
func inTheWay(ch *nftables.Chain, ipv6 bool) bool {
	if ch.Hooknum == nil || *ch.Hooknum != *nftables.ChainHookForward || strings.HasPrefix(ch.Table.Name, ownTables) {
		return false
	}
	f := ch.Table.Family
	return f == nftables.TableFamilyINet || f == nftables.TableFamilyIPv4 || f == nftables.TableFamilyIPv6 && ipv6
}

func family(f nftables.TableFamily) string {
	return map[nftables.TableFamily]string{nftables.TableFamilyINet: "inet", nftables.TableFamilyIPv4: "ip", nftables.TableFamilyIPv6: "ip6"}[f]
}

// packet is a packet as far as it is known: the prefix of one link's name, and nothing of the
// other's. A packet to a box is an answer.
type packet struct{ from, to string }

// What happens to a packet in a chain.
type outcome int

const (
	continues outcome = iota // it continues after the chain
	accepts                  // accepted, as far as this table is concerned
	drops                    // dropped or rejected
	maxDepth  = 32           // the kernel allows 16
)

type firewallTable struct {
	chains map[string]*nftables.Chain
	rules  func(*nftables.Chain) ([]*nftables.Rule, error)
}

// walk follows a packet through a chain, and returns which chain has decided.
func (t *firewallTable) walk(name string, p packet, depth int) (outcome, string, error) {
	ch := t.chains[name]
	if ch == nil || depth > maxDepth {
		return continues, "", nil
	}
	rules, err := t.rules(ch)
	if err != nil {
		return continues, "", err
	}
	for _, r := range rules {
		v := verdict(r.Exprs, p)
		switch {
		case v == nil:
		case v.Kind == expr.VerdictAccept:
			return accepts, name, nil
		case v.Kind == expr.VerdictDrop:
			return drops, name, nil
		case v.Kind == expr.VerdictReturn:
			return continues, "", nil
		case v.Kind == expr.VerdictJump || v.Kind == expr.VerdictGoto:
			result, at, err := t.walk(v.Chain, p, depth+1)
			if err != nil || result != continues || v.Kind == expr.VerdictGoto {
				return result, at, err
			}
		}
	}
	return continues, "", nil
}

// verdict returns a rule's verdict on a packet, nil if there is none or if it depends on
// something unknown. A reject counts as a drop.
func verdict(parts []expr.Any, p packet) *expr.Verdict {
	var key expr.MetaKey
	named, state := false, false
	for _, part := range parts {
		switch e := part.(type) {
		case *expr.Counter, *expr.Log:
		case *expr.Meta:
			key, named = e.Key, true
		case *expr.Cmp:
			if state { // which state it is about depends on the verdict
				continue
			}
			if !named || !p.has(key, e) {
				return nil
			}
		case *expr.Ct:
			state = e.Key == expr.CtKeySTATE && p.to != ""
			if !state {
				return nil
			}
		case *expr.Bitwise, *expr.Lookup:
			if !state {
				return nil
			}
		case *expr.Match: // an xtables match
			if e.Name == "conntrack" || e.Name == "state" {
				state = p.to != ""
			}
			if e.Name != "comment" && !state {
				return nil
			}
		case *expr.Target:
			if e.Name == "REJECT" && !state {
				return &expr.Verdict{Kind: expr.VerdictDrop}
			}
		case *expr.Reject:
			if state {
				return nil
			}
			return &expr.Verdict{Kind: expr.VerdictDrop}
		case *expr.Verdict:
			if state && e.Kind == expr.VerdictDrop { // it drops invalid packets, and an answer is valid
				return nil
			}
			return e
		default:
			return nil
		}
	}
	return nil
}

// has reports whether a comparison holds for every packet from, or to, the boxes' links.
func (p packet) has(key expr.MetaKey, e *expr.Cmp) bool {
	link := map[expr.MetaKey]string{expr.MetaKeyIIFNAME: p.from, expr.MetaKeyOIFNAME: p.to}[key]
	if link == "" {
		return false
	}
	name := string(e.Data)
	if e.Op == expr.CmpOpEq {
		return strings.HasPrefix(link, name)
	}
	whole := strings.TrimRight(name, "\x00")
	return e.Op == expr.CmpOpNeq && !strings.HasPrefix(link, whole) && !strings.HasPrefix(whole, link)
}

// hint returns the hint for the firewall that owns the table. If several share it, the one whose
// settings persist comes first.
func (t *firewallTable) hint(base *nftables.Chain, tag string) string {
	ip := "iptables"
	if base.Table.Family == nftables.TableFamilyIPv6 {
		ip = "ip6tables"
	}
	switch {
	case base.Table.Name == "firewalld":
		return firewalld(tag)
	case t.chains["ufw-before-forward"] != nil || t.chains["ufw6-before-forward"] != nil:
		return "ufw route allow in on " + tag + "+"
	case t.chains["DOCKER-USER"] != nil:
		return letThrough(ip, "DOCKER-USER", tag)
	}
	return ""
}

// letThrough returns commands of an xtables program.
func letThrough(program, chain, tag string) string {
	return fmt.Sprintf("%[1]s -I %[2]s -i %[3]s+ -j ACCEPT && %[1]s -I %[2]s -o %[3]s+ -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT # again after each boot", program, chain, tag)
}

// firewalld returns commands for a zone of the boxes that allows no service of the host, and a
// policy that lets it out.
func firewalld(tag string) string {
	const permanent = "firewall-cmd --permanent "
	return strings.Join([]string{
		permanent + "--new-zone=boxd",
		permanent + "--zone=boxd --add-interface=" + tag + "+",
		permanent + "--new-policy=boxd-out",
		permanent + "--policy=boxd-out --add-ingress-zone=boxd",
		permanent + "--policy=boxd-out --add-egress-zone=ANY",
		permanent + "--policy=boxd-out --set-target=ACCEPT",
		"firewall-cmd --reload",
	}, " && ")
}
