// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"

	"github.com/boxd-dev/boxd/internal/fault"
)

// Written tells rules by name from rules by CIDR, in lists that have both: a name has no slash.
func Written(text string) bool {
	first, _, _ := strings.Cut(text, " ")
	return !strings.Contains(first, "/")
}

// ReadRule parses a rule written as "pypi.org", "*.pythonhosted.org tcp 443" or "a.example any
// 443 8000-8003". Errors name field.
func ReadRule(field, text string) (Rule, error) {
	parts := strings.Fields(text)
	if len(parts) == 0 {
		return Rule{}, fault.Field(field, text, "a name, a protocol and ports, such as \"pypi.org tcp 443\"")
	}
	s := Spec{Name: parts[0]}
	if len(parts) > 1 {
		s.Protocol, s.Ports = parts[1], parts[2:]
	}
	r, err := s.compile(field)
	if f, ok := errors.AsType[*fault.Error](err); ok {
		f.Field = field // the keys of a Spec do not occur in this form
	}
	return r, err
}

// ReadRules parses several. Errors name their places in field.
func ReadRules(field string, texts []string) (*Rules, error) {
	if len(texts) > MaxRules {
		return nil, fault.Field(field, fmt.Sprintf("%d rules by name", len(texts)), fmt.Sprintf("at most %d", MaxRules))
	}
	out := &Rules{}
	for i, text := range texts {
		r, err := ReadRule(fmt.Sprintf("%s[%d]", field, i), text)
		if err != nil {
			return nil, err
		}
		out.list = append(out.list, r)
	}
	return out, nil
}

// String returns the canonical text of a rule, which ReadRule parses.
func (r *Rule) String() string {
	return strings.Join(append([]string{r.Pattern(), r.Protocol}, r.Spec().Ports...), " ")
}

// Within reports whether o allows everything that r allows.
func (r *Rule) Within(o *Rule) bool {
	switch {
	case r.Name == "" && o.Name != "", r.Below && !o.Below:
		return false
	case r.Below && r.Name != o.Name && o.Name != "" && !strings.HasSuffix(string(r.Name), "."+string(o.Name)):
		return false
	case !r.Below && !o.covers(r.Name):
		return false
	}
	has := Openings([]Rule{*o})
	return !slices.ContainsFunc(Openings([]Rule{*r}), func(x Opening) bool { return !slices.Contains(has, x) })
}

// Digest returns a number of up to eight hexadecimal digits that differs for different rules.
func (r *Rules) Digest() uint32 {
	h := fnv.New32a()
	for i := range r.list {
		_, _ = h.Write([]byte(r.list[i].String() + "\n"))
	}
	return max(h.Sum32(), 1)
}
