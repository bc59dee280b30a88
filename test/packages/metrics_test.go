// SPDX-License-Identifier: Apache-2.0

package packages_test

import (
	"encoding/json"
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

// dashboard writes the dashboard's expressions as rules, with values for Grafana's variables.
func dashboard(t *testing.T) string {
	t.Helper()
	var board struct {
		Panels []struct{ Targets []struct{ Expr string } }
	}
	data, err := os.ReadFile("../../packaging/metrics/boxd-dashboard.json")
	if err == nil {
		err = json.Unmarshal(data, &board)
	}
	if err != nil {
		t.Fatal(err)
	}
	var rules []rule
	for _, p := range board.Panels {
		for _, target := range p.Targets {
			rules = append(rules, rule{"dashboard", strings.NewReplacer("$__rate_interval", "5m", "$instance", "all").Replace(target.Expr)})
		}
	}
	if len(rules) < 5 {
		t.Fatalf("%d expressions in the dashboard", len(rules))
	}
	type group struct {
		Name  string `yaml:"name"`
		Rules []rule `yaml:"rules"`
	}
	data, err = yaml.Marshal(map[string][]group{"groups": {{"dashboard", rules}}})
	path := filepath.Join(t.TempDir(), "dashboard.yaml")
	if err == nil {
		err = os.WriteFile(path, data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// Prometheus can read the rules, the dashboard's expressions and boxd's metrics, and the rules fire when they should.
func TestPrometheusReadsWhatIsMadeForIt(t *testing.T) {
	tool := promtool(t)
	if said, err := check(t, tool, "check", "rules", "../../packaging/metrics/boxd-alerts.yaml", dashboard(t)); err != nil {
		t.Errorf("%v: %s", err, said)
	}
	if said, err := check(t, tool, "test", "rules", "testdata/alerts.yaml"); err != nil {
		t.Errorf("%v: %s", err, said)
	}
	broken := filepath.Join(t.TempDir(), "broken.yaml")
	if err := os.WriteFile(broken, []byte("groups: [{name: a, rules: [{record: b, expr: 'sum('}]}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := check(t, tool, "check", "rules", broken); err == nil {
		t.Error("a broken expression passes")
	}
	w := httptest.NewRecorder()
	relay.NewMetrics("1.2.3", func() relay.MetricsSnapshot { return relay.MetricsSnapshot{Started: time.Now(), Ready: true} }).
		ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
	cmd := exec.CommandContext(t.Context(), tool, "check", "metrics")
	cmd.Stdin = w.Body
	if said, err := cmd.CombinedOutput(); err != nil || len(said) > 0 {
		t.Errorf("%v: %s", err, said)
	}
}
