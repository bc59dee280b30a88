// SPDX-License-Identifier: Apache-2.0

package render

import (
	"fmt"
	"strings"
	"time"

	"github.com/boxd-dev/boxd/relay/api"
)

// sparkColumns is the maximum width of a sparkline.
const sparkColumns = 50

// sparks are the heights of a sparkline's columns, the lowest first.
const sparks = "▁▂▃▄▅▆▇█"

// charts returns the sparklines of a session's recent usage: one for each known figure, with its last and its highest value.
func (v *Top) charts() []topLine {
	samples := v.history.Samples
	if len(samples) == 0 {
		return nil
	}
	span := samples[len(samples)-1].At.Sub(samples[0].At)
	lines := []topLine{{}, {Text: fmt.Sprintf("%-8s%-*s  %7s %7s", "USED", sparkColumns, "in the last "+Roughly(span), "NOW", "MOST"), Heading: true}}
	percent := func(n float64) string { return fmt.Sprintf("%.1f", n) }
	number := func(n float64) string { return fmt.Sprintf("%.0f", n) }
	for _, figure := range []struct {
		name  string
		value func(m *api.UsageSample) (float64, bool)
		text  func(float64) string
	}{
		{"CPU%", usedOf(func(u *api.SampledUsage) float64 { return u.CPUPercent }), percent},
		{"MEMORY", usedOf(func(u *api.SampledUsage) float64 { return float64(u.Memory) }), shortSize},
		{"PIDS", usedOf(func(u *api.SampledUsage) float64 { return float64(u.Pids) }), number},
		{"DISK", func(m *api.UsageSample) (float64, bool) {
			if m.Workspace == nil {
				return 0, false
			}
			return float64(m.Workspace.Used), true
		}, shortSize},
	} {
		line, last, limit := sparkline(samples, figure.value)
		if line != "" {
			lines = append(lines, topLine{Text: fmt.Sprintf("%-8s%-*s  %7s %7s", figure.name, sparkColumns, line, figure.text(last), figure.text(limit))})
		}
	}
	return lines
}

func usedOf(value func(*api.SampledUsage) float64) func(m *api.UsageSample) (float64, bool) {
	return func(m *api.UsageSample) (float64, bool) {
		if m.Usage == nil {
			return 0, false
		}
		return value(m.Usage), true
	}
}

// sparkline draws a figure of samples, the earliest first, and returns its last and highest value: a column for each
// sample, or if there are many, for the highest of equal spans of time. A column without a sample is blank. The line is
// empty if no sample has the figure.
func sparkline(samples []api.UsageSample, value func(*api.UsageSample) (float64, bool)) (line string, last, limit float64) {
	columns, many := len(samples), len(samples) > sparkColumns
	if many { // at least two per column, as samples do not come exactly every second
		columns = min(len(samples)/2, sparkColumns)
	}
	start, span := samples[0].At, samples[len(samples)-1].At.Sub(samples[0].At)
	highest, known, some := make([]float64, columns), make([]bool, columns), false
	for i := range samples {
		n, ok := value(&samples[i])
		if !ok {
			continue
		}
		at := i
		if many {
			at = columnOf(samples[i].At.Sub(start), span, columns)
		}
		highest[at], known[at], some = max(highest[at], n), true, true
		last, limit = n, max(limit, n)
	}
	if !some {
		return "", 0, 0
	}
	heights := []rune(sparks)
	var b strings.Builder
	for i, n := range highest {
		switch {
		case !known[i]:
			b.WriteByte(' ')
		case limit == 0:
			b.WriteRune(heights[0])
		default:
			b.WriteRune(heights[min(int(n/limit*float64(len(heights))), len(heights)-1)])
		}
	}
	return b.String(), last, limit
}

// columnOf returns the column of a moment in a span. After a clock was set back, moments may precede the first.
func columnOf(at, span time.Duration, columns int) int {
	if span <= 0 {
		return 0
	}
	return min(max(int(float64(at)/float64(span)*float64(columns)), 0), columns-1)
}
