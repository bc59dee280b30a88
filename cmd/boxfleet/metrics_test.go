// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/relay/api"
)

// scrape gets the metrics of a gateway, which must contain these lines.
func scrape(t *testing.T, g *gateway, lines ...string) string {
	t.Helper()
	w := httptest.NewRecorder()
	g.metrics.handler.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
	if w.Code != http.StatusOK {
		t.Fatalf("w.Code = %d, w.Body = %s, want w.Code == 200", w.Code, w.Body)
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
	g.nodes["a"] = &nodeState{at: c.now().Add(-2 * time.Second), offset: 3 * time.Hour, FleetNode: api.FleetNode{
		Name: "a", State: api.FleetNodeReady, CPUs: 8, CPUsReserved: 2.5, Memory: 1 << 30, MemoryReserved: 1 << 20, Sessions: 3, MaxSessions: 10, Pids: 1000, PidsUsed: 100, IDRanges: 20, IDRangesUsed: 4,
		Pressure: api.Pressure{CPU: 12.5}, Agent: api.FleetAgent{Streams: 5, Failed: 6, Refused: 7, GivenUp: 8}, Owners: []api.FleetOwner{{Owner: "secret-owner", Sessions: 3}},
	}}
	g.nodes["b"] = &nodeState{at: c.now(), FleetNode: api.FleetNode{Name: "b", State: "of a later version"}}
	g.cordoned = map[string]*api.FleetCordon{"a": {}}
	ticket := g.queue.enter("ci")
	defer g.queue.leave(ticket)
	g.metrics.claimed(true, false, nil, time.Second)
	g.metrics.claimed(true, true, errors.New("the caller has hung up"), time.Second)
	g.metrics.claimed(false, false, nil, time.Second)
	g.metrics.claimed(false, false, full("there is no node"), time.Second)
	g.metrics.claimed(false, true, full("it has waited"), time.Second)
	g.metrics.claimed(false, true, errors.New("it has not"), time.Second)
	g.metrics.claimed(false, false, fault.Errorf(fault.Unavailable, "no").WithHint("later"), time.Second)
	g.metrics.refusals.WithLabelValues("b").Inc()
	text := scrape(
		t, g,
		`boxfleet_claims_total{outcome="placed"} 2`, `boxfleet_claims_total{outcome="rejected"} 1`, `boxfleet_claims_total{outcome="full"} 2`, `boxfleet_claims_total{outcome="gone"} 1`, `boxfleet_claims_total{outcome="failed"} 1`,
		`boxfleet_claim_duration_seconds_count 2`, `boxfleet_node_refusals_total{node="b"} 1`, `boxfleet_lost_total{kind="session"} 0`,
		`boxfleet_queue_waiting 1`, `boxfleet_queue_max 1024`, `boxfleet_nats_connected 1`, `boxfleet_ready 0`, `boxfleet_build_info{version="1.2"} 1`,
		`boxfleet_nodes{state="ready"} 1`, `boxfleet_nodes{state="lost"} 0`, `boxfleet_node_seen_seconds{node="a"} 2`, `boxfleet_node_clock_offset_seconds{node="a"} 10800`,
		`boxfleet_node_cordoned{node="a"} 1`, `boxfleet_node_cordoned{node="b"} 0`, `boxfleet_node_sessions{node="a"} 3`, `boxfleet_node_cpus_reserved{node="a"} 2.5`,
		`boxfleet_node_memory_reserved_bytes{node="a"} 1.048576e+06`, `boxfleet_node_pids_used{node="a"} 100`, `boxfleet_node_id_ranges_used{node="a"} 4`,
		`boxfleet_node_pressure_cpu_percent{node="a"} 12.5`, `boxfleet_node_streams{node="a"} 5`, `boxfleet_node_announcements_failed_total{node="a"} 6`,
		`boxfleet_node_fence_refusals_total{node="a"} 7`, `boxfleet_node_sessions_given_up_total{node="a"} 8`,
	)
	if strings.Contains(text, "secret-owner") {
		t.Error("the metrics name an owner")
	}
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(newSnapshot(g), g.metrics.claims, g.metrics.refusals, g.metrics.lost, g.metrics.duration)
	if problems, err := testutil.GatherAndLint(registry); err != nil || len(problems) > 0 {
		t.Errorf("problems = %v, err = %v, want no error and len(problems) == 0", problems, err)
	}
}

// hasStores expects a scrape to report these stores.
func hasStores(text string) (list []string) {
	for _, m := range regexp.MustCompile(`(?m)^boxfleet_store_bytes\{store="(\w+)"\}`).FindAllStringSubmatch(text, -1) {
		list = append(list, m[1])
	}
	return list
}

// The metrics report how full the configured stores are. A JetStream that does not answer, or is down, delays no scrape.
func TestMetricsOfStores(t *testing.T) {
	t.Parallel()
	server, js := newServer(t)
	g := aGateway(js, &clock{t: time.Unix(1e9, 0)})
	if got := hasStores(scrape(t, g)); len(got) > 0 {
		t.Errorf("no output is stored, and the metrics have %q, want len(got) == 0", got)
	}
	g.cfg.Snapshots, g.cfg.Images = 1<<20, 1<<21
	s, err := g.openArchives(t.Context(), snapshotBucket, "snapshots", 1<<19) // by a gateway with another size
	if err != nil {
		t.Fatal(err)
	}
	u, err := s.newUpload(t.Context(), "ci")
	if err == nil {
		err = u.write(t.Context(), strings.NewReader(strings.Repeat("x", 1<<18)), 1<<19)
	}
	if err != nil {
		t.Fatal(err)
	}
	is, err := s.stream.Info(t.Context())
	if err != nil || is.State.Bytes < 1<<18 {
		t.Fatalf("%v: is = %+v, want no error and is.State.Bytes >= 1 << 18", err, is)
	}
	var text string
	boxtest.Eventually(t, "JetStream has answered in time", func() bool {
		text = scrape(t, g)
		return len(hasStores(text)) == 2
	})
	for _, line := range []string{fmt.Sprintf(`boxfleet_store_bytes{store="snapshots"} %d`, is.State.Bytes), `boxfleet_store_max_bytes{store="snapshots"} 524288`, `boxfleet_store_bytes{store="images"} 0`, `boxfleet_store_max_bytes{store="images"} 2.097152e+06`} {
		if !strings.Contains("\n"+text, "\n"+line+"\n") {
			t.Errorf("there is no line %q in:\n%s", line, text)
		}
	}
	silent, err := jetstream.NewWithAPIPrefix(js.Conn(), "silent")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.Conn().Subscribe("silent.>", func(*nats.Msg) {}); err != nil {
		t.Fatal(err)
	}
	g.js = silent
	if got := hasStores(scrape(t, g, "boxfleet_nats_connected 1")); len(got) > 0 {
		t.Errorf("JetStream does not answer, and the metrics have %q, want len(got) == 0", got)
	}
	gone := js.Conn().StatusChanged(nats.RECONNECTING, nats.CLOSED)
	server.Shutdown()
	select {
	case <-gone:
	case <-time.After(time.Minute):
		t.Fatal("the client has not noticed that the NATS server is gone")
	}
	if got := hasStores(scrape(t, g, "boxfleet_nats_connected 0")); len(got) > 0 {
		t.Errorf("NATS is away, and the metrics have %q, want len(got) == 0", got)
	}
}
