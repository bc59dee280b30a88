// SPDX-License-Identifier: Apache-2.0

package boxtest

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.yaml.in/yaml/v3"
)

// Alert is an alert rule of Prometheus.
type Alert struct {
	Name        string            `yaml:"alert"`
	Expr        string            `yaml:"expr"`
	Labels      map[string]string `yaml:"labels"`
	Annotations map[string]string `yaml:"annotations"`
}

// Alerts reads the alert rules of a file.
func Alerts(t testing.TB, path string) (list []Alert) {
	t.Helper()
	var rules struct {
		Groups []struct{ Rules []Alert }
	}
	data, err := os.ReadFile(path)
	if err == nil {
		err = yaml.Unmarshal(data, &rules)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			if r.Name == "" || r.Expr == "" || r.Annotations["summary"] == "" {
				t.Errorf(`a rule without a name, an expression or a summary: r = %+v, want r.Name != "" and r.Expr != "" and r.Annotations["summary"] != ""`,
					r)
			}
			list = append(list, r)
		}
	}
	return list
}

// PanelExpressions reads the expressions of a dashboard of Grafana.
func PanelExpressions(t testing.TB, path string) (list []string) {
	t.Helper()
	var board struct {
		Panels []struct{ Targets []struct{ Expr string } }
	}
	data, err := os.ReadFile(path)
	if err == nil {
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

var (
	metricName = regexp.MustCompile(`\b(boxd|boxfleet)_[a-z0-9_]+`)
	selector   = regexp.MustCompile(`\b((?:boxd|boxfleet)_[a-z0-9_]+)\{([^}]*)\}`)
	labelName  = regexp.MustCompile(`(?:^|,)\s*([a-z_]+)\s*[=!]`)
)

// AskForWhatThereIs checks that alert rules and a dashboard use metrics and labels that are served.
func AskForWhatThereIs(t testing.TB, served prometheus.Gatherer, alerts, dashboard string) {
	t.Helper()
	families, err := served.Gather()
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
	all := PanelExpressions(t, dashboard)
	for _, a := range Alerts(t, alerts) {
		all = append(all, a.Expr)
	}
	if len(all) < 20 {
		t.Errorf("only %d expressions", len(all))
	}
	for _, expr := range all {
		for _, name := range metricName.FindAllString(expr, -1) {
			if known[name] == nil {
				t.Errorf("%s uses the metric %s, which does not exist", expr, name)
			}
		}
		for _, found := range selector.FindAllStringSubmatch(expr, -1) {
			for _, label := range labelName.FindAllStringSubmatch(found[2], -1) {
				if !slices.Contains(known[found[1]], label[1]) {
					t.Errorf("%s uses the label %s, which %s does not have", expr, label[1], found[1])
				}
			}
		}
		if strings.Count(expr, "(") != strings.Count(expr, ")") {
			t.Errorf("%s is not balanced", expr)
		}
	}
}
