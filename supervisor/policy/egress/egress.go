// SPDX-License-Identifier: Apache-2.0

// Package egress settles where the programs of a session may connect to: what its profile says and its request asks.
package egress

import (
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation/network/names"
	"github.com/boxd-dev/boxd/isolation/network/rule"
)

// Field is what the rules are called in profiles and requests.
const Field = "network_rules"

// FieldStrict is what is called there that has connections to names looked at.
const FieldStrict = "network_strict"

// Strict refuses rules of which nothing would be looked at: it is not what whoever asks for it means. None at all are
// good, and let nothing through.
func Strict(strict bool, rules []string) error {
	if !strict || len(rules) == 0 || ByName(rules) {
		return nil
	}
	return fault.Field(FieldStrict, true, "false with rules that have no name").
		WithHint("what a rule by cidr lets through is not looked at: name hosts in %s, such as \"pypi.org\"", Field)
}

// Public are the rules of a profile that has none of its own: connections by TCP to what is not blocked.
func Public() []string { return []string{"0.0.0.0/0 tcp", "::/0 tcp"} }

// Rule is one by cidr, or by name.
type Rule struct {
	rule.Rule
	ByName *names.Rule // nil: by cidr
}

// String is the form in which it is kept.
func (r Rule) String() string {
	if r.ByName != nil {
		return r.ByName.String()
	}
	return r.Rule.String()
}

// Named reports whether the rule names what is blocked otherwise, which no rule by name does.
func (r Rule) Named() bool { return r.ByName == nil && r.Rule.Named() }

// within reports whether everything that r lets through, one of the rules of a profile does too. Where they lead
// everywhere, a name leads nowhere else.
func (r Rule) within(most []Rule) bool {
	if r.ByName == nil {
		return slices.ContainsFunc(most, func(m Rule) bool {
			return m.ByName == nil && r.Within(m.Rule) && (m.Named() || !r.Named())
		})
	}
	if slices.ContainsFunc(most, func(m Rule) bool { return m.ByName != nil && r.ByName.Within(m.ByName) }) {
		return true
	}
	return !slices.ContainsFunc([]string{"0.0.0.0/0", "::/0"}, func(all string) bool {
		everywhere, err := rule.New(all, r.ByName.Protocol, r.ByName.Spec().Ports)
		return err != nil || !Rule{Rule: everywhere}.within(most)
	})
}

// Read reads rules, see isolation/network/rule and isolation/network/names.
func Read(texts []string) ([]Rule, error) {
	if len(texts) > rule.Max {
		return nil, fault.Field(Field, len(texts), fmt.Sprintf("at most %d", rule.Max))
	}
	rules := make([]Rule, len(texts))
	for i, text := range texts {
		if names.Written(text) {
			r, err := names.Read(fmt.Sprintf("%s[%d]", Field, i), text)
			if err != nil {
				return nil, err
			}
			rules[i].ByName = &r
			continue
		}
		var err error
		if rules[i].Rule, err = rule.Read(text); err != nil {
			allowed := "a rule such as \"203.0.113.0/24 tcp 443 8000-8100\""
			if r, ok := errors.AsType[*rule.Refusal](err); ok {
				allowed = "a rule whose " + r.Part + " is " + r.Allowed
			}
			return nil, fault.Field(fmt.Sprintf("%s[%d]", Field, i), text, allowed)
		}
	}
	return rules, nil
}

// Merge returns the rules of a session, in their one form. profile names whose rules its are; a request that asks for
// nil takes them. It may name what is blocked otherwise only as far as they do; where they are locked it may have
// fewer, not others. Of strict ones see Strict.
func Merge(profile string, its, asked []string, locked, strict bool) ([]string, error) {
	most, err := Read(its)
	if err != nil {
		return nil, err
	}
	rules := most
	if asked != nil {
		if rules, err = Read(asked); err != nil {
			return nil, err
		}
	}
	texts := make([]string, len(rules))
	for i, r := range rules {
		field := fmt.Sprintf("%s[%d]", Field, i)
		setting := "profiles." + profile + "." + Field + " with " + strconv.Quote(r.String())
		switch {
		case r.within(most):
		case r.Named():
			return nil, fault.Field(field, r, "no network of the host, its neighbours or a cloud's metadata, unless the profile names it").Of(fault.Denied).
				By(fault.Denial{Layer: fault.LayerNetwork, Rule: "blocked unless named", Setting: setting})
		case locked:
			return nil, fault.Field(field, r, "what the profile's rules let through").Of(fault.Denied).
				WithHint("profile %q locks %s; ask for fewer of its rules, or use another profile", profile, Field).
				By(fault.Denial{Layer: fault.LayerNetwork, Rule: "profiles." + profile + ".locked", Setting: setting})
		}
		texts[i] = r.String()
	}
	return texts, Strict(strict, texts)
}

// Settle is Merge for a network that may be another than egress, which has no rules. namesOnly says that boxd alone is
// to resolve names, or fewer rules would open a way to other resolvers.
func Settle(network, profile string, its, asked []string, locked, strict bool) (namesOnly bool, rules []string, err error) {
	if network == rule.Egress {
		rules, err = Merge(profile, its, asked, locked, strict)
		return locked && ByName(its), rules, err
	}
	if asked != nil {
		err = fault.Field(Field, len(asked), "left out of a session whose network is "+network)
	}
	return false, nil, err
}

// Words are what the driver of boxes is asked for. namesOnly says that boxd alone is to resolve names, whatever the
// rules are, strict that connections to names are looked at; nil rules are no
// network, or that of the host.
func Words(network string, rules []string, namesOnly, strict bool, caps Caps) []string {
	if network == Host {
		return []string{Host}
	}
	if rules == nil {
		return nil
	}
	words := []string{rule.Egress}
	if namesOnly {
		words = append(words, rule.Names)
	}
	if strict {
		words = append(words, rule.Strict)
	}
	return slices.Concat(words, caps.words(), rules)
}

// ByName reports whether a rule is by name.
func ByName(texts []string) bool { return slices.ContainsFunc(texts, names.Written) }

// Named are those of rules that name what is blocked otherwise, each once and in order: the keeper's flags are compared.
func Named(texts []string) (named []rule.Rule) {
	for _, text := range slices.Compact(slices.Sorted(slices.Values(texts))) {
		r, err := rule.Read(text) // an error: who reads the configuration has said so
		if err == nil && r.Named() && !slices.ContainsFunc(named, func(n rule.Rule) bool { return rule.Compare(n, r) == 0 }) {
			named = append(named, r)
		}
	}
	return named
}

// Host is the network of the host, which has no rules.
const Host = "host"

// Shared refuses the network of the host to a session whose profile, with another network, does not have it.
func Shared(network, profile, its string) error {
	if network != Host || its == Host {
		return nil
	}
	const allowed = "off, " + rule.Egress
	return fault.Field("network", network, allowed).Of(fault.Denied).
		WithHint("the network of the host is for profiles of box.toml that say so, and profile %q does not; %q reaches the internet", profile, rule.Egress).
		By(fault.Denial{Layer: fault.LayerNetwork, Rule: "network", Allowed: allowed, Setting: "profiles." + profile + ".network = \"" + Host + "\""})
}
