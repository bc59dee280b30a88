// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/relay/api"
)

// What came of a request for a session.
const (
	outcomePlaced   = "placed"
	outcomeFull     = "full"     // no node could take it in its time, or while its caller waited; or too many waited
	outcomeGone     = "gone"     // its caller has hung up, and had not yet waited for room
	outcomeRejected = "rejected" // a node has found something wrong with the request
	outcomeFailed   = "failed"

	kindOfNodes    = "node"
	kindOfSessions = "session"
)

// Bounds of a scrape.
const (
	maxScrapes    = 2 // at once
	scrapeTimeout = 5 * time.Second
	storesTimeout = time.Second // for JetStream, of all stores together
)

// metrics are those of a gateway for Prometheus, with what nodes announce: an agent opens no port. As in boxd none has the id of
// a session or principal as a label: their number has no bound.
type metrics struct {
	handler http.Handler

	claims, refusals, lost *prometheus.CounterVec

	duration prometheus.Histogram
}

func newMetrics(g *gateway) *metrics {
	registry := prometheus.NewRegistry()
	counters := func(name, help, label string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{label})
	}
	m := &metrics{
		claims:   counters("boxfleet_claims_total", "Requests for new sessions, by outcome: placed, full (no node could take it), gone (its caller hung up), rejected (a node found it wrong) or failed.", "outcome"),
		refusals: counters("boxfleet_node_refusals_total", "Sessions that a node was asked for and did not take.", "node"),
		lost:     counters("boxfleet_lost_total", "Nodes, and their sessions, that this gateway has found lost.", "kind"),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "boxfleet_claim_duration_seconds", Help: "Time from the request until the session is placed, waiting included.", Buckets: prometheus.ExponentialBuckets(0.002, 2.5, 12),
		}),
	}
	for _, outcome := range []string{outcomePlaced, outcomeFull, outcomeGone, outcomeRejected, outcomeFailed} { // alerts ask for them before they first count
		m.claims.WithLabelValues(outcome)
	}
	for _, kind := range []string{kindOfNodes, kindOfSessions} {
		m.lost.WithLabelValues(kind)
	}
	registry.MustRegister(m.claims, m.refusals, m.lost, m.duration, newSnapshot(g))
	m.handler = promhttp.HandlerFor(registry, promhttp.HandlerOpts{MaxRequestsInFlight: maxScrapes, Timeout: scrapeTimeout, DisableCompression: true})
	return m
}

// claimed counts a request for a new session. hungUp: its caller has hung up.
func (m *metrics) claimed(placed, hungUp bool, err error, elapsed time.Duration) {
	outcome := outcomeFailed
	switch {
	case placed:
		outcome = outcomePlaced
		m.duration.Observe(elapsed.Seconds())
	case err == nil:
		outcome = outcomeRejected
	case fault.KindOf(err) == fault.Exhausted:
		outcome = outcomeFull
	case hungUp:
		outcome = outcomeGone
	}
	m.claims.WithLabelValues(outcome).Inc()
}

// snapshot makes metrics of how things are when it is asked: nothing has to be deleted when a node goes.
type snapshot struct {
	g *gateway

	build, connected, reconnects, ready, waiting, limit, nodes, spans, used, size *prometheus.Desc

	node []nodeMetric
}

// nodeMetric is one number of each node.
type nodeMetric struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(*nodeState) float64
}

