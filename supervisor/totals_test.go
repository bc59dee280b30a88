// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/internal/quantity"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/supervisor/policy"
)

func TestDoctorSaysWhatKeepsTotals(t *testing.T) {
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
			t.Errorf("%s: %+v", name, got)
		}
	}
}
