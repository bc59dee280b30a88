// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/boxd-dev/boxd/internal/trace"
	"github.com/boxd-dev/boxd/supervisor/events"
)

// metricsFull returns a snapshot in which everything has a value.
func metricsFull() MetricsSnapshot {
	return MetricsSnapshot{
		Started: time.Unix(1000, 0), Ready: true, Degraded: 2, Sessions: map[MetricsGroup]int{{"ready", "default"}: 3, {"ending", "default"}: 1},
		Frozen: 1, Most: 64, Processes: 2, Running: 5, Leaks: map[string]int{"box": 0, "group": 1, "workspace": 0}, Waiting: new(4),
		Audit: MetricsAudit{Written: 10, Failed: 1, Lost: 2, Waiting: 3, Broken: true}, Pool: map[string]MetricsPool{"default": {1, 2}},
		Used: MetricsUsed{time.Minute, 1500 * time.Millisecond, 1 << 40, 12}, Spans: &trace.Counts{Sent: 5, Dropped: 6, Failed: 7},
	}
}

// fedMetrics feeds one event of each type and some requests.
func fedMetrics(t *testing.T) *Metrics {
	t.Helper()
	m := NewMetrics("1.2.3", metricsFull)
	log := events.New(4, m.Watch)
	for _, typ := range events.Types() {
		log.Add(t.Context(), events.Event{Type: typ, Reason: "why", Took: time.Second, Session: "secret-session", Principal: "uid:1234", Owner: "uid:1234"})
	}
	m.Request("GET /v1/status", 200)
	m.Missed(7)
	return m
}

func scrape(t *testing.T, m *Metrics) string {
	t.Helper()
	w := httptest.NewRecorder()
	m.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
	if w.Code != http.StatusOK {
		t.Fatalf("w.Code = %v, w.Body = %v, want w.Code == 200", w.Code, w.Body)
	}
	return w.Body.String()
}

func TestMetricsAreWellMade(t *testing.T) {
	t.Parallel()
	problems, err := testutil.GatherAndLint(fedMetrics(t).registry)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

func TestAMetricsScrapeReportsTheState(t *testing.T) {
	t.Parallel()
	text := scrape(t, fedMetrics(t))
	for _, want := range []string{
		`boxd_build_info{goversion="go`, `version="1.2.3"} 1`, `boxd_sessions{profile="default",state="ready"} 3`, "boxd_start_time_seconds 1000\n", "boxd_ready 1\n",
		`boxd_leaks{kind="group"} 1`, `boxd_session_starts_total{outcome="ok"} 1`, `boxd_session_starts_total{outcome="failed"} 1`, `boxd_session_ends_total{reason="why"} 1`,
		`boxd_execs_total{status="why"} 1`, "boxd_exec_duration_seconds_count 1\n", "boxd_session_start_duration_seconds_count 1\n", `boxd_requests_total{code="200",route="GET /v1/status"} 1`,
		"boxd_events_missed_total 7\n", "boxd_oom_kills_total 1\n", `boxd_quota_hits_total{quota="why"} 1`, `boxd_denials_total{layer="why"} 1`, "boxd_audit_broken 1\n",
		"boxd_config_last_reload_successful 0\n", `boxd_pool_ready{profile="default"} 1`, "boxd_process_restarts_total 1\n", "boxd_session_seconds_total 60\n",
		"boxd_cpu_seconds_total 1.5\n", "boxd_memory_byte_seconds_total 1.099511627776e+12\n", "boxd_disk_byte_seconds_total 12\n", `boxd_spans_total{outcome="dropped"} 6`, `boxd_spans_total{outcome="failed"} 7`, `boxd_spans_total{outcome="sent"} 5`, "go_goroutines",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the answer has no %q", want)
		}
	}
	for _, never := range []string{"secret-session", "uid:1234"} {
		if strings.Contains(text, never) {
			t.Errorf("the answer has %q, want text without never", never)
		}
	}
	if strings.Contains(scrape(t, NewMetrics("", func() MetricsSnapshot { return MetricsSnapshot{} })), "boxd_queue_waiting") {
		t.Error("a boxd without a queue has the metric of its length")
	}
	(*Metrics)(nil).Request("", 0) // a server without metrics counts nothing
	(*Metrics)(nil).Missed(1)
}
