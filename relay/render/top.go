// SPDX-License-Identifier: Apache-2.0

package render

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

// topSession is a session with its current usage.
type topSession struct {
	api.Session
	CPUPercent float64   `json:"cpu_percent"` // of one processor
	ReadRate   float64   `json:"io_read_per_second"`
	WriteRate  float64   `json:"io_write_per_second"`
	sampled    time.Time // when Session was requested
	rates      bool      // there is an earlier sample
}

// Top is the content of one picture.
type Top struct {
	Status    api.Status       `json:"status"`
	Sessions  []topSession     `json:"sessions"`
	Processes []api.Process    `json:"processes,omitempty"` // of the requested session
	history   api.UsageHistory // of that session
	now       time.Time
	one       bool
}

// Sampler samples the usage of sessions.
type Sampler struct {
	Client *client.Client
	ID     string // of the only session; empty: all sessions
	All    bool   // sessions of every owner
	Owner  string // the only owner; empty: any
}

// Sample takes one sample. Rates are relative to the previous sample, if there is one.
func (t *Sampler) Sample(ctx context.Context, before *Top) (*Top, error) {
	v := &Top{one: t.ID != "", Sessions: []topSession{}}
	var err error
	if v.Status, err = t.Client.Status(ctx); err != nil {
		return nil, err
	}
	list, err := t.sessions(ctx, v, before)
	if err != nil {
		return nil, err
	}
	earlier := map[string]*topSession{}
	if before != nil {
		for i := range before.Sessions {
			s := &before.Sessions[i]
			earlier[s.Owner+"\x00"+s.ID] = s
		}
	}
	now := time.Now()
	for _, s := range list {
		if t.Owner != "" && s.Owner != t.Owner {
			continue
		}
		top := topSession{Session: s, sampled: now}
		if e := earlier[s.Owner+"\x00"+s.ID]; e != nil {
			top.compare(e)
		}
		v.Sessions = append(v.Sessions, top)
	}
	slices.SortStableFunc(v.Sessions, func(x, y topSession) int {
		return cmp.Or(cmp.Compare(y.CPUPercent, x.CPUPercent), cmp.Compare(x.Owner, y.Owner), cmp.Compare(x.ID, y.ID))
	})
	slices.SortStableFunc(v.Processes, func(p, q api.Process) int { return p.StartedAt.Compare(q.StartedAt) })
	v.now = time.Now()
	return v, nil
}

// sessions describes all sessions, or the requested one with the details that only its own picture shows.
func (t *Sampler) sessions(ctx context.Context, v, before *Top) ([]api.Session, error) {
	if !v.one {
		return t.Client.FindSessions(ctx, &client.SessionFilter{All: t.All, WithUsage: true})
	}
	s, err := t.Client.Session(ctx, t.ID)
	if err != nil {
		return nil, err
	}
	if v.Processes, err = t.Client.Processes(ctx, t.ID); err != nil {
		return nil, err
	}
	return []api.Session{s}, t.extend(ctx, v, before)
}

// extend adds the usage history of the session to a picture: the history of the previous picture and the newer samples.
func (t *Sampler) extend(ctx context.Context, v, before *Top) error {
	var known []api.UsageSample
	var after time.Time
	if before != nil && len(before.history.Samples) > 0 {
		known = before.history.Samples
		after = known[len(known)-1].At
	}
	var err error
	if v.history, err = t.Client.UsageHistory(ctx, t.ID, after); err != nil {
		return err
	}
	all := slices.Concat(known, v.history.Samples)
	old := time.Now().Add(-time.Duration(v.history.Kept))
	v.history.Samples = slices.DeleteFunc(all, func(m api.UsageSample) bool { return m.At.Before(old) })
	return nil
}

// compare computes the usage since an earlier sample of the same session.
func (s *topSession) compare(e *topSession) {
	seconds := s.sampled.Sub(e.sampled).Seconds()
	if s.Usage == nil || e.Usage == nil || seconds <= 0 || !s.CreatedAt.Equal(e.CreatedAt) {
		return
	}
	s.rates = true
	s.CPUPercent = max(s.Usage.CPUMS-e.Usage.CPUMS, 0) / seconds / 10
	s.ReadRate = max(float64(s.Usage.Read)-float64(e.Usage.Read), 0) / seconds
	s.WriteRate = max(float64(s.Usage.Written)-float64(e.Usage.Written), 0) / seconds
}

// nameColumns is the width of names.
const nameColumns = 18

// topLine is a line of the picture.
type topLine struct {
	Text    string
	Heading bool
	Bad     bool
}

// in returns the painted line, cut to cols columns.
func (l topLine) in(style palette, cols int) string {
	text := strings.TrimRight(cutColumns(l.Text, cols), " ")
	switch {
	case l.Heading:
		return style.bold(text)
	case l.Bad:
		return style.bad(text)
	}
	return text
}

// topColumns is the maximum width of a picture.
const topColumns = 80

// lines returns the picture.
func (v *Top) lines() []topLine {
	lines := []topLine{
		{Text: fmt.Sprintf("boxd %s, up %s: %d of %d boxes, %d programs running, %d executions", v.Status.Version, Roughly(v.now.Sub(v.Status.StartedAt)),
			v.Status.Sessions, v.Status.MaxSessions, v.Status.Running, v.Status.Executed)},
		{},
		{Text: fitColumns("BOX", nameColumns) + "  STATE      CPU% MEMORY  LIMIT  PIDS READ/s WRITE/s  RUN", Heading: true},
	}
	for i := range v.Sessions {
		lines = append(lines, topLine{Text: v.Sessions[i].line()})
	}
	if !v.one {
		return lines
	}
	lines = append(lines, v.charts()...)
	lines = append(lines, topLine{}, topLine{Text: fitColumns("PROCESS", nameColumns) + "  STATE    READY     PID STARTS CLIENTS UPTIME COMMAND", Heading: true})
	for i := range v.Processes {
		p := &v.Processes[i]
		line := fmt.Sprintf("%s  %-8s %-5s %7s %6d %7d %6s %s", fitColumns(Printable(p.ID), nameColumns), p.State, yesNo(p.Ready), orDash(pidOf(p)), p.Starts, p.Readers, uptime(p, v.now), commandLine(p.Argv))
		lines = append(lines, topLine{Text: line, Bad: failed(p)})
	}
	return lines
}

func (s *topSession) line() string {
	percent, memory, pids, read, written := "-", "-", "-", "-", "-"
	if u := s.Usage; u != nil {
		memory, pids = shortSize(float64(u.Memory)), fmt.Sprint(u.Pids)
	}
	if s.rates {
		percent = fmt.Sprintf("%.1f", s.CPUPercent)
		read, written = shortSize(s.ReadRate), shortSize(s.WriteRate)
	}
	return fmt.Sprintf("%s  %-8s %6s %6s %6s %5s %6s %7s %4d", fitColumns(Printable(s.ID), nameColumns), s.State, percent, memory, shortSize(float64(s.Memory)), pids, read, written, s.Running)
}

// shortSize formats a number of bytes in at most five columns.
func shortSize(n float64) string {
	for _, unit := range []struct {
		size quantity.Size
		name string
	}{{quantity.TiB, "T"}, {quantity.GiB, "G"}, {quantity.MiB, "M"}, {quantity.KiB, "K"}} {
		switch n := n / float64(unit.size); {
		case n >= 99.95:
			return fmt.Sprintf("%.0f%s", n, unit.name)
		case n >= 1:
			return fmt.Sprintf("%.1f%s", n, unit.name)
		}
	}
	return fmt.Sprintf("%.0fB", n)
}
