// SPDX-License-Identifier: Apache-2.0

package render

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/boxd-dev/boxd/relay/api"
)

// Columns of the status display.
const (
	statusLabel = 16
	statusText  = 80 - statusLabel
	placesShown = 10
)

// boxCount says how many boxes there are.
func boxCount(s *api.Status) string {
	if s.Stopped > 0 {
		return fmt.Sprintf("%d of %d, and %d stopped", s.Sessions, s.MaxSessions, s.Stopped)
	}
	return fmt.Sprintf("%d of %d", s.Sessions, s.MaxSessions)
}

// Status prints what boxd is doing, at most 80 columns wide.
func Status(out io.Writer, s *api.Status, now time.Time) error {
	style := styleOf(out)
	plain := func(text string) string { return text }
	state, paint := "ready", plain
	switch {
	case s.State == "off":
		state, paint = "off: no new boxes", style.warn
	case s.State == "failed":
		state, paint = "failed: no box can start", style.bad
	case len(s.Degraded) > 0:
		state, paint = "degraded", style.bad
	}
	var lines []string
	add := func(label, text string, paint func(string) string) {
		for i, line := range fold(text, statusText) {
			if i > 0 {
				label = ""
			}
			lines = append(lines, style.bold(label)+strings.Repeat(" ", statusLabel-len(label))+paint(line))
		}
	}
	add("boxd", fmt.Sprintf("%s, up %s", s.Version, Roughly(now.Sub(s.StartedAt))), plain)
	add("state", state, paint)
	for _, why := range s.Degraded {
		add("DEGRADED", why, style.bad)
	}
	if s.Off != "" {
		add("OFF", s.Off, style.warn)
	}
	add("boxes", boxCount(s), plain)
	add("processes", fmt.Sprintf("%d, at most %d per box", s.Processes, s.MaxProcesses), plain)
	add("executions", fmt.Sprintf("%d running, %d since boxd started", s.Running-s.Processes, s.Executed), plain)
	if q := &s.Queue; q.Waiting+q.Executions > 0 {
		add("queue", fmt.Sprintf("%d requests for a box, %d executions; at most %d of each, for %v", q.Waiting, q.Executions, q.Length, q.Wait), plain)
		for i, p := range q.Places {
			if i == placesShown {
				add("", fmt.Sprintf("and %d more", len(q.Places)-i), plain)
				break
			}
			add("", fmt.Sprintf("%d. %s of %s, waiting for %s: %s", p.Position, Printable(p.ID), Person(p.Owner), Roughly(now.Sub(p.Since)), p.Reason), plain)
		}
	}
	var warm []string
	for _, w := range s.Warm {
		if w.Want == 0 && w.Ready == 0 {
			continue // the profile was not used lately
		}
		warm = append(warm, fmt.Sprintf("%d of %d for %s", w.Ready, w.Want, w.Profile))
	}
	if len(warm) > 0 {
		add("pre-started", strings.Join(warm, ", "), plain)
	}
	add("cgroups", s.ControlGroups, plain)
	var enforced []string
	for _, limit := range []string{"memory", "cpu", "pids", "io", "workspace", "tmp"} {
		if by := s.Enforced[limit]; by != "" {
			enforced = append(enforced, limit+" by "+by)
		}
	}
	add("limits", strings.Join(enforced, ", "), plain)
	if len(s.Unenforced) > 0 {
		add("NOT ENFORCED", strings.Join(s.Unenforced, ", ")+": allowed by limits.best_effort", style.warn)
	}
	_, err := fmt.Fprintln(out, strings.Join(lines, "\n"))
	return err
}

// fold breaks text at spaces into lines of at most most characters, unless a word is longer.
func fold(text string, maximum int) (lines []string) {
	line := ""
	for word := range strings.FieldsSeq(text) {
		switch {
		case line == "":
			line = word
		case len([]rune(line))+1+len([]rune(word)) <= maximum:
			line += " " + word
		default:
			lines = append(lines, line)
			line = word
		}
	}
	if line != "" {
		lines = append(lines, line)
	}
	return lines
}
