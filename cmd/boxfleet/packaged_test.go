// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
)

const (
	packagedAlerts    = "../../packaging/metrics/boxfleet-alerts.yaml"
	packagedDashboard = "../../packaging/metrics/boxfleet-dashboard.json"
)

// Alert rules and the dashboard use metrics and labels of a gateway. Prometheus reads them in test/packages.
func TestAlertsAndDashboardAskForWhatAGatewayServes(t *testing.T) {
	t.Parallel()
	c := &clock{t: time.Unix(1e9, 0)}
	g := aGateway(startServer(t), c)
	g.cfg.Snapshots = 1 << 20
	g.nodes["a"] = &nodeState{at: c.now(), FleetNode: api.FleetNode{Name: "a", State: api.FleetNodeReady}}
	g.metrics.refusals.WithLabelValues("a").Inc()
	registry := prometheus.NewRegistry()
	registry.MustRegister(newSnapshot(g), g.metrics.claims, g.metrics.refusals, g.metrics.lost, g.metrics.duration)
	boxtest.Eventually(t, "JetStream has answered in time", func() bool {
		n, err := testutil.GatherAndCount(registry, "boxfleet_store_bytes")
		return err == nil && n > 0
	})
	boxtest.AskForWhatThereIs(t, registry, packagedAlerts, packagedDashboard)
}

// The description of an alert says what to do, and the guide and the manual page say what it means.
func TestAlertsAreExplained(t *testing.T) {
	t.Parallel()
	guide, err := os.ReadFile("../../docs/guide/fleet.md")
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(manualPage)
	if err != nil {
		t.Fatal(err)
	}
	alerts := boxtest.Alerts(t, packagedAlerts)
	for _, a := range alerts {
		if severity := a.Labels["severity"]; severity != "critical" && severity != "warning" {
			t.Errorf("%s has the severity %q", a.Name, severity)
		}
		if a.Annotations["description"] == "" {
			t.Errorf("%s does not say what to do", a.Name)
		}
		if !strings.Contains(string(guide), "\n| `"+a.Name+"` | ") || !strings.Contains(string(page), "\n.It Cm "+a.Name+"\n") {
			t.Errorf("the guide or the manual page does not explain %s", a.Name)
		}
	}
	if explained := strings.Count(string(guide), "\n| `Boxfleet"); explained != len(alerts) {
		t.Errorf("the guide explains %d alerts, and there are %d, want explained == len(alerts)",
			explained, len(alerts))
	}
	if explained := strings.Count(string(page), "\n.It Cm Boxfleet"); explained != len(alerts) {
		t.Errorf("the manual page explains %d alerts, and there are %d, want explained == len(alerts)",
			explained, len(alerts))
	}
}
