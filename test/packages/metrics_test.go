// SPDX-License-Identifier: Apache-2.0

package packages_test

import (
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay"
)

// promtool returns Prometheus's promtool, extracted from its package: installing that would start a server on this host.
func promtool(t *testing.T) string {
	t.Helper()
	if found, err := exec.LookPath("promtool"); err == nil {
		return found
	}
	dir := t.TempDir()
	get := exec.CommandContext(t.Context(), "sh", "-c", "apt-get -qq update && apt-get -qq download prometheus && dpkg -x prometheus_*.deb .")
	get.Dir = dir
	if out, err := get.CombinedOutput(); err != nil {
		boxtest.Missing(t, "promtool, of the package prometheus: "+string(out))
	}
	return filepath.Join(dir, "usr/bin/promtool")
}

type rule struct {
	Record string `yaml:"record"`
	Expr   string `yaml:"expr"`
}

// made has the names of programs whose packages have alert rules and a dashboard.
func made() []string { return []string{"boxd", "boxfleet"} }

// dashboard writes the expressions of a program's dashboard as rules, with values for Grafana's variables.
func dashboard(t *testing.T, program string) string {
	t.Helper()
	var rules []rule
	for _, expr := range boxtest.PanelExpressions(t, "../../packaging/metrics/"+program+"-dashboard.json") {
		rules = append(rules, rule{"dashboard", strings.NewReplacer("$__rate_interval", "5m", "$instance", "all").Replace(expr)})
	}
	if len(rules) < 5 {
		t.Fatalf("%d expressions in the dashboard of %s", len(rules), program)
	}
	type group struct {
		Name  string `yaml:"name"`
		Rules []rule `yaml:"rules"`
	}
	data, err := yaml.Marshal(map[string][]group{"groups": {{"dashboard", rules}}})
	path := filepath.Join(t.TempDir(), "dashboard.yaml")
	if err == nil {
		err = os.WriteFile(path, data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// Prometheus can read the rules, the expressions of dashboards and boxd's metrics, and the rules fire when they should. Those of a
// gateway are read in cmd/boxfleet.
func TestPrometheusReadsWhatIsMadeForIt(t *testing.T) {
	tool := promtool(t)
	for _, program := range made() {
		if printed, err := check(t, tool, "check", "rules", "../../packaging/metrics/"+program+"-alerts.yaml", dashboard(t, program)); err != nil {
			t.Errorf("%v: %s", err, printed)
		}
		if printed, err := check(t, tool, "test", "rules", examples(program)); err != nil {
			t.Errorf("%v: %s", err, printed)
		}
	}
	broken := filepath.Join(t.TempDir(), "broken.yaml")
	if err := os.WriteFile(broken, []byte("groups: [{name: a, rules: [{record: b, expr: 'sum('}]}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := check(t, tool, "check", "rules", broken); err == nil {
		t.Error("promtool accepts an invalid expression")
	}
	w := httptest.NewRecorder()
	relay.NewMetrics("1.2.3", func() relay.MetricsSnapshot { return relay.MetricsSnapshot{Started: time.Now(), Ready: true} }).
		ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
	cmd := exec.CommandContext(t.Context(), tool, "check", "metrics")
	cmd.Stdin = w.Body
	if printed, err := cmd.CombinedOutput(); err != nil || len(printed) > 0 {
		t.Errorf("%v: printed = %s, want no error and len(printed) == 0", err, printed)
	}
}

// examples is the file with series for which each rule of a program fires, and for which it does not.
func examples(program string) string {
	if program == "boxd" {
		return "testdata/alerts.yaml"
	}
	return "testdata/" + program + "-alerts.yaml"
}

// No rule is without an example of both, when it is quiet and when it fires.
func TestEachAlertIsSeenQuietAndFiring(t *testing.T) {
	t.Parallel()
	for _, program := range made() {
		var file struct {
			Tests []struct {
				Alerts []struct {
					Name  string `yaml:"alertname"`
					Fires []any  `yaml:"exp_alerts"`
				} `yaml:"alert_rule_test"`
			}
		}
		data, err := os.ReadFile(examples(program))
		if err == nil {
			err = yaml.Unmarshal(data, &file)
		}
		if err != nil {
			t.Fatal(err)
		}
		quiet, fires := map[string]bool{}, map[string]bool{}
		for _, test := range file.Tests {
			for _, a := range test.Alerts {
				quiet[a.Name] = quiet[a.Name] || len(a.Fires) == 0
				fires[a.Name] = fires[a.Name] || len(a.Fires) > 0
			}
		}
		rules := boxtest.Alerts(t, "../../packaging/metrics/"+program+"-alerts.yaml")
		for _, a := range rules {
			if !quiet[a.Name] || !fires[a.Name] {
				t.Errorf("%s: seen quiet: %v, firing: %v", a.Name, quiet[a.Name], fires[a.Name])
			}
		}
		if len(rules) < 10 || len(rules) != len(quiet) {
			t.Errorf("%d rules of %s, and examples of %d", len(rules), program, len(quiet))
		}
	}
}
