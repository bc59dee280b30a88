// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/quantity"
)

// Hold applies the policy to merged settings. What exceeds a ceiling is reduced to it where the policy says so, and listed in
// Settings.Clamped; anything else not allowed is refused. requested is the original request: a default that exceeds a ceiling is
// always reduced.
func (h *EffectivePolicy) Hold(s *Settings, requested *Request) error {
	if !slices.Contains(h.Profiles, Any) && !slices.Contains(h.Profiles, s.Profile) {
		return h.refuse(fault.LayerPolicy, "profile", s.Profile, "profiles", h.Profiles)
	}
	if err := h.network(s); err != nil {
		return err
	}
	for i, name := range s.Secrets {
		if !h.MayHave(name) {
			return h.refuse(fault.LayerNetwork, fmt.Sprintf("secrets[%d]", i), name, "secrets", h.Secrets)
		}
	}
	if err := h.holdPush(s); err != nil {
		return err
	}
	for i := range s.Mounts {
		if !h.AllowsMount(s.Mounts[i].Source) {
			return h.MountDenied(i, s.Mounts[i].Source)
		}
	}
	clamped, err := h.cut(s, requested, false)
	s.Clamped = joined(s.Clamped, clamped)
	return err
}

func (h *EffectivePolicy) network(s *Settings) error {
	if !slices.Contains(h.Networks, s.Network) {
		return h.refuse(fault.LayerNetwork, "network", s.Network, "networks", h.Networks)
	}
	if s.Network == NetworkOff {
		return nil
	}
	return h.May(ToolNetwork)
}

// Limits applies the policy to a change of a running session: its limits and, if requested, its network. Reductions are in
// Settings.Clamped.
func (h *EffectivePolicy) Limits(s *Settings, requested *Request) error {
	if requested.NetworkRules != nil || requested.NetworkConnections != nil || requested.NetworkBandwidth != nil {
		if err := h.network(s); err != nil {
			return err
		}
	}
	clamped, err := h.cut(s, requested, len(s.Bounded) > 0) // the quota of host directories stays as it is
	if err != nil {
		return err
	}
	s.Clamped = joined(slices.DeleteFunc(slices.Clone(s.Clamped), func(c Clamp) bool { return requested.names(c.Field) }), clamped)
	return nil
}

// joined merges the clamps of before and now, each field once.
func joined(was, now []Clamp) []Clamp {
	was = slices.DeleteFunc(slices.Clone(was), func(c Clamp) bool {
		i := slices.IndexFunc(now, func(n Clamp) bool { return n.Field == c.Field })
		if i >= 0 && (c.Field == FieldConnections || c.Field == FieldBandwidth) { // the profile reduced it first
			now[i].Asked = c.Asked
		}
		return i >= 0
	})
	if len(was)+len(now) == 0 {
		return nil // as in settings that never had any
	}
	return append(was, now...)
}

// names reports whether a request gives a limit explicitly.
func (req *Request) names(field string) bool {
	if field == "memory_high" && req.Memory != nil { // which reduced it
		return true
	}
	return slices.ContainsFunc(limitTable(), func(l limit) bool { return l.name() == field && l.how() == always && l.given(req) })
}

// cut reduces every limit to its ceiling, except a quota that stays.
func (h *EffectivePolicy) cut(s *Settings, requested *Request, stays bool) ([]Clamp, error) {
	t := cutter{policy: h, stays: stays}
	for _, l := range limitTable() {
		l.cut(&t, s, requested)
		if l.name() == "memory" && s.MemoryHigh > s.Memory && s.Memory == h.Ceilings.Memory { // memory_high must not exceed memory
			t.clamped = append(t.clamped, Clamp{"memory_high", s.MemoryHigh.String(), s.Memory.String(), h.Rule("ceilings.memory")})
			s.MemoryHigh = s.Memory
		}
	}
	return t.clamped, t.err
}

// ExecTimeout is the timeout of the profile, with the policy applied.
func (h *EffectivePolicy) ExecTimeout(p *Profile, name string, requested *quantity.Duration) (time.Duration, []Clamp, error) {
	d, clamped, err := p.execTimeout(name, requested)
	if err != nil {
		return 0, nil, err
	}
	d, more, err := h.Timeout(d, requested != nil)
	if len(more) > 0 && len(clamped) > 0 { // report one clamp: the original request and the final value
		more[0].Asked, clamped = clamped[0].Asked, nil
	}
	return d, append(clamped, more...), err
}

// Timeout applies the policy to the timeout of one execution. 0, the largest request of a managed process, is none.
func (h *EffectivePolicy) Timeout(d time.Duration, explicit bool) (time.Duration, []Clamp, error) {
	t := cutter{policy: h}
	got := ceiling(&t, "timeout", quantity.Duration(d), h.Ceilings.Timeout, explicit, true)
	return time.Duration(got), t.clamped, t.err
}

// cutter collects the reductions, and the first refusal.
type cutter struct {
	policy  *EffectivePolicy
	stays   bool // the quota of what is on disk
	clamped []Clamp
	err     error
}

// ceiling returns the value or its ceiling, whichever is less. explicit says that a caller asked for the value; endless that 0
// means unlimited.
func ceiling[T cmp.Ordered](t *cutter, field string, value, maximum T, explicit, endless bool) T {
	var none T
	if maximum == none || value <= maximum && (value != none || !endless) {
		return value
	}
	rule := t.policy.Rule("ceilings." + field)
	if explicit && t.policy.Excess == excessRefuse {
		if t.err == nil {
			t.err = fault.Field(field, value, fmt.Sprintf("at most %v", maximum)).Of(fault.Denied).
				WithHint("the operator's policy says so; ask for less, or leave it out").
				By(fault.Denial{Layer: fault.LayerPolicy, Rule: rule, Allowed: fmt.Sprint(maximum), Setting: fmt.Sprintf("%s of at least %v", rule, value)})
		}
		return value
	}
	t.clamped = append(t.clamped, Clamp{field, fmt.Sprint(value), fmt.Sprint(maximum), rule})
	return maximum
}
