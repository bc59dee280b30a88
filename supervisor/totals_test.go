// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/supervisor/policy"
)

func TestDoctorNamesWhatEnforcesOwnerLimits(t *testing.T) {
	t.Parallel()
	with := policy.NoPolicy()
	with.Memory = quantity.GiB
	groups := policy.Host{Host: isolation.Host{Controllers: []string{"cpu", "memory", "pids"}}}
	for name, tc := range map[string]struct {
		policies map[string]policy.Policy
		host     policy.Host
		scopes   bool
		want     string // "": no line
		level    isolation.CheckLevel
	}{
		"no totals":  {map[string]policy.Policy{"a": policy.NoPolicy()}, groups, false, "", 0},
		"groups":     {map[string]policy.Policy{"a": policy.NoPolicy(), "b": with}, groups, false, "cgroup per owner", isolation.CheckOK},
		"no groups":  {map[string]policy.Policy{"b": with}, policy.Host{}, false, "enforced by boxd only", isolation.CheckWarn},
		"in a scope": {map[string]policy.Policy{"b": with}, groups, true, "a systemd scope", isolation.CheckWarn},
	} {
		got := checkTotals(&policy.Config{Policies: tc.policies}, tc.host, tc.scopes)
		if len(got) != min(len(tc.want), 1) || len(got) > 0 && (!strings.Contains(got[0].Detail, tc.want) || got[0].Level != tc.level) {
			t.Errorf("%s: got %+v, want len(got) == min(len(tc.want), 1) and (len(got) == 0 or got[0].Detail containing %q and got[0].Level == tc.level)",
				name, got, tc.want)
		}
	}
}

func TestDoctorSaysWhetherConnectionsRunOut(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		profile policy.Profile
		usual   int // network.connections
		tracked int
		want    string // "": no line
		level   isolation.CheckLevel
	}{
		"no network":     {policy.Profile{Network: policy.NetworkOff}, 1024, 1000, "", 0},
		"nothing tracks": {policy.Profile{Network: policy.NetworkEgress}, 1024, 0, "", 0},
		"enough":         {policy.Profile{Network: policy.NetworkEgress}, 1024, 50 * 1024, "50 sessions with 1024 each fit", isolation.CheckOK},
		"too many":       {policy.Profile{Network: policy.NetworkEgress}, 1024, 32*1024 - 1, "more than 31 sessions with 1024 each, of at most 50, exceed that", isolation.CheckWarn},
		"many":           {policy.Profile{Network: policy.NetworkEgress}, 1024, 32 * 1024, "more than 32 sessions with 1024 each", isolation.CheckOK},
		"a profile's":    {policy.Profile{Network: policy.NetworkEgress, NetworkConnections: 2000}, 10, 10 * 1024, "more than 5 sessions with 2000 each", isolation.CheckWarn},
		"no bound":       {policy.Profile{Network: policy.NetworkEgress}, 0, 5000, "more than 1 sessions with 5000 each", isolation.CheckWarn},
	} {
		cfg := &policy.Config{Profiles: map[string]policy.Profile{"off": {Network: policy.NetworkOff}, "one": tc.profile}, DefaultCaps: policy.NetworkCaps{Connections: tc.usual}}
		cfg.Sessions.Max = 50
		got := checkConnections(cfg, tc.tracked)
		if len(got) != min(len(tc.want), 1) || len(got) > 0 && (!strings.Contains(got[0].Detail, tc.want) || got[0].Level != tc.level) {
			t.Errorf("%s: got %+v, want len(got) == min(len(tc.want), 1) and (len(got) == 0 or got[0].Detail containing %q and got[0].Level == tc.level)",
				name, got, tc.want)
		}
	}
}
