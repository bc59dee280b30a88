// SPDX-License-Identifier: Apache-2.0

package render

import (
	"net/url"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
)

// samplesOf returns n samples, five seconds apart.
func samplesOf(n int, of func(i int, m *api.UsageSample)) []api.UsageSample {
	list := make([]api.UsageSample, n)
	for i := range list {
		list[i].At = time.Unix(1_800_000_000, 0).Add(time.Duration(i) * 5 * time.Second)
		of(i, &list[i])
	}
	return list
}

func TestChartsOfASession(t *testing.T) {
	t.Parallel()
	busy := func(i int, m *api.UsageSample) {
		m.Usage = &api.SampledUsage{CPUPercent: float64(i), Memory: 64 * quantity.MiB, Pids: i % 2}
	}
	for _, tc := range []struct {
		name    string
		samples []api.UsageSample
		want    string
	}{
		{"none", nil, ""},
		{"what nothing counts", samplesOf(2, func(int, *api.UsageSample) {}), `
USED    in the last 5s                                          NOW    MOST
`},
		{"a disk alone, and one sample", samplesOf(1, func(_ int, m *api.UsageSample) { m.Workspace = &api.WorkspaceUsage{} }), `
USED    in the last 0s                                          NOW    MOST
DISK    ▁                                                        0B      0B
`},
		{"few", samplesOf(9, busy), `
USED    in the last 40s                                         NOW    MOST
CPU%    ▁▂▃▄▅▆▇██                                               8.0     8.0
MEMORY  █████████                                             64.0M   64.0M
PIDS    ▁█▁█▁█▁█▁                                                 0       1
`},
		{"many", samplesOf(720, busy), `
USED    in the last 59m                                         NOW    MOST
CPU%    ▁▁▁▁▁▁▂▂▂▂▂▂▃▃▃▃▃▃▄▄▄▄▄▄▄▅▅▅▅▅▅▆▆▆▆▆▆▇▇▇▇▇▇███████    719.0   719.0
MEMORY  ██████████████████████████████████████████████████    64.0M   64.0M
PIDS    ██████████████████████████████████████████████████        1       1
`},
		{"stopped in between", samplesOf(200, func(i int, m *api.UsageSample) {
			if busy(i%100, m); i >= 100 {
				m.At = m.At.Add(30 * time.Minute)
			}
		}), `
USED    in the last 46m                                         NOW    MOST
CPU%    ▁▂▃▄▅▆▇██                                ▁▂▃▄▅▆▇██     99.0    99.0
MEMORY  █████████                                █████████    64.0M   64.0M
PIDS    █████████                                █████████        1       1
`},
	} {
		v := Top{history: api.UsageHistory{Samples: tc.samples}}
		got := ""
		for _, line := range v.charts() {
			got += line.in(palette{}, topColumns) + "\n"
			if text := line.in(palette{}, topColumns+1); cutColumns(text, topColumns) != text {
				t.Errorf("%s: longer than %d columns: text = %q, want cutColumns(text, topColumns) == text",
					tc.name, topColumns, text)
			}
		}
		if got != tc.want {
			t.Errorf("%s: (-want +got) %s, want got == tc.want", tc.name, cmp.Diff(tc.want, got))
		}
	}
}

func TestSparklinesTakeAnyClock(t *testing.T) {
	t.Parallel()
	back := samplesOf(100, func(i int, m *api.UsageSample) {
		m.At, m.Usage = m.At.Add(-time.Duration(i*i)*time.Second), &api.SampledUsage{CPUPercent: 1}
	})
	still := samplesOf(100, func(_ int, m *api.UsageSample) { m.At, m.Usage = time.Unix(0, 0), &api.SampledUsage{CPUPercent: 1} })
	for _, samples := range [][]api.UsageSample{back, still} {
		if line, last, most := sparkline(samples, usedOf(func(u *api.SampledUsage) float64 { return u.CPUPercent })); line == "" || last != 1 || most != 1 {
			t.Errorf(`line = %q, last = %v, most = %v, want line != "" and last == 1 and most == 1`, line, last, most)
		}
	}
}

func TestTopKeepsTheHistoryItKnows(t *testing.T) {
	t.Parallel()
	now := time.Now().UTC().Truncate(time.Millisecond)
	sample := func(ago time.Duration) api.UsageSample { return api.UsageSample{At: now.Add(-ago)} }
	hour := quantity.Duration(time.Hour)
	_, v := sampleTwice(t, Sampler{ID: "work"}, map[string]any{
		"/v1/status":                  api.Status{},
		"/v1/sessions/work":           api.Session{ID: "work"},
		"/v1/sessions/work/processes": api.ProcessList{},
		"/v1/sessions/work/usage/history": api.UsageHistory{
			Kept: hour, Samples: []api.UsageSample{sample(2 * time.Hour), sample(time.Minute)},
		},
		"/v1/sessions/work/usage/history?after=" + escaped(now.Add(-time.Minute)): api.UsageHistory{Kept: hour, Samples: []api.UsageSample{sample(0)}},
	})
	if got, want := v.history.Samples, []api.UsageSample{sample(time.Minute), sample(0)}; !cmp.Equal(got, want) {
		t.Error(cmp.Diff(want, got))
	}
}

func escaped(at time.Time) string { return url.QueryEscape(at.Format(time.RFC3339Nano)) }
