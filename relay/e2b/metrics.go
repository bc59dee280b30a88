// SPDX-License-Identifier: Apache-2.0

package e2b

import (
	"context"
	"net/http"
	"time"

	"github.com/boxd-dev/boxd/supervisor/session"
)

// metric is what a sandbox uses at a time.
type metric struct {
	Timestamp     time.Time `json:"timestamp"`
	TimestampUnix int64     `json:"timestampUnix"`
	CPUCount      int       `json:"cpuCount"`
	CPUUsedPct    float64   `json:"cpuUsedPct"`
	MemUsed       int64     `json:"memUsed"`
	MemTotal      int64     `json:"memTotal"`
	MemCache      int64     `json:"memCache"`
	DiskUsed      int64     `json:"diskUsed"`
	DiskTotal     int64     `json:"diskTotal"`
}

// measure looks at what a sandbox uses now. Without cgroups nobody knows the memory, which is 0 then.
func (s *Server) measure(ctx context.Context, of *session.Session) metric {
	now := time.Now()
	info := of.Info()
	set := &info.Settings
	m := metric{
		Timestamp: now.UTC(), TimestampUnix: now.Unix(), CPUCount: max(1, int(set.CPUs+0.999)), MemTotal: int64(set.Memory), DiskTotal: int64(set.WorkspaceQuota),
	}
	if u := of.Usage(); u != nil {
		m.MemUsed = int64(u.Memory)
		if age := now.Sub(of.Created); age > 0 && set.CPUs > 0 {
			m.CPUUsedPct = 100 * u.CPU.Seconds() / age.Seconds() / set.CPUs
		}
	}
	if disk := s.cfg.Sup.Work(ctx, of); disk != nil {
		m.DiskUsed, m.DiskTotal = int64(disk.Used), int64(disk.Limit)
	}
	return m
}

// metrics answers with what a sandbox uses now, if that is within the range asked for.
func (c *controlCall) metrics() error {
	s, err := c.session()
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
	list := []metric{}
	if m := c.server.measure(c.r.Context(), s); start <= m.TimestampUnix && m.TimestampUnix <= end+1 {
		list = append(list, m)
	}
	reply(c.w, http.StatusOK, list)
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