func newSnapshot(g *gateway) *snapshot {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("boxfleet_"+name, help, labels, nil)
	}
	s := &snapshot{
		g:          g,
		build:      desc("build_info", "Version of the gateway.", "version"),
		connected:  desc("nats_connected", "1 if the gateway is connected to NATS."),
		reconnects: desc("nats_reconnects_total", "Connections to NATS that were made again."),
		ready:      desc("ready", "1 if the claims of the fleet can be read."),
		waiting:    desc("queue_waiting", "Requests for sessions that wait for a node."),
		limit:      desc("queue_max", "Most requests that may wait."),
		nodes:      desc("nodes", "Nodes, by state.", "state"),
		spans:      desc("spans_total", "Spans of traces, by outcome: sent, dropped (too many waited) or failed (the collector did not take them).", "outcome"),
		used:       desc("store_bytes", "Bytes of archives in NATS JetStream, by store: snapshots, skills, drives, images or outputs.", "store"),
		size:       desc("store_max_bytes", "Most bytes of archives in a store: size of its table in gateway.toml.", "store"),
	}
	gauge := func(name, help string, value func(*nodeState) float64) {
		s.node = append(s.node, nodeMetric{desc("node_"+name, help, "node"), prometheus.GaugeValue, value})
	}
	counter := func(name, help string, value func(*nodeState) float64) {
		s.node = append(s.node, nodeMetric{desc("node_"+name, help, "node"), prometheus.CounterValue, value})
	}
	gauge("seen_seconds", "Seconds since the node was last heard from; after 15 it is lost.", func(n *nodeState) float64 { return g.now().Sub(n.at).Seconds() })
	gauge("clock_offset_seconds", "Seconds that the clock of the node is ahead of that of the gateway.", func(n *nodeState) float64 { return n.offset.Seconds() })
	gauge("cordoned", "1 if the node takes no new sessions by boxctl fleet cordon.", func(n *nodeState) float64 { return float64(boolToInt(n.cordon != nil)) })
	gauge("sessions", "Sessions on the node.", func(n *nodeState) float64 { return float64(n.Sessions) })
	gauge("sessions_max", "Most sessions on the node.", func(n *nodeState) float64 { return float64(n.MaxSessions) })
	gauge("sessions_waiting", "Requests for sessions that wait on the node.", func(n *nodeState) float64 { return float64(n.Waiting) })
	gauge("cpus", "CPUs of the node.", func(n *nodeState) float64 { return float64(n.CPUs) })
	gauge("cpus_reserved", "CPUs reserved by limits of sessions.", func(n *nodeState) float64 { return n.CPUsReserved })
	gauge("memory_bytes", "Memory of the node.", func(n *nodeState) float64 { return float64(n.Memory) })
	gauge("memory_available_bytes", "Memory of the node that is available.", func(n *nodeState) float64 { return float64(n.MemoryAvailable) })
	gauge("memory_reserved_bytes", "Memory reserved by limits of sessions.", func(n *nodeState) float64 { return float64(n.MemoryReserved) })
	gauge("disk_bytes", "Disk of boxes.", func(n *nodeState) float64 { return float64(n.Disk) })
	gauge("disk_available_bytes", "Disk of boxes that is available.", func(n *nodeState) float64 { return float64(n.DiskAvailable) })
	gauge("pids", "Processes and threads that the kernel of the node allows.", func(n *nodeState) float64 { return float64(n.Pids) })
	gauge("pids_used", "Processes and threads on the node.", func(n *nodeState) float64 { return float64(n.PidsUsed) })
	gauge("id_ranges", "Ranges of ids for boxes, one for each box.", func(n *nodeState) float64 { return float64(n.IDRanges) })
	gauge("id_ranges_used", "Ranges of ids that boxes have.", func(n *nodeState) float64 { return float64(n.IDRangesUsed) })
	gauge("pressure_cpu_percent", "Share of time in which programs waited for a CPU (PSI, 10 s).", func(n *nodeState) float64 { return n.Pressure.CPU })
	gauge("pressure_memory_percent", "Share of time in which programs waited for memory (PSI, 10 s).", func(n *nodeState) float64 { return n.Pressure.Memory })
	gauge("pressure_io_percent", "Share of time in which programs waited for the disk (PSI, 10 s).", func(n *nodeState) float64 { return n.Pressure.IO })
	gauge("streams", "Connections of gateways to the boxd of the node.", func(n *nodeState) float64 { return float64(n.Agent.Streams) })
	counter("announcements_failed_total", "Announcements that the agent could not make, since it was started.", func(n *nodeState) float64 { return float64(n.Agent.Failed) })
	counter("fence_refusals_total", "Claims that the agent refused since it knew of a later one, since it was started.", func(n *nodeState) float64 { return float64(n.Agent.Refused) })
	counter("sessions_given_up_total", "Sessions that the agent ended since they were claimed elsewhere or given up, since it was started.", func(n *nodeState) float64 { return float64(n.Agent.GivenUp) })
	return s
}

