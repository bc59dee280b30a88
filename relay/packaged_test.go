// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

var (
	named  = regexp.MustCompile(`\bboxd_[a-z0-9_]+`)
	labels = regexp.MustCompile(`\bboxd_[a-z0-9_]+\{([a-z]+)=`)
)

// expressions returns the expressions of the alert rules and the dashboard.
func expressions(t *testing.T) (list []string) {
	t.Helper()
	var rules struct {
		Groups []struct {
			Rules []struct{ Alert, Expr string }
		}
	}
	data, err := os.ReadFile("../packaging/metrics/boxd-alerts.yaml")
	if err == nil {
		err = yaml.Unmarshal(data, &rules)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			if r.Alert == "" || r.Expr == "" {
				t.Errorf("a rule without a name or an expression: %+v", r)
			}
			list = append(list, r.Expr)
		}
	}
	var board struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if data, err = os.ReadFile("../packaging/metrics/boxd-dashboard.json"); err == nil {
		err = json.Unmarshal(data, &board)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range board.Panels {
		for _, target := range p.Targets {
			list = append(list, target.Expr)
		}
	}
	return list
}

// Alert rules and the dashboard use existing metrics and labels. Prometheus reads them in test/packages.
func TestAlertsAndDashboardAskForWhatThereIs(t *testing.T) {
	t.Parallel()
	m := happened(t)
	families, err := m.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	known := map[string][]string{}
	for _, f := range families {
		names := []string{f.GetName()}
		if f.GetMetric()[0].GetHistogram() != nil {
			names = []string{f.GetName() + "_bucket", f.GetName() + "_sum", f.GetName() + "_count"}
		}
		for _, name := range names {
			known[name] = []string{}
			for _, l := range f.GetMetric()[0].GetLabel() {
				known[name] = append(known[name], l.GetName())
			}
		}
	}
	all := expressions(t)
	if len(all) < 20 {
		t.Errorf("only %d expressions", len(all))
	}
	for _, expr := range all {
		for _, name := range named.FindAllString(expr, -1) {
			if known[name] == nil {
				t.Errorf("%s asks for %s, which there is not", expr, name)
			}
		}
		for _, found := range labels.FindAllStringSubmatch(expr, -1) {
			if name := named.FindString(found[0]); !slices.Contains(known[name], found[1]) {
				t.Errorf("%s asks for the label %s of %s, which that has not", expr, found[1], name)
			}
		}
		if strings.Count(expr, "(") != strings.Count(expr, ")") {
			t.Errorf("%s is not balanced", expr)
		}
	}
}
