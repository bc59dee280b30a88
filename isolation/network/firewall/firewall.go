// SPDX-License-Identifier: Apache-2.0

// Package firewall looks at chains of others (firewalld, ufw, Docker, iptables-legacy) on the way of what boxes send, and at nothing of
// theirs but that. It changes none.
package firewall

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

// Own is how the names of boxd's tables begin.
const Own = "boxd-"

// BlockingChain is a chain of somebody else's that refuses what boxes send, or the answers.
type BlockingChain struct {
	Table, Chain string // the table with its family; the chain that packets come to
	At           string // the chain that refuses, by a rule or as what it does with the rest
	Answers      bool   // what boxes send is let through, and the answers are not
	Hint         string // commands that let boxes through, for firewalls that are known here; "": others
}

// String is a sentence for people, without its full stop.
func (w *BlockingChain) String() string {
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

// Find looks at all chains of the forward hook, as a new TCP connection would from a link whose name begins with tag,
// and its answers. What hangs on anything else of a packet (addresses, ports, other links) is taken for what does not
// happen. IPv6 counts where boxes have it.
func Find(c *nftables.Conn, tag string, six bool) (walls []BlockingChain, err error) {
	all, err := c.ListChains()
	if err != nil {
		return nil, fmt.Errorf("chains: %w", err)
	}
	for _, base := range all {
		if !inTheWay(base, six) {
			continue
		}
		t := &table{chains: map[string]*nftables.Chain{}, rules: func(ch *nftables.Chain) ([]*nftables.Rule, error) { return c.GetRules(ch.Table, ch) }}
		for _, ch := range all {
			if ch.Table.Name == base.Table.Name && ch.Table.Family == base.Table.Family {
				t.chains[ch.Name] = ch
			}
		}
		w, err := t.wall(base.Name, tag, base.Policy != nil && *base.Policy == nftables.ChainPolicyDrop)
		if err != nil {
			return nil, fmt.Errorf("chain %s of table %s: %w", base.Name, base.Table.Name, err)
		}
		if w != nil {
			w.Table, w.Hint = family(base.Table.Family)+" "+base.Table.Name, t.hint(base, tag)
			walls = append(walls, *w)
		}
	}
	return walls, nil
}

// wall is what a chain is to boxes, nil if it lets them through. shut says that it drops what no rule is about.
func (t *table) wall(chain, tag string, shut bool) (*BlockingChain, error) {
	for _, p := range []packet{{from: tag}, {to: tag}} {
		end, at, err := t.walk(chain, p, 0)
		if err != nil {
			return nil, err
		}
		if end == on && shut {
			end, at = refused, chain
		}
		if end == refused {
			return &BlockingChain{Chain: chain, At: at, Answers: p.to != ""}, nil
		}
	}
	return nil, nil
}

// Hints are those of all walls.
func Hints(walls []BlockingChain, tag string) string {
	var hints []string
	for _, w := range walls {
		hint := cmp.Or(w.Hint, "allow packets from and to interfaces "+tag+"* there")
		if !slices.Contains(hints, hint) {
			hints = append(hints, hint)
		}
	}
	return strings.Join(hints, "\n")
}

// inTheWay reports whether a chain is asked about what is forwarded, and somebody else's.
func inTheWay(ch *nftables.Chain, six bool) bool {
	if ch.Hooknum == nil || *ch.Hooknum != *nftables.ChainHookForward || strings.HasPrefix(ch.Table.Name, Own) {
		return false
	}
	f := ch.Table.Family
	return f == nftables.TableFamilyINet || f == nftables.TableFamilyIPv4 || f == nftables.TableFamilyIPv6 && six
}

func family(f nftables.TableFamily) string {
	return map[nftables.TableFamily]string{nftables.TableFamilyINet: "inet", nftables.TableFamilyIPv4: "ip", nftables.TableFamilyIPv6: "ip6"}[f]
}

// packet is one as far as it is known: the beginning of a link's name, and nothing of the other's. One to a box is an
// answer.
type packet struct{ from, to string }

// What becomes of a packet in a chain.
type outcome int

const (
	on       outcome = iota // it goes on behind the chain
	let                     // let through, as far as the table is asked
	refused                 // dropped or rejected
	maxDepth = 32           // the kernel takes 16
)

type table struct {
	chains map[string]*nftables.Chain
	rules  func(*nftables.Chain) ([]*nftables.Rule, error)
}

// walk follows a packet through a chain, and says which chain has decided.
func (t *table) walk(name string, p packet, depth int) (outcome, string, error) {
	ch := t.chains[name]
	if ch == nil || depth > maxDepth {
		return on, "", nil
	}
	rules, err := t.rules(ch)
	if err != nil {
		return on, "", err
	}
	for _, r := range rules {
		v := verdict(r.Exprs, p)
		switch {
		case v == nil:
		case v.Kind == expr.VerdictAccept:
			return let, name, nil
		case v.Kind == expr.VerdictDrop:
			return refused, name, nil
		case v.Kind == expr.VerdictReturn:
			return on, "", nil
		case v.Kind == expr.VerdictJump || v.Kind == expr.VerdictGoto:
			end, at, err := t.walk(v.Chain, p, depth+1)
			if err != nil || end != on || v.Kind == expr.VerdictGoto {
				return end, at, err
			}
		}
	}
	return on, "", nil
}

// verdict is what a rule says of a packet, nil if nothing, or if that hangs on what is not known. A rejection is a drop.
func verdict(parts []expr.Any, p packet) *expr.Verdict {
	var key expr.MetaKey
	named, state := false, false
	for _, part := range parts {
		switch e := part.(type) {
		case *expr.Counter, *expr.Log:
		case *expr.Meta:
			key, named = e.Key, true
		case *expr.Cmp:
			if state { // which one is for the verdict to say
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
		case *expr.Match: // of xtables
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
			if state && e.Kind == expr.VerdictDrop { // what is invalid; an answer is not
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

// hint is for the firewall whose table it is. Where there are several in one, that which remembers what it is told comes
// first.
func (t *table) hint(base *nftables.Chain, tag string) string {
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

// letThrough are commands of a program of xtables.
func letThrough(program, chain, tag string) string {
	return fmt.Sprintf("%[1]s -I %[2]s -i %[3]s+ -j ACCEPT && %[1]s -I %[2]s -o %[3]s+ -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT # again after each boot", program, chain, tag)
}

// firewalld is a zone for boxes, which is let into no service of the host, and a policy that lets it out.
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
