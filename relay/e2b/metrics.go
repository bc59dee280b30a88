// SPDX-License-Identifier: Apache-2.0

package e2b

import (
	"context"
	"net/http"
	"time"

	"github.com/boxd-dev/boxd/supervisor/policy"
	"github.com/boxd-dev/boxd/supervisor/session"
)

// metric is what a sandbox uses at a time.
type metric struct {
	Timestamp     time.Time `json:"timestamp"`
	TimestampUnix int64     `json:"timestampUnix"`
	CPUCount      int       `json:"cpuCount"`
	CPUUsedPct    float64   `json:"cpuUsedPct"` // of all processors that it may use, since the sample before it
	MemUsed       int64     `json:"memUsed"`
	MemTotal      int64     `json:"memTotal"`
	MemCache      int64     `json:"memCache"`
	DiskUsed      int64     `json:"diskUsed"`
	DiskTotal     int64     `json:"diskTotal"`
}

// metricOf is a sample of a sandbox as clients of E2B read it. Without cgroups nobody knows the processor time and the memory,
// which are 0 then.
func metricOf(set *policy.Settings, sample *session.Sample) metric {
	at := time.UnixMilli(sample.At)
	m := metric{
		Timestamp: at.UTC(), TimestampUnix: at.Unix(), CPUCount: max(1, int(set.CPUs+0.999)), MemUsed: int64(sample.Memory), MemTotal: int64(set.Memory),
		DiskUsed: int64(sample.Used), DiskTotal: int64(set.WorkspaceQuota),
	}
	if set.CPUs > 0 {
		m.CPUUsedPct = float64(sample.CPUPercent) / set.CPUs
	}
	return m
}

// measure looks at what a sandbox uses now.
func (s *Server) measure(ctx context.Context, sess *session.Session) metric {
	set, sample := sess.Current(), s.cfg.Sup.Sample(ctx, sess)
	return metricOf(&set, &sample)
}

// metrics answers with what a sandbox has used within a range of time.
func (c *controlCall) metrics() error {
	sess, err := c.session()
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
	set := sess.Current()
	list := append(sess.History(time.Time{}), c.server.cfg.Sup.Sample(c.r.Context(), sess))
	within := []metric{}
	for i := range list {
		if m := metricOf(&set, &list[i]); start <= m.TimestampUnix && m.TimestampUnix <= end+1 {
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

func (s *Server) sandboxMetrics(ctx context.Context, sess *session.Session) *sandboxMetric {
	m := s.measure(ctx, sess)
	return &sandboxMetric{m.TimestampUnix, m.CPUCount, m.CPUUsedPct, m.MemTotal, m.MemUsed, m.MemCache, m.MemTotal >> 20, m.MemUsed >> 20, m.DiskUsed, m.DiskTotal}
}