func boolToInt(yes bool) int {
	if yes {
		return 1
	}
	return 0
}

// Describe lists the metrics.
func (s *snapshot) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{s.build, s.connected, s.reconnects, s.ready, s.waiting, s.limit, s.nodes, s.spans, s.used, s.size} {
		to <- d
	}
	for _, m := range s.node {
		to <- m.desc
	}
}

// Collect tells how things are.
func (s *snapshot) Collect(to chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v int, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), labels...)
	}
	g := s.g
	gauge(s.build, 1, g.cfg.Version)
	gauge(s.connected, boolToInt(g.nc.IsConnected()))
	to <- prometheus.MustNewConstMetric(s.reconnects, prometheus.CounterValue, float64(g.nc.Stats().Reconnects))
	_, _, err := g.table()
	gauge(s.ready, boolToInt(err == nil))
	gauge(s.waiting, g.queue.len())
	gauge(s.limit, maxWaiting)
	if n := g.cfg.Traces.Counts(); n != nil {
		for outcome, count := range map[string]uint64{"sent": n.Sent, "dropped": n.Dropped, "failed": n.Failed} {
			to <- prometheus.MustNewConstMetric(s.spans, prometheus.CounterValue, float64(count), outcome)
		}
	}
	s.stores(to)
	states := map[string]int{api.FleetNodeReady: 0, api.FleetNodeOff: 0, api.FleetNodeFailed: 0, api.FleetNodeLost: 0}
	for _, n := range g.known() {
		if _, ok := states[n.State]; ok { // another version may have others
			states[n.State]++
		}
		for _, m := range s.node {
			to <- prometheus.MustNewConstMetric(m.desc, m.kind, m.value(&n), n.Name)
		}
	}
	for state, n := range states {
		gauge(s.nodes, n, state)
	}
}

// stores tells how full the stores are that this gateway keeps. JetStream knows, and may have no leader: then they are left out, as
// the rest of the metrics says what is wrong.
func (s *snapshot) stores(to chan<- prometheus.Metric) {
	g := s.g
	if !g.nc.IsConnected() {
		return
	}
	ctx, cancel := context.WithTimeout(g.baseCtx, storesTimeout)
	defer cancel()
	for _, store := range []struct {
		name, stream string
		size         int64
	}{
		{"snapshots", archivesOf(snapshotBucket), g.cfg.Snapshots},
		{"skills", archivesOf(skillBucket), g.cfg.Skills},
		{"drives", archivesOf(driveBucket), g.cfg.Drives},
		{"images", archivesOf(imageBucket), g.cfg.Images},
		{"outputs", outputStream, g.cfg.Outputs},
	} {
		if store.size == 0 {
			continue
		}
		used := 0.0
		stream, err := g.js.Stream(ctx, store.stream)
		switch {
		case err == nil: // what it is limited to counts: another gateway may have set that
			info := stream.CachedInfo()
			used, store.size = float64(info.State.Bytes), info.Config.MaxBytes
		case !errors.Is(err, jetstream.ErrStreamNotFound): // if it is not found, nothing was ever stored
			return
		}
		to <- prometheus.MustNewConstMetric(s.used, prometheus.GaugeValue, used, store.name)
		to <- prometheus.MustNewConstMetric(s.size, prometheus.GaugeValue, float64(store.size), store.name)
	}
}
