// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"slices"
	"testing"

	"github.com/boxd-dev/boxd/internal/fault"
)

func TestRulesOfALivingSessionAreHeld(t *testing.T) {
	t.Parallel()
	p := DefaultProfile()
	p.Network, p.NetworkRules, p.Locked = NetworkEgress, []string{"11.0.0.0/8 tcp", "*.example.org"}, []string{"network_rules"}
	now := Settings{Profile: "p", Image: p.Image, Network: NetworkEgress, NetworkRules: p.NetworkRules, OOM: p.OOM, CPUs: p.CPUs, Memory: p.Memory, Pids: p.Pids, CPUWeight: p.CPUWeight, IOWeight: p.IOWeight, Tmp: p.Tmp, ReadOnlyRoot: true}
	for _, c := range []struct {
		rules []string
		kind  fault.Kind
	}{
		{[]string{"a.example.org"}, 0},
		{[]string{}, 0},
		{[]string{"11.2.0.0/16 tcp 80"}, 0},
		{[]string{"example.org"}, fault.Denied},
		{[]string{"12.0.0.0/8"}, fault.Denied},
		{[]string{"10.0.0.1/32"}, fault.Denied},
		{[]string{"12.0.0.1/8"}, fault.Invalid},
	} {
		next, err := p.Change(&now, &Request{NetworkRules: c.rules})
		if err == nil && c.kind == 0 {
			if len(next.NetworkRules) != len(c.rules) || next.NetworkRules == nil || len(now.NetworkRules) != 2 {
				t.Errorf("%q: %q, and before %q", c.rules, next.NetworkRules, now.NetworkRules)
			}
		} else if fault.KindOf(err) != c.kind {
			t.Errorf("%q: %v", c.rules, err)
		}
	}
	if next, err := p.Change(&now, &Request{NetworkRules: []string{}}); err != nil || !slices.Equal(next.KeeperNetwork(), []string{"egress", "names="}) {
		t.Errorf("without the names that are locked others may resolve: %q, %v", next.KeeperNetwork(), err)
	}
	next, err := p.Change(&now, &Request{})
	if err != nil || !slices.Equal(next.NetworkRules, now.NetworkRules) {
		t.Errorf("without rules: %q, %v", next.NetworkRules, err)
	}
	off := now
	off.Network = NetworkOff
	if _, err := p.Change(&off, &Request{NetworkRules: []string{}}); fault.KindOf(err) != fault.Invalid {
		t.Errorf("without a network: %v", err)
	}
	held := Held{Bounds: NoBounds(), Name: "ci"}
	held.Tools = []string{ToolExec}
	if err := held.Limits(&next, &Request{NetworkRules: []string{}}); fault.DenialOf(err) == nil || fault.DenialOf(err).Rule != "policy.ci.tools" {
		t.Errorf("without the tool: %v", err)
	}
	if err := held.Limits(&next, &Request{}); err != nil {
		t.Errorf("another change: %v", err)
	}
}
