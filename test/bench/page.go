// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"html"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// page is the report of a run, as Markdown, with pictures beside it.
type page struct {
	path string
	text strings.Builder
}

func (p *page) printf(format string, args ...any) { fmt.Fprintf(&p.text, format, args...) }

// table adds a table.
func (p *page) table(title string, rows [][]string) {
	p.printf("\n## %s\n\n", title)
	for i, row := range rows {
		p.printf("| %s |\n", strings.Join(row, " | "))
		if i == 0 {
			p.printf("|%s\n", strings.Repeat("---|", len(row)))
		}
	}
}

// block adds the output of write verbatim.
func (p *page) block(title string, write func(out io.Writer) error) error {
	p.printf("\n## %s\n\n```\n", title)
	defer p.printf("```\n")
	return write(&p.text)
}

// picture writes a picture beside the page, and adds it.
func (p *page) picture(name, title, svg string) error {
	if p.path == "" {
		return nil
	}
	file := strings.TrimSuffix(filepath.Base(p.path), ".md") + "-" + name + ".svg"
	p.printf("\n![%s](%s)\n", title, file)
	return os.WriteFile(filepath.Join(filepath.Dir(p.path), file), []byte(svg), 0o644)
}

// write writes the page.
func (p *page) write() error {
	if p.path == "" {
		_, err := os.Stdout.WriteString(p.text.String())
		return err
	}
	return os.WriteFile(p.path, []byte(p.text.String()), 0o644)
}

// quartile returns the quantile of sorted times at share.
func quartile(times []time.Duration, share float64) time.Duration {
	if len(times) == 0 {
		return 0
	}
	return times[min(len(times)-1, int(share*float64(len(times))))]
}

// cases adds the table of cases. The ratio is that of the lower quartiles, which other load on the machine affects least.
func (p *page) cases(cases []*measure) error {
	slices.SortFunc(cases, func(a, b *measure) int { return a.order - b.order })
	var floor time.Duration
	for _, m := range cases {
		slices.Sort(m.times)
		if m.name == floorName {
			floor = quartile(m.times, 0.25)
		}
	}
	if floor == 0 {
		return fmt.Errorf("the floor was not measured")
	}
	rows := [][]string{{"case", "n", "least µs", "lower quartile", "median", "upper quartile", "ratio", "failed"}}
	var bars []bar
	for _, m := range cases {
		if len(m.times) == 0 {
			continue
		}
		q := quartile(m.times, 0.25)
		ratio := float64(q) / float64(floor)
		rows = append(rows, []string{
			m.name, fmt.Sprint(len(m.times)), fmt.Sprint(m.times[0].Microseconds()), fmt.Sprint(q.Microseconds()), fmt.Sprint(quartile(m.times, 0.5).Microseconds()),
			fmt.Sprint(quartile(m.times, 0.75).Microseconds()), fmt.Sprintf("%.2f", ratio), fmt.Sprint(m.failed),
		})
		bars = append(bars, bar{m.name, ratio})
	}
	p.table("One after the other", rows)
	return p.picture("cases", "ratios of the lower quartiles to the floor", barChart(bars))
}

// bar is a bar of a chart.
type bar struct {
	name  string
	value float64
}

// Sizes of the pictures.
const (
	chartWidth = 760
	barHeight  = 18
	nameWidth  = 380
)

// barChart draws bars of logarithmic length: a peer may take a hundred times as long as another.
func barChart(bars []bar) string {
	most := 1.0
	for _, b := range bars {
		most = max(most, b.value)
	}
	var s strings.Builder
	fmt.Fprintf(&s, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="12">`+"\n", chartWidth, len(bars)*barHeight+8)
	for i, b := range bars {
		y := i*barHeight + 4
		length := 4 + math.Log(max(b.value, 1))/math.Log(max(most, 2))*(chartWidth-nameWidth-70)
		fmt.Fprintf(&s, `<text x="%d" y="%d" text-anchor="end">%s</text><rect x="%d" y="%d" width="%.0f" height="%d" fill="%s"/><text x="%.0f" y="%d">%.2f</text>`+"\n",
			nameWidth-6, y+13, html.EscapeString(b.name), nameWidth, y+2, length, barHeight-4, color(b.name), float64(nameWidth)+length+4, y+13, b.value)
	}
	return s.String() + "</svg>\n"
}

func color(name string) string {
	switch {
	case strings.HasPrefix(name, "boxd"):
		return "#2b6cb0"
	case strings.HasPrefix(name, "floor"):
		return "#718096"
	}
	return "#c05621"
}

// line is a line of a chart, as points by x.
type line struct {
	name   string
	points [][2]float64
}

// lineChart draws lines over a logarithmic axis.
func lineChart(what string, lines []line) string {
	const height, left, bottom = 260, 60, 30
	low, high, most := math.Inf(1), 0.0, 0.0
	for _, l := range lines {
		for _, p := range l.points {
			low, high, most = min(low, p[0]), max(high, p[0]), max(most, p[1])
		}
	}
	x := func(v float64) float64 {
		return left + math.Log(v/low)/max(math.Log(high/low), 1e-9)*(chartWidth-left-160)
	}
	y := func(v float64) float64 { return height - bottom - v/max(most, 1e-9)*(height-bottom-20) }
	var s strings.Builder
	fmt.Fprintf(&s, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="12">`+"\n", chartWidth, height)
	fmt.Fprintf(&s, `<path d="M%d %d V%d H%d" stroke="#718096" fill="none"/><text x="%d" y="12">%s</text><text x="4" y="%.0f">%.3g</text><text x="4" y="%d">0</text>`+"\n", left, 14, height-bottom, chartWidth-150, left+6, html.EscapeString(what), y(most)+4, most, height-bottom)
	for i, l := range lines {
		fill := []string{"#2b6cb0", "#c05621", "#2f855a", "#6b46c1", "#718096"}[i%5]
		var path []string
		for _, p := range l.points {
			path = append(path, fmt.Sprintf("%.1f,%.1f", x(p[0]), y(p[1])))
			fmt.Fprintf(&s, `<circle cx="%.1f" cy="%.1f" r="3" fill="%s"/>`, x(p[0]), y(p[1]), fill)
			if i == 0 {
				fmt.Fprintf(&s, `<text x="%.1f" y="%d" text-anchor="middle">%s</text>`, x(p[0]), height-bottom+16, short(p[0]))
			}
		}
		fmt.Fprintf(&s, `<polyline points="%s" stroke="%s" fill="none"/><text x="%d" y="%d" fill="%s">%s</text>`+"\n", strings.Join(path, " "), fill, chartWidth-155, 30+i*16, fill, html.EscapeString(l.name))
	}
	return s.String() + "</svg>\n"
}

// short formats a number with a binary prefix if it has one.
func short(v float64) string {
	for _, unit := range []string{"", "Ki", "Mi"} {
		if v < 1024 {
			return fmt.Sprintf("%g%s", v, unit)
		}
		v /= 1024
	}
	return fmt.Sprintf("%gGi", v)
}
