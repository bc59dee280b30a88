// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// MetricsSnapshot is how things are at one moment.
type MetricsSnapshot struct {
	Started   time.Time // when boxd was
	Ready     bool      // sessions can start
	Degraded  int       // things that are not as they should be
	Sessions  map[MetricsGroup]int
	Frozen    int
	Most      int // sessions that may be
	Processes int
	Running   int            // executions and processes
	Leaks     map[string]int // what exists on the host and no session has, by what it is
	Audit     MetricsAudit
	Waiting   *int                   // requests in the queue; nil: there is none
	Pool      map[string]MetricsPool // by profile
	Used      MetricsUsed
}

// MetricsGroup is sessions of one state and profile.
type MetricsGroup struct{ State, Profile string }

// MetricsPool is the boxes of a profile that wait for a session.
type MetricsPool struct{ Ready, Wanted int }

// MetricsUsed is what all sessions together have used since this boxd began.
type MetricsUsed struct {
	Sessions, CPU time.Duration
	Memory, Disk  float64 // byte-seconds: of the limits of memory, and of what was in workspaces with a quota
}

// MetricsAudit is how the audit log is.
type MetricsAudit struct {
	Written, Failed, Lost uint64
	Waiting               int
	Broken                bool
}

// snapshots makes metrics of snapshots, as they are asked for: nothing has to be deleted when a session ends.
type snapshots struct {
	look            func() MetricsSnapshot
	version, goName string

	build, started, ready, degraded, sessions, frozen, most, processes, running, leaks, waiting *prometheus.Desc

	poolReady, poolWanted, auditRecords, auditFailures, auditLost, auditWaiting, auditBroken *prometheus.Desc

	usedSessions, usedCPU, usedMemory, usedDisk *prometheus.Desc
}

func newSnapshots(version, goName string, look func() MetricsSnapshot) *snapshots {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	return &snapshots{
		look: look, version: version, goName: goName,
		build:         desc("boxd_build_info", "The version of boxd; the value is 1.", "version", "goversion"),
		started:       desc("boxd_start_time_seconds", "When this boxd has started. Counters begin anew with it; boxes live on."),
		ready:         desc("boxd_ready", "Whether sessions can start."),
		degraded:      desc("boxd_degraded", "Number of things that are not as they should be; boxctl status names them."),
		sessions:      desc("boxd_sessions", "Sessions there are, by state and profile.", "state", "profile"),
		frozen:        desc("boxd_sessions_frozen", "Sessions that are frozen."),
		most:          desc("boxd_sessions_max", "Sessions there may be (sessions.max)."),
		processes:     desc("boxd_processes", "Managed processes that live."),
		running:       desc("boxd_running", "Executions under way and processes that live."),
		leaks:         desc("boxd_leaks", "What exists on the host and belongs to no session; zero is the aim.", "kind"),
		waiting:       desc("boxd_queue_waiting", "Requests that wait for a place."),
		poolReady:     desc("boxd_pool_ready", "Boxes that wait for a session, by profile.", "profile"),
		poolWanted:    desc("boxd_pool_wanted", "Boxes that should wait for a session, by profile.", "profile"),
		auditRecords:  desc("boxd_audit_records_total", "Audit records that were written."),
		auditFailures: desc("boxd_audit_failures_total", "Times that an audit record could not be written at once."),
		auditLost:     desc("boxd_audit_lost", "Audit records that could neither be written nor kept, and that the log does not count yet."),
		auditWaiting:  desc("boxd_audit_waiting", "Audit records that wait in memory since they could not be written."),
		auditBroken:   desc("boxd_audit_broken", "Whether audit records cannot be written."),
		usedSessions:  desc("boxd_session_seconds_total", "Time of all sessions together."),
		usedCPU:       desc("boxd_cpu_seconds_total", "Processor time of all sessions together."),
		usedMemory:    desc("boxd_memory_byte_seconds_total", "What sessions had as their limit of memory, by the time they had it."),
		usedDisk:      desc("boxd_disk_byte_seconds_total", "What was in workspaces that have a quota, by the time it was there."),
	}
}

// Describe lists the metrics.
func (s *snapshots) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		s.build, s.started, s.ready, s.degraded, s.sessions, s.frozen, s.most, s.processes, s.running, s.leaks, s.waiting,
		s.poolReady, s.poolWanted, s.auditRecords, s.auditFailures, s.auditLost, s.auditWaiting, s.auditBroken,
		s.usedSessions, s.usedCPU, s.usedMemory, s.usedDisk,
	} {
		to <- d
	}
}

// Collect looks, once for all of them.
func (s *snapshots) Collect(to chan<- prometheus.Metric) {
	now := s.look()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	counter := func(d *prometheus.Desc, v float64) {
		to <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v)
	}
	gauge(s.build, 1, s.version, s.goName)
	gauge(s.started, float64(now.Started.UnixMilli())/1000)
	gauge(s.ready, is(now.Ready))
	gauge(s.degraded, float64(now.Degraded))
	for group, n := range now.Sessions {
		gauge(s.sessions, float64(n), group.State, group.Profile)
	}
	gauge(s.frozen, float64(now.Frozen))
	gauge(s.most, float64(now.Most))
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
}

func is(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
