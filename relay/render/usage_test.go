// SPDX-License-Identifier: Apache-2.0

package render

import (
	"strings"
	"testing"
	"time"

	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
)

func TestUsageIsListedByDays(t *testing.T) {
	t.Parallel()
	list := &api.UsageList{
		Holdings: []api.Holding{{Rule: "policy.ci.total_memory", Used: float64(512 * quantity.MiB), Allowed: float64(quantity.GiB)}, {Rule: "policy.ci.total_cpus", Used: 0.5, Allowed: 2}},
		Days: []api.UsageDays{
			{Day: "2026-11-22", Principal: "uid:0", Executions: 7, Refused: 1, Sessions: 2, SessionSeconds: 7200, CPUSeconds: 1.25, MemoryByteHours: float64(quantity.GiB), DiskByteHours: 0},
			{Day: "2026-11-21", Principal: "a\x1b[2Jb", Executions: 1},
		},
	}
	var out strings.Builder
	if err := Usage(&out, list, time.Date(2026, 11, 22, 23, 0, 0, 0, time.UTC)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"today", "root", "1.3s", "1.00 GiBh", "2026-11-21", "policy.ci.total_memory", "512MiB", "1GiB", "0.5"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("it lacks %s:\n%s", want, out.String())
		}
	}
	if strings.Contains(out.String(), "\x1b[2J") {
		t.Error("an escape sequence in a name reached the terminal")
	}
}

func TestADenialIsOneLine(t *testing.T) {
	t.Parallel()
	if got := Denial(&api.Problem{Detail: "none"}) + Denial(&api.Problem{Detail: "no (r.x)", Denial: &api.Denial{Rule: "r.x", Setting: "a larger r.x"}}); got != "" {
		t.Errorf("%q, and the refusal has named the rule", got)
	}
	for want, d := range map[string]api.Denial{
		"policy.ci.sessions (quota): 2 of 2 in use; operators can change it: a larger policy.ci.sessions": {Layer: "quota", Rule: "policy.ci.sessions", Used: "2", Allowed: "2", Setting: "a larger policy.ci.sessions"},
		"access.default_role (policy): user, needs admin; operators can change it: boxctl grant":          {Layer: "policy", Rule: "access.default_role", Used: "user", Allowed: "admin", Setting: "boxctl grant"},
		"images.max (quota): the limit is 100; operators can change it: images.max in box.toml":           {Layer: "quota", Rule: "images.max", Allowed: "100", Setting: "images.max in box.toml"},
		"policy.a.networks (policy): allows off; operators can change it: x":                              {Layer: "policy", Rule: "policy.a.networks", Allowed: "off", Setting: "x"},
		"": {Layer: "network", Rule: "network", Allowed: "off"}, // the host cannot do it, for any caller
	} {
		if got := Denial(&api.Problem{Denial: &d, Detail: "no (policy.x)"}); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
