// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"reflect"
	"slices"
	"testing"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/network/rule"
	"github.com/boxd-dev/boxd/limits"
	"github.com/boxd-dev/boxd/quantity"
)

func TestNewNetworkRulesOfARunningSessionObeyItsLockedProfile(t *testing.T) {
	t.Parallel()
	p := DefaultProfile()
	p.Network, p.NetworkRules, p.Locked = NetworkEgress, []string{"11.0.0.0/8 tcp", "*.example.org"}, []string{"network_rules"}
	now := Settings{Profile: "p", Image: p.Image, Network: NetworkEgress, NetworkRules: p.NetworkRules, Limits: limits.Limits{
		OOM: p.OOM, CPUs: p.CPUs, Memory: p.Memory, Pids: p.Pids, CPUWeight: p.CPUWeight, IOWeight: p.IOWeight, Tmp: p.Tmp,
	}, ReadOnlyRoot: true}
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
			t.Errorf("%q: err = %v, want an error of kind %v", c.rules, err, c.kind)
		}
	}
	if next, err := p.Change(&now, &Request{NetworkRules: []string{}}); err != nil || !reflect.DeepEqual(next.KeeperNetwork(), isolation.NetworkSpec{Kind: isolation.NetworkEgress, NamesOnly: true, Rules: []string{}}) {
		t.Errorf("without the names that are locked others may resolve: next.KeeperNetwork() = %+v, err = %v, want no error and next.KeeperNetwork() == isolation.NetworkSpec{Kind: isolation.NetworkEgress, NamesOnly: true, Rules: []string{}}",
			next.KeeperNetwork(), err)
	}
	next, err := p.Change(&now, &Request{})
	if err != nil || !slices.Equal(next.NetworkRules, now.NetworkRules) {
		t.Errorf("without rules: next.NetworkRules = %q, err = %v, want no error and next.NetworkRules == %q",
			next.NetworkRules, err, now.NetworkRules)
	}
	off := now
	off.Network = NetworkOff
	if _, err := p.Change(&off, &Request{NetworkRules: []string{}}); fault.KindOf(err) != fault.Invalid {
		t.Errorf("without a network: err = %v, want a fault.Invalid error", err)
	}
	held := EffectivePolicy{Policy: NoPolicy(), Name: "ci"}
	held.Tools = []string{ToolExec}
	if err := held.Limits(&next, &Request{NetworkRules: []string{}}); fault.DenialOf(err) == nil || fault.DenialOf(err).Rule != "policy.ci.tools" {
		t.Errorf(`without the tool: err = %v, want fault.DenialOf(err) != nil and fault.DenialOf(err).Rule == "policy.ci.tools"`,
			err)
	}
	if err := held.Limits(&next, &Request{}); err != nil {
		t.Errorf("another change: %v", err)
	}
}

// A session has the caps of its profile, or the default ones; it may ask for less, and each cut is reported once.
func TestNetworkCapsAreClampedToTheProfileAndPolicy(t *testing.T) {
	t.Parallel()
	c := DefaultConfig()
	c.DefaultCaps = NetworkCaps{Connections: 1024}
	p := c.Profiles["network_basic"]
	p.NetworkBandwidth = quantity.MiB
	c.Profiles["network_basic"] = p
	tight := EffectivePolicy{Policy: boundsFor(func(b *Policy) { b.Ceilings = limits.Ceilings{NetworkConnections: 10} }), Name: "ci"}
	for name, k := range map[string]struct {
		connections *int
		bandwidth   *quantity.Size
		held        EffectivePolicy
		want        rule.Caps
		clamped     []Clamp
	}{
		"nothing": {nil, nil, EffectivePolicy{Policy: NoPolicy()}, rule.Caps{Connections: 1024, Bandwidth: 1048576}, nil},
		"less":    {new(5), new(64 * quantity.KiB), EffectivePolicy{Policy: NoPolicy()}, rule.Caps{Connections: 5, Bandwidth: 65536}, nil},
		"more": {new(5000), new(quantity.Size(0)), EffectivePolicy{Policy: NoPolicy()}, rule.Caps{Connections: 1024, Bandwidth: 1048576}, []Clamp{
			{FieldConnections, "5000", "1024", "profiles.network_basic.network_connections"}, {FieldBandwidth, "0", "1MiB", "profiles.network_basic.network_bandwidth"},
		}},
		"held":      {nil, nil, tight, rule.Caps{Connections: 10, Bandwidth: 1048576}, []Clamp{{FieldConnections, "1024", "10", "policy.ci.ceilings.network_connections"}}},
		"held more": {new(5000), nil, tight, rule.Caps{Connections: 10, Bandwidth: 1048576}, []Clamp{{FieldConnections, "5000", "10", "policy.ci.ceilings.network_connections"}}},
	} {
		req := &Request{Profile: "network_basic", Patch: limits.Patch{NetworkConnections: k.connections, NetworkBandwidth: k.bandwidth}}
		s, profile, err := c.Merge(req)
		if err == nil {
			err = k.held.Hold(&s, req)
		}
		if got := s.KeeperNetwork(); err != nil || got.Connections != uint32(k.want.Connections) || got.Bandwidth != k.want.Bandwidth || !slices.Equal(s.Clamped, k.clamped) {
			t.Errorf("%s: got %+v, s.Clamped = %+v, err = %v, want no error and got.Connections == uint32(k.want.Connections) and got.Bandwidth == %v and s.Clamped == %+v",
				name, got, s.Clamped, err, k.want.Bandwidth, k.clamped)
			continue
		}
		less := &Request{Patch: limits.Patch{NetworkConnections: new(3)}}
		next, err := profile.Change(&s, less)
		if err == nil {
			err = k.held.Limits(&next, less)
		}
		if err != nil || next.NetworkConnections != 3 || next.NetworkBandwidth != s.NetworkBandwidth || slices.ContainsFunc(next.Clamped, func(c Clamp) bool { return c.Field == FieldConnections }) {
			t.Errorf("%s, with smaller limits while it runs: next = %+v, err = %v", name, next, err)
		}
	}
	for name, k := range map[string]struct {
		req  Request
		kind fault.Kind
	}{
		"off":      {Request{Patch: limits.Patch{NetworkConnections: new(5)}}, fault.Invalid},
		"below 0":  {Request{Profile: "network_basic", Patch: limits.Patch{NetworkConnections: new(-1)}}, fault.Invalid},
		"too slow": {Request{Profile: "network_basic", Patch: limits.Patch{NetworkBandwidth: new(quantity.KiB)}}, fault.Invalid},
		"locked":   {Request{Profile: "locked", Patch: limits.Patch{NetworkConnections: new(5)}}, fault.Denied},
	} {
		p.Locked = []string{FieldConnections}
		c.Profiles["locked"] = p
		if _, _, err := c.Merge(&k.req); fault.KindOf(err) != k.kind {
			t.Errorf("%s: err = %v, want an error of kind %v", name, err, k.kind)
		}
	}
}
