// SPDX-License-Identifier: Apache-2.0

package e2b

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/boxd-dev/boxd/supervisor/session"
)

// How often what a sandbox uses is measured, and how much of that is kept.
const (
	sampleEvery = 5 * time.Second
	maxSamples  = 360
)

// metric is what a sandbox uses at a time.
type metric struct {
	Timestamp     time.Time `json:"timestamp"`
	TimestampUnix int64     `json:"timestampUnix"`
	CPUCount      int       `json:"cpuCount"`
	CPUUsedPct    float64   `json:"cpuUsedPct"` // of all processors that it may use, since the sample before
	MemUsed       int64     `json:"memUsed"`
	MemTotal      int64     `json:"memTotal"`
	MemCache      int64     `json:"memCache"`
	DiskUsed      int64     `json:"diskUsed"`
	DiskTotal     int64     `json:"diskTotal"`
}

// history is what sandboxes have used lately, of those with cgroups.
type history struct {
	mu  sync.Mutex
	all map[string]*samples // by the ids of sandboxes
}

// samples are those of one sandbox.
type samples struct {
	list []metric // oldest first
	cpu  time.Duration
	at   time.Time
}

// measure looks at what a sandbox uses now. Without cgroups nobody knows the processor time and the memory, which are 0 then.
func (s *Server) measure(ctx context.Context, of *session.Session) metric {
	now := time.Now()
	info := of.Info()
	set := &info.Settings
	m := metric{
		Timestamp: now.UTC(), TimestampUnix: now.Unix(), CPUCount: max(1, int(set.CPUs+0.999)), MemTotal: int64(set.Memory), DiskTotal: int64(set.WorkspaceQuota),
	}
	if disk := s.cfg.Sup.Work(ctx, of); disk != nil {
		m.DiskUsed, m.DiskTotal = int64(disk.Used), int64(disk.Limit)
	}
	u := of.Usage()
	if u == nil {
		return m
	}
	m.MemUsed = int64(u.Memory)
	s.history.mu.Lock()
	defer s.history.mu.Unlock()
	before := s.history.all[of.ID]
	if before == nil {
		before = &samples{at: of.Created}
		if s.history.all == nil {
			s.history.all = map[string]*samples{}
		}
		s.history.all[of.ID] = before
	}
	if took := now.Sub(before.at); took > 0 && set.CPUs > 0 {
		m.CPUUsedPct = max(0, 100*(u.CPU-before.cpu).Seconds()/took.Seconds()/set.CPUs)
	}
	if now.Sub(before.at) >= sampleEvery/2 {
		before.cpu, before.at = u.CPU, now
		before.list = append(before.list, m)
		before.list = before.list[max(0, len(before.list)-maxSamples):]
	}
	return m
}

// sample measures all sandboxes with cgroups, and forgets those that are gone.
func (s *Server) sample(ctx context.Context) {
	live := map[string]bool{}
	for _, of := range s.index.all() {
		live[of.ID] = true
		if info := of.Info(); of.Grouped() && info.State == session.StateReady {
			s.measure(ctx, of)
		}
	}
	s.history.mu.Lock()
	defer s.history.mu.Unlock()
	for id := range s.history.all {
		if !live[id] {
			delete(s.history.all, id)
		}
	}
}

// metrics answers with what a sandbox has used within a range of time.
func (c *controlCall) metrics() error {
	of, err := c.session()
	if err != nil {
		return err
	}
	now := time.Now().Unix()
	start, err := c.number("start", 0, 0, 1<<40)
	if err != nil {
		return err
	}
	end, err := c.number("end", now, 0, 1<<40)
	if err != nil {
		return err
	}
	last := c.server.measure(c.r.Context(), of)
	h := &c.server.history
	h.mu.Lock()
	var list []metric
	if past := h.all[of.ID]; past != nil {
		list = append(list, past.list...)
	}
	h.mu.Unlock()
	if len(list) == 0 || list[len(list)-1].Timestamp.Before(last.Timestamp) {
		list = append(list, last)
	}
	within := []metric{}
	for _, m := range list {
		if start <= m.TimestampUnix && m.TimestampUnix <= end+1 {
			within = append(within, m)
		}
	}
	reply(c.w, http.StatusOK, within)
	return nil
}

// sandboxMetric is the same as envd has it.
type sandboxMetric struct {
	Timestamp  int64   `json:"ts"`
	CPUCount   int     `json:"cpu_count"`
	CPUUsedPct float64 `json:"cpu_used_pct"`
	MemTotal   int64   `json:"mem_total"`
	MemUsed    int64   `json:"mem_used"`
	MemCache   int64   `json:"mem_cache"`
	TotalMiB   int64   `json:"mem_total_mib"`
	UsedMiB    int64   `json:"mem_used_mib"`
	DiskUsed   int64   `json:"disk_used"`
	DiskTotal  int64   `json:"disk_total"`
}

func (s *Server) sandboxMetrics(ctx context.Context, of *session.Session) *sandboxMetric {
	m := s.measure(ctx, of)
	return &sandboxMetric{m.TimestampUnix, m.CPUCount, m.CPUUsedPct, m.MemTotal, m.MemUsed, m.MemCache, m.MemTotal >> 20, m.MemUsed >> 20, m.DiskUsed, m.DiskTotal}
}
