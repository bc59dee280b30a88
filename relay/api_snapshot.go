// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/boxd-dev/boxd/internal/trace"
)

// MetricsSnapshot is the state for metrics at one moment.
type MetricsSnapshot struct {
	Started   time.Time // start of boxd
	Ready     bool      // sessions can start
	Degraded  int       // number of degraded components
	Sessions  map[MetricsGroup]int
	Frozen    int
	Most      int // maximum number of sessions
	Processes int
	Running   int            // executions and processes
	Leaks     map[string]int // leaked host objects without a session, by kind
	Audit     MetricsAudit
	Waiting   *int                   // requests in the queue; nil: there is none
	Pool      map[string]MetricsPool // by profile
	Used      MetricsUsed
	Spans     *trace.Counts // nil: tracing is off
}

// MetricsGroup is the sessions of one state and profile.
type MetricsGroup struct{ State, Profile string }

// MetricsPool is the pre-started boxes of a profile.
type MetricsPool struct{ Ready, Wanted int }

// MetricsUsed is the usage of all sessions together since this boxd started.
type MetricsUsed struct {
	Sessions, CPU time.Duration
	Memory, Disk  float64 // byte-seconds: of memory limits, and of data in workspaces with a quota
}

// MetricsAudit is the state of the audit log.
type MetricsAudit struct {
	Written, Failed, Lost uint64
	Waiting               int
	Broken                bool
}

// snapshots makes metrics from a snapshot at each scrape: nothing has to be deleted when a session ends.
type snapshots struct {
	take            func() MetricsSnapshot
	version, goName string

	build, started, ready, degraded, sessions, frozen, limit, processes, running, leaks, waiting *prometheus.Desc

	poolReady, poolWanted, auditRecords, auditFailures, auditLost, auditWaiting, auditBroken *prometheus.Desc

	usedSessions, usedCPU, usedMemory, usedDisk, spans *prometheus.Desc
}

func newSnapshots(version, goName string, take func() MetricsSnapshot) *snapshots {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	return &snapshots{
		take: take, version: version, goName: goName,
		build:         desc("boxd_build_info", "Version of boxd; always 1.", "version", "goversion"),
		started:       desc("boxd_start_time_seconds", "Start time of boxd. Counters are reset at a start; boxes keep running."),
		ready:         desc("boxd_ready", "1 if sessions can start."),
		degraded:      desc("boxd_degraded", "Number of current problems; boxctl status lists them."),
		sessions:      desc("boxd_sessions", "Sessions, by state and profile.", "state", "profile"),
		frozen:        desc("boxd_sessions_frozen", "Frozen sessions."),
		limit:         desc("boxd_sessions_max", "Maximum number of sessions (sessions.max)."),
		processes:     desc("boxd_processes", "Running processes with an id."),
		running:       desc("boxd_running", "Running executions and processes."),
		leaks:         desc("boxd_leaks", "Leaked resources on the host that belong to no session; should be 0.", "kind"),
		waiting:       desc("boxd_queue_waiting", "Requests waiting for room."),
		poolReady:     desc("boxd_pool_ready", "Pre-started boxes, by profile.", "profile"),
		poolWanted:    desc("boxd_pool_wanted", "Wanted pre-started boxes, by profile.", "profile"),
		auditRecords:  desc("boxd_audit_records_total", "Audit records written."),
		auditFailures: desc("boxd_audit_failures_total", "Failed attempts to write an audit record."),
		auditLost:     desc("boxd_audit_lost", "Lost audit records that are not yet counted in the log."),
		auditWaiting:  desc("boxd_audit_waiting", "Audit records waiting in memory to be written."),
		auditBroken:   desc("boxd_audit_broken", "1 if audit records cannot be written."),
		usedSessions:  desc("boxd_session_seconds_total", "Total lifetime of sessions."),
		usedCPU:       desc("boxd_cpu_seconds_total", "Total CPU time of sessions."),
		usedMemory:    desc("boxd_memory_byte_seconds_total", "Memory limits of sessions, multiplied by time."),
		usedDisk:      desc("boxd_disk_byte_seconds_total", "Content of workspaces with a quota, multiplied by time."),
		spans:         desc("boxd_spans_total", "Spans of traces, by outcome: sent, dropped (too many waited) or failed (the collector did not take them).", "outcome"),
	}
}

// Describe lists the metrics.
func (s *snapshots) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		s.build, s.started, s.ready, s.degraded, s.sessions, s.frozen, s.limit, s.processes, s.running, s.leaks, s.waiting,
		s.poolReady, s.poolWanted, s.auditRecords, s.auditFailures, s.auditLost, s.auditWaiting, s.auditBroken,
		s.usedSessions, s.usedCPU, s.usedMemory, s.usedDisk, s.spans,
	} {
		to <- d
	}
}

// Collect takes one snapshot for all metrics.
func (s *snapshots) Collect(to chan<- prometheus.Metric) {
	now := s.take()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	counter := func(d *prometheus.Desc, v float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, labels...)
	}
	gauge(s.build, 1, s.version, s.goName)
	gauge(s.started, float64(now.Started.UnixMilli())/1000)
	gauge(s.ready, is(now.Ready))
	gauge(s.degraded, float64(now.Degraded))
	for group, n := range now.Sessions {
		gauge(s.sessions, float64(n), group.State, group.Profile)
	}
	gauge(s.frozen, float64(now.Frozen))
	gauge(s.limit, float64(now.Most))
	gauge(s.processes, float64(now.Processes))
	gauge(s.running, float64(now.Running))
	for kind, n := range now.Leaks {
		gauge(s.leaks, float64(n), kind)
	}
	if now.Waiting != nil {
		gauge(s.waiting, float64(*now.Waiting))
	}
	for profile, p := range now.Pool {
		gauge(s.poolReady, float64(p.Ready), profile)
		gauge(s.poolWanted, float64(p.Wanted), profile)
	}
	counter(s.auditRecords, float64(now.Audit.Written))
	counter(s.auditFailures, float64(now.Audit.Failed))
	gauge(s.auditLost, float64(now.Audit.Lost))
	gauge(s.auditWaiting, float64(now.Audit.Waiting))
	gauge(s.auditBroken, is(now.Audit.Broken))
	counter(s.usedSessions, now.Used.Sessions.Seconds())
	counter(s.usedCPU, now.Used.CPU.Seconds())
	counter(s.usedMemory, now.Used.Memory)
	counter(s.usedDisk, now.Used.Disk)
	if n := now.Spans; n != nil {
		counter(s.spans, float64(n.Sent), "sent")
		counter(s.spans, float64(n.Dropped), "dropped")
		counter(s.spans, float64(n.Failed), "failed")
	}
}

func is(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
