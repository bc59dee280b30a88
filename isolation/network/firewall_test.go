// SPDX-License-Identifier: Apache-2.0

package network

import (
	"strings"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

func fromLink(name string) []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte(name)}}
}

func toLink(op expr.CmpOp, name string) []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: 1}, &expr.Cmp{Op: op, Register: 1, Data: []byte(name)}}
}

func answers() []expr.Any {
	return []expr.Any{&expr.Ct{Key: expr.CtKeySTATE, Register: 1}, &expr.Bitwise{}, &expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)}}
}

func does(kind expr.VerdictKind, chain ...string) []expr.Any {
	return []expr.Any{&expr.Counter{}, &expr.Verdict{Kind: kind, Chain: strings.Join(chain, "")}}
}

func ruleOf(parts ...[]expr.Any) (r []expr.Any) {
	for _, p := range parts {
		r = append(r, p...)
	}
	return r
}

// The outcome for packets of boxes is right for chains as firewalld, ufw and Docker write them.
func TestFirewallChainsAreEvaluatedForPacketsOfBoxes(t *testing.T) {
	t.Parallel()
	const accept, drop, jump, goTo, back = expr.VerdictAccept, expr.VerdictDrop, expr.VerdictJump, expr.VerdictGoto, expr.VerdictReturn
	reject := []expr.Any{&expr.Reject{}}
	conntrack := []expr.Any{&expr.Match{Name: "conntrack"}}
	for name, c := range map[string]struct {
		chains     map[string][][]expr.Any
		out, reply outcome
		at         string // the chain that decides about outgoing packets
	}{
		"empty": {nil, continues, continues, ""},
		"firewalld": {map[string][][]expr.Any{
			"forward": {ruleOf(answers(), does(accept)), ruleOf(fromLink("lo\x00"), does(accept)), ruleOf(answers(), does(drop)), does(jump, "zones"), reject},
			"zones":   {ruleOf(fromLink("eth0\x00"), does(goTo, "other")), does(goTo, "public")},
			"public":  {does(jump, "none"), reject},
			"other":   {does(accept)},
		}, drops, accepts, "public"},
		"firewalld, with a zone": {map[string][][]expr.Any{
			"forward": {ruleOf(answers(), does(accept)), does(jump, "zones"), reject},
			"zones":   {ruleOf(fromLink("bxabcd"), does(goTo, "boxd")), does(goTo, "public")},
			"public":  {reject},
			"boxd":    {does(jump, "policy"), reject},
			"policy":  {does(accept)},
		}, accepts, accepts, "policy"},
		"firewalld, with a zone and no policy": {map[string][][]expr.Any{
			"forward": {ruleOf(answers(), does(accept)), does(jump, "zones"), reject},
			"zones":   {ruleOf(fromLink("bxabcd"), does(goTo, "boxd")), does(goTo, "public")},
			"boxd":    {does(jump, "policy"), reject},
		}, drops, accepts, "boxd"},
		"Docker": {map[string][][]expr.Any{
			"forward":        {does(jump, "DOCKER-USER"), does(jump, "DOCKER-FORWARD")},
			"DOCKER-FORWARD": {ruleOf(toLink(expr.CmpOpEq, "docker0\x00"), conntrack, does(accept)), ruleOf(fromLink("docker0\x00"), toLink(expr.CmpOpNeq, "docker0\x00"), does(drop))},
		}, continues, continues, ""},
		"Docker, told of one direction": {map[string][][]expr.Any{
			"forward":     {does(jump, "DOCKER-USER")},
			"DOCKER-USER": {ruleOf(fromLink("bx"), does(accept)), does(back)},
		}, accepts, continues, "DOCKER-USER"},
		"Docker, told of both": {map[string][][]expr.Any{
			"forward":     {does(jump, "DOCKER-USER")},
			"DOCKER-USER": {ruleOf(toLink(expr.CmpOpEq, "bxabcd"), conntrack, does(accept)), ruleOf(fromLink("bxabcd"), does(accept))},
		}, accepts, accepts, "DOCKER-USER"},
		"one box alone": {map[string][][]expr.Any{"forward": {ruleOf(fromLink("bxabcd123456789\x00"), does(accept)), reject}}, drops, drops, "forward"},
		"xtables": {map[string][][]expr.Any{"forward": {
			{&expr.Match{Name: "limit"}, &expr.Target{Name: "LOG"}}, {&expr.Match{Name: "comment"}, &expr.Counter{}, &expr.Target{Name: "REJECT"}},
		}}, drops, drops, "forward"},
		"all but boxes": {map[string][][]expr.Any{"forward": {ruleOf(toLink(expr.CmpOpNeq, "eth0\x00"), does(drop))}}, continues, drops, ""},
		"by address":    {map[string][][]expr.Any{"forward": {ruleOf([]expr.Any{&expr.Payload{}, &expr.Cmp{}}, does(drop)), does(accept)}}, accepts, accepts, "forward"},
		"a ring":        {map[string][][]expr.Any{"forward": {does(jump, "forward")}}, continues, continues, ""},
	} {
		tb := &firewallTable{chains: map[string]*nftables.Chain{}, rules: func(ch *nftables.Chain) (list []*nftables.Rule, err error) {
			for _, r := range c.chains[ch.Name] {
				list = append(list, &nftables.Rule{Exprs: r})
			}
			return list, nil
		}}
		for ch := range c.chains {
			tb.chains[ch] = &nftables.Chain{Name: ch}
		}
		out, at, err := tb.walk("forward", packet{from: "bxabcd"}, 0)
		if out != c.out || at != c.at || err != nil {
			t.Errorf("%s: what a box sends: %d by %q, %v: want %d by %q", name, out, at, err, c.out, c.at)
		}
		if reply, at, err := tb.walk("forward", packet{to: "bxabcd"}, 0); reply != c.reply || err != nil {
			t.Errorf("%s: an answer: %d by %q, %v: want %d", name, reply, at, err, c.reply)
		}
	}
}

func TestEachFirewallHintIsGivenOnce(t *testing.T) {
	t.Parallel()
	walls := []blockingChain{{Hint: "a"}, {Hint: "a"}, {Chain: "x"}, {Chain: "y"}}
	if got := firewallHints(walls, "bxabcd"); got != "a\nallow packets from and to interfaces bxabcd* there" {
		t.Errorf(`got %q, want "a\nallow packets from and to interfaces bxabcd* there"`, got)
	}
}
