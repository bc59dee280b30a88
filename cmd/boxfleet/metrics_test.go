// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/relay/api"
)

// scrape gets the metrics of a gateway, which must contain these lines.
func scrape(t *testing.T, g *gateway, lines ...string) string {
	t.Helper()
	w := httptest.NewRecorder()
	g.metrics.handler.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
	if w.Code != http.StatusOK {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	for _, line := range lines {
		if !strings.Contains("\n"+w.Body.String(), "\n"+line+"\n") {
			t.Errorf("there is no line %q in:\n%s", line, w.Body)
		}
	}
	return w.Body.String()
}

// Claims, refusals, the queue and the announcements of nodes are in the metrics, with valid names and forms for Prometheus.
// Owners are not: their number is unbounded.
func TestMetricsOfAGateway(t *testing.T) {
	t.Parallel()
	c := &clock{t: time.Unix(1e9, 0)}
	g := aGateway(startServer(t), c)
	g.nodes["a"] = &seen{at: c.now().Add(-2 * time.Second), offset: 3 * time.Hour, FleetNode: api.FleetNode{
		Name: "a", State: api.FleetNodeReady, CPUs: 8, CPUsReserved: 2.5, Memory: 1 << 30, MemoryReserved: 1 << 20, Sessions: 3, MaxSessions: 10, Pids: 1000, PidsUsed: 100, IDRanges: 20, IDRangesUsed: 4,
		Pressure: api.Pressure{CPU: 12.5}, Agent: api.FleetAgent{Streams: 5, Failed: 6, Refused: 7, GivenUp: 8}, Owners: []api.FleetOwner{{Owner: "secret-owner", Sessions: 3}},
	}}
	g.nodes["b"] = &seen{at: c.now(), FleetNode: api.FleetNode{Name: "b", State: "of a later version"}}
	g.cordoned = map[string]*api.FleetCordon{"a": {}}
	ticket := g.queue.enter("ci")
	defer g.queue.leave(ticket)
	g.metrics.claimed(true, nil, time.Second)
	g.metrics.claimed(true, errors.New("the caller has hung up"), time.Second)
	g.metrics.claimed(false, nil, time.Second)
	g.metrics.claimed(false, full("there is no node"), time.Second)
	g.metrics.claimed(false, fault.Errorf(fault.Unavailable, "no").WithHint("later"), time.Second)
	g.metrics.refusals.WithLabelValues("b").Inc()
	text := scrape(
		t, g,
		`boxfleet_claims_total{outcome="placed"} 2`, `boxfleet_claims_total{outcome="rejected"} 1`, `boxfleet_claims_total{outcome="full"} 1`, `boxfleet_claims_total{outcome="failed"} 1`,
		`boxfleet_claim_duration_seconds_count 2`, `boxfleet_node_refusals_total{node="b"} 1`, `boxfleet_lost_total{kind="session"} 0`,
		`boxfleet_queue_waiting 1`, `boxfleet_queue_max 1024`, `boxfleet_nats_connected 1`, `boxfleet_ready 0`, `boxfleet_build_info{version="1.2"} 1`,
		`boxfleet_nodes{state="ready"} 1`, `boxfleet_nodes{state="lost"} 0`, `boxfleet_node_seen_seconds{node="a"} 2`, `boxfleet_node_clock_offset_seconds{node="a"} 10800`,
		`boxfleet_node_cordoned{node="a"} 1`, `boxfleet_node_cordoned{node="b"} 0`, `boxfleet_node_sessions{node="a"} 3`, `boxfleet_node_cpus_reserved{node="a"} 2.5`,
		`boxfleet_node_memory_reserved_bytes{node="a"} 1.048576e+06`, `boxfleet_node_pids_used{node="a"} 100`, `boxfleet_node_id_ranges_used{node="a"} 4`,
		`boxfleet_node_pressure_cpu_percent{node="a"} 12.5`, `boxfleet_node_streams{node="a"} 5`, `boxfleet_node_announcements_failed_total{node="a"} 6`,
		`boxfleet_node_fence_refusals_total{node="a"} 7`, `boxfleet_node_sessions_given_up_total{node="a"} 8`,
	)
	if strings.Contains(text, "secret-owner") {
		t.Error("an owner is told")
	}
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(newSnapshot(g), g.metrics.claims, g.metrics.refusals, g.metrics.lost, g.metrics.took)
	if problems, err := testutil.GatherAndLint(registry); err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
}
