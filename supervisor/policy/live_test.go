// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/internal/fault"
)

func TestASessionGetsTheRequestedOrTheProfilesSkills(t *testing.T) {
	t.Parallel()
	var many []string
	for i := range MaxSkills + 1 {
		many = append(many, fmt.Sprintf("skill-%d", i))
	}
	for name, tc := range map[string]struct {
		usual, asked []string
		locked       bool
		want         []string
		kind         fault.Kind
	}{
		"nothing":                   {want: nil},
		"the profile's":             {usual: []string{"b", "a"}, want: []string{"a", "b"}},
		"those asked for":           {usual: []string{"a"}, asked: []string{"c", "b", "c"}, want: []string{"b", "c"}},
		"none":                      {usual: []string{"a"}, asked: []string{}, want: nil},
		"as many as may be":         {asked: append(many[1:], many[1]), want: slices.Sorted(slices.Values(many[1:]))},
		"locked, and left out":      {usual: []string{"a"}, locked: true, want: []string{"a"}},
		"locked, and the same":      {usual: []string{"a", "b"}, asked: []string{"b", "a"}, locked: true, want: []string{"a", "b"}},
		"locked, and others":        {usual: []string{"a"}, asked: []string{"a", "b"}, locked: true, kind: fault.Denied},
		"locked, and none":          {usual: []string{"a"}, asked: []string{}, locked: true, kind: fault.Denied},
		"too many":                  {asked: many, kind: fault.Invalid},
		"no name":                   {asked: []string{""}, kind: fault.Invalid},
		"more than a name":          {asked: []string{"a\nb"}, kind: fault.Invalid},
		"longer than any name":      {asked: []string{strings.Repeat("a", longestSkillNames+1)}, kind: fault.Invalid},
		"a name that leads nowhere": {asked: []string{"../a"}, want: []string{"../a"}}, // no such skill: it will be reported as missing
	} {
		p := Profile{Skills: tc.usual}
		if tc.locked {
			p.Locked = []string{"skills"}
		}
		got, err := mergeSkills("x", &p, tc.asked)
		switch {
		case tc.kind != 0 && (fault.KindOf(err) != tc.kind || err == nil):
			t.Errorf("%s: got %q, err = %v, want tc.kind == 0 or an error of kind %v and an error", name, got, err, tc.kind)
		case tc.kind == 0 && (err != nil || !slices.Equal(got, tc.want)):
			t.Errorf("%s: %q, %v, want %q", name, got, err, tc.want)
		}
	}
}
