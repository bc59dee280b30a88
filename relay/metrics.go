// SPDX-License-Identifier: Apache-2.0

// Metrics for Prometheus. Counters are fed by events; gauges are read at each scrape. No metric has a session id or
// principal as a label: their number is unbounded.

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

// Metrics are the metrics of one boxd.
type Metrics struct {
	registry *prometheus.Registry
	handler  http.Handler

	starts, ends, execs, denials, quotas, reloads, requests *prometheus.CounterVec

	restarts, ooms, missed, events prometheus.Counter

	startDuration, execDuration prometheus.Histogram
	reloaded, reloadOK          prometheus.Gauge
}

// Limits of scrapes.
const (
	maxScrapes    = 2 // at once
	scrapeTimeout = 5 * time.Second
)

// NewMetrics returns the metrics of a boxd of a version; take returns the current state at each scrape.
func NewMetrics(version string, take func() MetricsSnapshot) *Metrics {
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
		registry:      prometheus.NewRegistry(),
		starts:        counters("boxd_session_starts_total", "Session starts, by outcome.", "outcome"),
		ends:          counters("boxd_session_ends_total", "Ended sessions, by reason.", "reason"),
		execs:         counters("boxd_execs_total", "Ended executions, by status.", "status"),
		denials:       counters("boxd_denials_total", "Denied requests, by layer.", "layer"),
		quotas:        counters("boxd_quota_hits_total", "Quotas reached by sessions.", "quota"),
		reloads:       counters("boxd_config_reloads_total", "Configuration reloads, by outcome.", "outcome"),
		requests:      counters("boxd_requests_total", "Answered requests, by route and status code.", "route", "code"),
		restarts:      counter("boxd_process_restarts_total", "Restarts by the restart policy of a process."),
		ooms:          counter("boxd_oom_kills_total", "Programs killed for lack of memory."),
		missed:        counter("boxd_events_missed_total", "Events missed by slow readers."),
		events:        counter("boxd_events_total", "Events."),
		startDuration: histogram("boxd_session_start_duration_seconds", "Time from the request until the session is ready.", prometheus.ExponentialBuckets(0.001, 2.5, 12)),
		execDuration:  histogram("boxd_exec_duration_seconds", "Run time of executions.", prometheus.ExponentialBuckets(0.001, 4, 12)),
		reloaded:      gauge("boxd_config_last_reload_success_timestamp_seconds", "Time of the last successful reload."),
		reloadOK:      gauge("boxd_config_last_reload_successful", "1 if the last reload succeeded; else the previous configuration is in force."),
	}
	m.reloadOK.Set(1)
	m.reloaded.SetToCurrentTime()
	m.registry.MustRegister(
		m.starts, m.ends, m.execs, m.denials, m.quotas, m.reloads, m.requests, m.restarts, m.ooms, m.missed, m.events,
		m.startDuration, m.execDuration, m.reloaded, m.reloadOK, newSnapshots(version, runtime.Version(), take),
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	m.begin()
	m.handler = promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{
		ErrorHandling: promhttp.ContinueOnError, MaxRequestsInFlight: maxScrapes, Timeout: scrapeTimeout, DisableCompression: true,
	})
	return m
}

// begin creates the series that alerts query, before they first count.
func (m *Metrics) begin() {
	for _, outcome := range []string{started, failed} {
		m.starts.WithLabelValues(outcome)
	}
	for _, outcome := range []string{started, refused} {
		m.reloads.WithLabelValues(outcome)
	}
}

// Outcomes, as label values.
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
		m.startDuration.Observe(e.Took.Seconds())
	case events.SessionFailed:
		m.starts.WithLabelValues(failed).Inc()
	case events.SessionEnded:
		m.ends.WithLabelValues(e.Reason).Inc()
	case events.ExecEnded:
		m.execs.WithLabelValues(e.Reason).Inc()
		m.execDuration.Observe(e.Took.Seconds())
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

// Request counts a response; route is the pattern of a route, never a path.
func (m *Metrics) Request(route string, code int) {
	if m == nil {
		return
	}
	m.requests.WithLabelValues(route, strconv.Itoa(code)).Inc()
}

// Missed counts events that a slow reader has missed.
func (m *Metrics) Missed(n uint64) {
	if m != nil {
		m.missed.Add(float64(n))
	}
}

// ServeHTTP answers a scrape.
func (m *Metrics) ServeHTTP(w http.ResponseWriter, r *http.Request) { m.handler.ServeHTTP(w, r) }
