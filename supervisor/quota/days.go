// SPDX-License-Identifier: Apache-2.0

package quota

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/boxd-dev/boxd/internal/durable"
)

// metered is the stored state of a meter.
type metered struct {
	Principal string        `json:"principal"`
	CPU       time.Duration `json:"cpu,omitempty"`
	Counted   bool          `json:"counted,omitempty"`
}

// file is one day on disk. A later boxd may add fields.
type file struct {
	Day  string             `json:"day"`
	Use  map[string]*Use    `json:"use"`
	Boot string             `json:"boot"` // the fields below are as of when it was written
	At   time.Duration      `json:"at"`
	Open map[string]metered `json:"open,omitempty"` // running sessions
}

const (
	dayLayout = time.DateOnly
	suffix    = ".json"
)

// days lists the stored days, oldest first.
func (l *Ledger) days() ([]string, error) {
	names, err := durable.Names(l.dir)
	if err != nil {
		return nil, fmt.Errorf("ledger: %w", err)
	}
	return daysOf(names), nil
}

// daysOf returns the days of these records, oldest first.
func daysOf(names []string) (days []string) {
	for _, name := range names {
		if day, ok := strings.CutSuffix(name, suffix); ok {
			if _, err := time.Parse(dayLayout, day); err == nil {
				days = append(days, day)
			}
		}
	}
	slices.Sort(days)
	return days
}

func (l *Ledger) read(day string) (*file, error) {
	f := &file{}
	if err := durable.ReadJSON(l.dir, day+suffix, f); err != nil {
		return nil, fmt.Errorf("ledger: %w", err)
	}
	if f.Day != day {
		return nil, fmt.Errorf("ledger: %s%s: not the record of that day", day, suffix)
	}
	if f.Use == nil {
		f.Use = map[string]*Use{}
	}
	maps.DeleteFunc(f.Use, func(_ string, u *Use) bool { return u == nil })
	return f, nil
}

// turnLocked begins a new day if it is one. After the clock was set back it continues that earlier day.
func (l *Ledger) turnLocked() {
	today := l.today()
	if today == l.day {
		return
	}
	l.done[l.day] = l.fileLocked()
	l.day, l.use, l.dirty = today, map[string]*Use{}, true
	f, err := l.done[today], error(nil)
	if f == nil {
		f, err = l.read(today)
	}
	switch delete(l.done, today); {
	case err == nil:
		for name, u := range f.Use { // copied: Flush may be writing it
			l.use[name] = new(*u)
		}
	case !errors.Is(err, fs.ErrNotExist):
		l.log.Error("cannot read the usage record of a day; it was moved aside and counting starts again", "error", err)
		_ = l.dir.Rename(today+suffix, today+".unreadable") // or it would be overwritten
	}
	l.pruneLocked()
}

// pruneLocked removes the oldest days beyond the number kept. Days are counted, not compared with the clock: a clock that is
// wrong for a moment must not cost the others.
func (l *Ledger) pruneLocked() {
	days, err := l.days()
	for i := 0; err == nil && i < len(days)-l.keep; i++ {
		if days[i] != l.day {
			err = l.dir.Remove(days[i] + suffix)
		}
	}
	if err != nil {
		l.log.Warn("cannot remove old usage records", "error", err)
	}
}

// Flush writes what has changed.
func (l *Ledger) Flush() error {
	l.writeMu.Lock()
	defer l.writeMu.Unlock()
	l.mu.Lock()
	var files []*file
	for _, f := range l.done {
		files = append(files, f)
	}
	if l.dirty {
		files = append(files, l.fileLocked())
	}
	l.dirty = false
	l.mu.Unlock()
	for _, f := range files {
		err := durable.SyncJSON(l.dir, f.Day+suffix, f)
		l.mu.Lock()
		if l.done[f.Day] == f && err == nil {
			delete(l.done, f.Day)
		}
		l.dirty = l.dirty || err != nil // also if an earlier day comes first, and today's is not written for that
		l.mu.Unlock()
		if err != nil {
			return err
		}
	}
	return nil
}

// fileLocked returns a snapshot of the day.
func (l *Ledger) fileLocked() *file {
	f := &file{Day: l.day, Use: make(map[string]*Use, len(l.use)), Boot: l.clock.Boot, At: l.clock.Since(), Open: map[string]metered{}}
	for name, u := range l.use {
		f.Use[name] = new(*u)
	}
	for key, m := range l.meters {
		f.Open[key] = metered{m.principal, m.last.CPU, m.last.Counted}
	}
	return f
}

// Row is the usage of one principal on one day.
type Row struct {
	Day       string // 2026-11-22
	Principal string
	Use       Use
}

// Rows returns the usage of the last days stored, newest first, then by name; principal "" is all. It includes usage up to now.
func (l *Ledger) Rows(principal string, last int) ([]Row, error) {
	l.Count(nil)
	l.mu.Lock()
	known := maps.Clone(l.done)
	known[l.day] = l.fileLocked()
	l.mu.Unlock()
	days, err := l.days()
	if err != nil {
		return nil, err
	}
	days = slices.AppendSeq(days, maps.Keys(known))
	slices.Sort(days)
	days = slices.Compact(days)
	slices.Reverse(days)
	var rows []Row
	for _, day := range days[:min(last, len(days))] {
		f := known[day]
		if f == nil {
			if f, err = l.read(day); errors.Is(err, fs.ErrNotExist) {
				continue // just expired
			} else if err != nil {
				return nil, err
			}
		}
		for name, u := range f.Use {
			if (principal == "" || name == principal) && *u != (Use{}) {
				rows = append(rows, Row{day, name, *u})
			}
		}
	}
	slices.SortFunc(rows, func(a, b Row) int {
		return cmp.Or(cmp.Compare(b.Day, a.Day), cmp.Compare(a.Principal, b.Principal))
	})
	return rows, nil
}
