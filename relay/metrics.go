// SPDX-License-Identifier: Apache-2.0

// Metrics for Prometheus. Counters are fed by events; gauges are looked up when they are scraped. No metric has the
// id of a session or principal as a label: their number has no bound.

package relay

import (
	"context"
	"net/http"
	"runtime"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/boxd-dev/boxd/supervisor/events"
)

// Metrics are those of one boxd.
type Metrics struct {
	registry *prometheus.Registry
	handler  http.Handler

	starts, ends, execs, denials, quotas, reloads, requests *prometheus.CounterVec

	restarts, ooms, missed, events prometheus.Counter

	startTook, execTook prometheus.Histogram
	reloaded, reloadOK  prometheus.Gauge
}

// Bounds of a scrape.
const (
	maxScrapes     = 2 // at once
	scrapePatience = 5 * time.Second
)

// NewMetrics returns the metrics of a boxd of a version; look is asked at each scrape how things are.
func NewMetrics(version string, look func() MetricsSnapshot) *Metrics {
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	}
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets})
	}
	m := &Metrics{
		registry:  prometheus.NewRegistry(),
		starts:    counters("boxd_session_starts_total", "Sessions that were to be started, by what came of it.", "outcome"),
		ends:      counters("boxd_session_ends_total", "Sessions that have ended, by the reason.", "reason"),
		execs:     counters("boxd_execs_total", "Executions that have ended, by their status.", "status"),
		denials:   counters("boxd_denials_total", "Requests that were refused for what they were or who sent them, by the layer that did.", "layer"),
		quotas:    counters("boxd_quota_hits_total", "Times that a session has reached a quota.", "quota"),
		reloads:   counters("boxd_config_reloads_total", "Times that the configuration was read again, by what came of it.", "outcome"),
		requests:  counters("boxd_requests_total", "Requests that were answered, by route and status code.", "route", "code"),
		restarts:  counter("boxd_process_restarts_total", "Programs that were started again by the restart policy of their process."),
		ooms:      counter("boxd_oom_kills_total", "Programs that ended because memory was used up."),
		missed:    counter("boxd_events_missed_total", "Events that a reader was too late for."),
		events:    counter("boxd_events_total", "Events that have happened."),
		startTook: histogram("boxd_session_start_duration_seconds", "Time from the request to a session that is ready.", prometheus.ExponentialBuckets(0.001, 2.5, 12)),
		execTook:  histogram("boxd_exec_duration_seconds", "Time that executions have run.", prometheus.ExponentialBuckets(0.001, 4, 12)),
		reloaded:  gauge("boxd_config_last_reload_success_timestamp_seconds", "When the configuration in force was read."),
		reloadOK:  gauge("boxd_config_last_reload_successful", "Whether the configuration was in order when it was last read; if not, the one before is in force."),
	}
	m.reloadOK.Set(1)
	m.reloaded.SetToCurrentTime()
	m.registry.MustRegister(
		m.starts, m.ends, m.execs, m.denials, m.quotas, m.reloads, m.requests, m.restarts, m.ooms, m.missed, m.events,
		m.startTook, m.execTook, m.reloaded, m.reloadOK, newSnapshots(version, runtime.Version(), look),
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	m.begin()
	m.handler = promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{
		ErrorHandling: promhttp.ContinueOnError, MaxRequestsInFlight: maxScrapes, Timeout: scrapePatience, DisableCompression: true,
	})
	return m
}

// begin makes the rows that an alert asks for exist before they first count.
func (m *Metrics) begin() {
	for _, outcome := range []string{started, failed} {
		m.starts.WithLabelValues(outcome)
	}
	for _, outcome := range []string{started, refused} {
		m.reloads.WithLabelValues(outcome)
	}
}

// What came of something.
const (
	started = "ok"
	failed  = "failed"
	refused = "refused"
)

// Watch counts an event.
func (m *Metrics) Watch(_ context.Context, e *events.Event) {
	m.events.Inc()
	//nolint:exhaustive // of the others nothing is counted but that they have been
	switch e.Type {
	case events.SessionStarted:
		m.starts.WithLabelValues(started).Inc()
		m.startTook.Observe(e.Took.Seconds())
	case events.SessionFailed:
		m.starts.WithLabelValues(failed).Inc()
	case events.SessionEnded:
		m.ends.WithLabelValues(e.Reason).Inc()
	case events.ExecEnded:
		m.execs.WithLabelValues(e.Reason).Inc()
		m.execTook.Observe(e.Took.Seconds())
	case events.ProcessRestarted:
		m.restarts.Inc()
	case events.Denied:
		m.denials.WithLabelValues(e.Reason).Inc()
	case events.OOM:
		m.ooms.Inc()
	case events.Quota:
		m.quotas.WithLabelValues(e.Reason).Inc()
	case events.ConfigReloaded:
		m.reloads.WithLabelValues(started).Inc()
		m.reloadOK.Set(1)
		m.reloaded.SetToCurrentTime()
	case events.ConfigRefused:
		m.reloads.WithLabelValues(refused).Inc()
		m.reloadOK.Set(0)
	}
}

// Request counts an answer; route is the pattern of a route, never a path.
func (m *Metrics) Request(route string, code int) {
	if m == nil {
		return
	}
	m.requests.WithLabelValues(route, strconv.Itoa(code)).Inc()
}

// Missed counts events that a reader was too late for.
func (m *Metrics) Missed(n uint64) {
	if m != nil {
		m.missed.Add(float64(n))
	}
}

// ServeHTTP answers a scrape.
func (m *Metrics) ServeHTTP(w http.ResponseWriter, r *http.Request) { m.handler.ServeHTTP(w, r) }
