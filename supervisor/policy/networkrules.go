// SPDX-License-Identifier: Apache-2.0

// Where the programs of a session may connect to: the rules of its profile and of its request.

package policy

import (
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation/egress"
	"github.com/boxd-dev/boxd/isolation/network/rule"
)

// fieldRules is the field of the rules in profiles and requests.
const fieldRules = "network_rules"

// fieldStrict is the field there that has connections by name filtered.
const fieldStrict = "network_strict"

// checkStrict refuses strict rules without a host name, of which nothing would be filtered: that cannot be intended. An empty
// list is accepted, and allows nothing.
func checkStrict(strict bool, rules []string) error {
	if !strict || len(rules) == 0 || rulesByName(rules) {
		return nil
	}
	return fault.Field(fieldStrict, true, "false with CIDR rules only").WithText("network_strict: needs a rule with a host name, and all rules are CIDR rules").
		WithHint("add a host name to %s, for example \"pypi.org\"", fieldRules)
}

// publicRules are the rules of a profile without its own: TCP connections to all addresses that are not blocked.
func publicRules() []string { return []string{"0.0.0.0/0 tcp", "::/0 tcp"} }

// NetworkRule is a rule by CIDR or by host name.
type NetworkRule struct {
	rule.Rule
	ByName *egress.Rule // nil: by CIDR
}

// String returns the stored form.
func (r NetworkRule) String() string {
	if r.ByName != nil {
		return r.ByName.String()
	}
	return r.Rule.String()
}

// Named reports whether the rule names an address that is blocked by default. A rule by host name never does.
func (r NetworkRule) Named() bool { return r.ByName == nil && r.Rule.Named() }

// within reports whether a profile's rules allow everything that r allows. Rules by CIDR for everywhere include any host name.
func (r NetworkRule) within(limit []NetworkRule) bool {
	if r.ByName == nil {
		return slices.ContainsFunc(limit, func(m NetworkRule) bool {
			return m.ByName == nil && r.Within(m.Rule) && (m.Named() || !r.Named())
		})
	}
	if slices.ContainsFunc(limit, func(m NetworkRule) bool { return m.ByName != nil && r.ByName.Within(m.ByName) }) {
		return true
	}
	return !slices.ContainsFunc([]string{"0.0.0.0/0", "::/0"}, func(all string) bool {
		everywhere, err := rule.New(all, r.ByName.Protocol, r.ByName.Spec().Ports)
		return err != nil || !NetworkRule{Rule: everywhere}.within(limit)
	})
}

// readRules parses rules, see isolation/network/rule and isolation/egress.
func readRules(texts []string) ([]NetworkRule, error) {
	if len(texts) > rule.Max {
		return nil, fault.Field(fieldRules, len(texts), fmt.Sprintf("at most %d", rule.Max))
	}
	rules := make([]NetworkRule, len(texts))
	for i, text := range texts {
		if egress.Written(text) {
			r, err := egress.ReadRule(fmt.Sprintf("%s[%d]", fieldRules, i), text)
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
			return nil, fault.Field(fmt.Sprintf("%s[%d]", fieldRules, i), text, allowed)
		}
	}
	return rules, nil
}

// mergeRules returns the rules of a session in canonical form. its are the rules of the profile, which a request with nil takes.
// A request may name addresses blocked by default only as far as the profile does; locked rules may be reduced, not replaced. For
// strict, see checkStrict.
func mergeRules(profile string, its, requested []string, locked, strict bool) ([]string, error) {
	limit, err := readRules(its)
	if err != nil {
		return nil, err
	}
	rules := limit
	if requested != nil {
		if rules, err = readRules(requested); err != nil {
			return nil, err
		}
	}
	texts := make([]string, len(rules))
	for i, r := range rules {
		field := fmt.Sprintf("%s[%d]", fieldRules, i)
		setting := "profiles." + profile + "." + fieldRules + " with " + strconv.Quote(r.String())
		switch {
		case r.within(limit):
		case r.Named():
			return nil, fault.Field(field, r, "outside the networks of the host, its neighbours and a cloud's metadata, unless the profile allows it").Of(fault.Denied).
				By(fault.Denial{Layer: fault.LayerNetwork, Rule: "blocked unless named", Setting: setting})
		case locked:
			return nil, fault.Field(field, r, "within the rules of the profile").Of(fault.Denied).
				WithHint("profile %q locks %s: use some of its rules, or another profile", profile, fieldRules).
				By(fault.Denial{Layer: fault.LayerNetwork, Rule: "profiles." + profile + ".locked", Setting: setting})
		}
		texts[i] = r.String()
	}
	return texts, checkStrict(strict, texts)
}

// resolveRules is mergeRules for any network; only egress has rules. namesOnly says that only boxd may resolve names, since fewer
// rules would otherwise open a way to other resolvers.
func resolveRules(network, profile string, its, requested []string, locked, strict bool) (namesOnly bool, rules []string, err error) {
	if network == rule.Egress {
		rules, err = mergeRules(profile, its, requested, locked, strict)
		return locked && rulesByName(its), rules, err
	}
	if requested != nil {
		err = fault.Field(fieldRules, len(requested), "left out with network = "+strconv.Quote(network)).WithText("%s: this box has no filtered network (network = %q); create one with network = %q", fieldRules, network, rule.Egress)
	}
	return false, nil, err
}

// rulesByName reports whether any rule is by host name.
func rulesByName(texts []string) bool { return slices.ContainsFunc(texts, egress.Written) }

// NamedRules returns the rules that name addresses blocked by default, sorted and unique: the keeper's flags are compared.
func NamedRules(texts []string) (named []rule.Rule) {
	for _, text := range slices.Compact(slices.Sorted(slices.Values(texts))) {
		r, err := rule.Read(text) // errors were reported when the configuration was read
		if err == nil && r.Named() && !slices.ContainsFunc(named, func(n rule.Rule) bool { return rule.Compare(n, r) == 0 }) {
			named = append(named, r)
		}
	}
	return named
}

// checkHostNetwork refuses the host network to a session whose profile has another network.
func checkHostNetwork(network, profile, its string) error {
	if network != NetworkHost || its == NetworkHost {
		return nil
	}
	const allowed = "off or " + rule.Egress
	return fault.Field("network", network, allowed).Of(fault.Denied).
		WithHint("profile %q does not allow the host network; use network = %q to reach the internet", profile, rule.Egress).
		By(fault.Denial{Layer: fault.LayerNetwork, Rule: "network", Allowed: allowed, Setting: "profiles." + profile + ".network = \"" + NetworkHost + "\""})
}
