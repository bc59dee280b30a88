// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/supervisor/access"
)

func TestOnlySecretsNamedByThePolicyAreUsable(t *testing.T) {
	t.Parallel()
	cfg := DefaultConfig()
	cfg.Secrets = map[string]Secret{"a": {File: "/a", Hosts: []string{"a.example"}, Env: "A"}, "b": {File: "/b", Hosts: []string{"b.example"}, Env: "B"}}
	some, all := NoPolicy(), NoPolicy()
	some.Principals, some.Secrets = []string{"some"}, []string{"a"}
	all.Principals, all.Secrets = []string{"all"}, []string{Any}
	cfg.Policies["some"], cfg.Policies["all"] = some, all
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	req := &Request{Network: new(NetworkEgress), NetworkRules: []string{"*.example"}, Secrets: []string{"b", "a", "b"}}
	s, _, err := cfg.Merge(req)
	if err != nil || strings.Join(s.Secrets, " ") != "a b" || !s.NetworkStrict {
		t.Fatalf(`%q, strict %v: err = %v, want no error and strings.Join(s.Secrets, " ") == "a b" and s.NetworkStrict == true`,
			s.Secrets, s.NetworkStrict, err)
	}
	for name, c := range map[string]struct {
		who  access.Principal
		want bool
	}{
		"nobody's":      {access.Principal{Name: "other", Role: access.User}, false},
		"an operator's": {access.Principal{Name: "op", Role: access.Operator}, false},
		"one of them":   {access.Principal{Name: "some", Role: access.User}, false},
		"all":           {access.Principal{Name: "all", Role: access.User}, true},
		"an admin's":    {access.Principal{Name: "root", Role: access.Admin}, true},
	} {
		held := cfg.PolicyOf(c.who)
		next := s
		err := held.Hold(&next, req)
		if (err == nil) != c.want || err != nil && (fault.KindOf(err) != fault.Denied || !strings.Contains(err.Error(), "secrets[")) {
			t.Errorf(`%s: err = %v, want (err == nil) == %v and (no error or a fault.Denied error and err containing "secrets[")`,
				name, err, c.want)
		}
	}
	// Changing the network rules of a running session leaves its secrets unchanged.
	p := cfg.Profiles["default"]
	next, err := p.Change(&s, &Request{NetworkRules: []string{"a.example"}})
	if err != nil || strings.Join(next.Secrets, " ") != "a b" || !next.NetworkStrict {
		t.Errorf(`%q, strict %v: err = %v, want no error and strings.Join(next.Secrets, " ") == "a b" and next.NetworkStrict == true`,
			next.Secrets, next.NetworkStrict, err)
	}
	some.Secrets = []string{"c"}
	cfg.Policies["some"] = some
	if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), "policy.some.secrets") {
		t.Errorf(`a secret that is not there: err = %v, want an error containing "policy.some.secrets"`, err)
	}
}
