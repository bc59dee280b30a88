// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"slices"
	"testing"

	"github.com/boxd-dev/boxd/internal/fault"
)

func TestARequestNamesNoMoreThanItsProfile(t *testing.T) {
	t.Parallel()
	its := []string{"10.1.0.0/16 tcp 443", "8.8.8.0/24 any"}
	for _, c := range []struct {
		asked  []string
		locked bool
		want   []string
		kind   fault.Kind // of the refusal
		field  string
	}{
		{nil, true, its, 0, ""},
		{[]string{}, true, []string{}, 0, ""},
		{[]string{"9.9.9.9/32"}, false, []string{"9.9.9.9/32 tcp"}, 0, ""},
		{[]string{"10.1.2.0/24 tcp 443"}, true, []string{"10.1.2.0/24 tcp 443"}, 0, ""},
		{[]string{"8.8.8.8/32 udp 53"}, true, []string{"8.8.8.8/32 udp 53"}, 0, ""},
		{[]string{"9.9.9.9/32"}, true, nil, fault.Denied, "network_rules[0]"},
		{[]string{"8.8.8.8/32", "10.1.2.0/24 tcp 444"}, false, nil, fault.Denied, "network_rules[1]"},
		{[]string{"10.0.0.0/8 tcp 443"}, false, nil, fault.Denied, "network_rules[0]"},
		{[]string{"x y"}, false, nil, fault.Invalid, "network_rules[0]"},
		{[]string{"9.9.9.9/32", "a.org tcp 53"}, false, nil, fault.Invalid, "network_rules[1]"},
		{[]string{"Pypi.org", "*.a.org any 443"}, false, []string{"pypi.org tcp 80 443", "*.a.org any 443"}, 0, ""},
		{[]string{"pypi.org"}, true, nil, fault.Denied, "network_rules[0]"},
		{[]string{"1.1.1.1/32  tcp"}, false, nil, fault.Invalid, "network_rules[0]"},
	} {
		got, err := mergeRules("p", its, c.asked, c.locked, false)
		f, _ := errors.AsType[*fault.Error](err)
		switch {
		case c.field == "" && (err != nil || !slices.Equal(got, c.want)):
			t.Errorf(`%q: got %q, err = %v, want c.field != "" or no error and got == %q`, c.asked, got, err, c.want)
		case c.field != "" && (f == nil || fault.KindOf(err) != c.kind || f.Field != c.field):
			t.Errorf(`%q: got %q, err = %v, want c.field == "" or f != nil and an error of kind %v and f.Field == c.field`,
				c.asked, got, err, c.kind)
		}
	}
	// Rules for the public internet do not cover reserved addresses within their ranges, such as the metadata service.
	if _, err := mergeRules("p", publicRules(), []string{"169.254.169.254/32"}, false, false); fault.KindOf(err) != fault.Denied {
		t.Errorf("the metadata service: err = %v, want a fault.Denied error", err)
	}
	// A profile open to the whole internet covers every name, for TCP; a rule by name covers no more than it names.
	for _, c := range []struct {
		its    []string
		asked  string
		denied bool
	}{
		{publicRules(), "pypi.org", false},
		{publicRules(), "pypi.org any 443", true},
		{publicRules()[:1], "pypi.org", true},
		{[]string{"*.a.org tcp 443"}, "x.a.org tcp 443", false},
		{[]string{"*.a.org tcp 443"}, "a.org tcp 443", true},
		{[]string{"*.a.org tcp 443"}, "x.a.org", true},
		{[]string{"*.a.org"}, "1.2.3.4/32 tcp 443", true},
	} {
		if _, err := mergeRules("p", c.its, []string{c.asked}, true, false); (err != nil) != c.denied || err != nil && fault.KindOf(err) != fault.Denied {
			t.Errorf("%q of %q: err = %v, want (err != nil) == %v and (no error or a fault.Denied error)",
				c.asked, c.its, err, c.denied)
		}
	}
	got := NamedRules(slices.Concat(its, its, slices.Repeat([]string{"10.0.0.0/8 tcp 443"}, 100), []string{"10.1.2.0/24", "10.1.2.0/24 tcp", "bad"}))
	if len(got) != 3 || got[0].String() != "10.0.0.0/8 tcp 443" || got[1].String() != its[0] || got[2].String() != "10.1.2.0/24 tcp" {
		t.Errorf(`named: got %v, want len(got) == 3 and got[0].String() == "10.0.0.0/8 tcp 443" and got[1].String() == its[0] and got[2].String() == "10.1.2.0/24 tcp"`,
			got)
	}
}
