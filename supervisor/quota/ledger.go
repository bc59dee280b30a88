// SPDX-License-Identifier: Apache-2.0

// The ledger records the daily usage (UTC) of every principal, for plans and bills. It is written every few seconds: at most that
// much is lost when boxd dies. Time that sessions ran without a boxd is added by the next one.

package quota

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/durable"
	"github.com/boxd-dev/boxd/quantity"
)

// Use is the usage of a principal on one day.
type Use struct {
	Executions uint64        `json:"executions"`
	Sessions   time.Duration `json:"sessions"`   // total time of all its sessions
	CPU        time.Duration `json:"cpu"`        // CPU time
	Memory     float64       `json:"memory_bh"`  // byte-hours reserved by its sessions
	Disk       float64       `json:"disk_bh"`    // byte-hours used by their workspaces, where a quota counts them
	Started    uint64        `json:"started"`    // sessions
	Denied     uint64        `json:"over_a_day"` // requests refused by a rule
}

// Reading is a session's usage at the moment.
type Reading struct {
	Memory, Disk quantity.Size
	CPU          time.Duration // since its start, if Counted
	Counted      bool          // by cgroups; otherwise executions report their CPU time when they end
	Space        bool          // not a session, but a named workspace: only its disk usage counts
}

// Clock tells time. Wall determines the day, and may jump; Since only grows, including time the host sleeps, within one boot,
// identified by Boot.
type Clock struct {
	Wall  func() time.Time
	Since func() time.Duration
	Boot  string
}

// HostClock returns the clock of this host.
func HostClock() (Clock, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return Clock{}, err
	}
	return Clock{Wall: time.Now, Boot: strings.TrimSpace(string(boot)), Since: func() time.Duration {
		var ts unix.Timespec
		_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) // cannot fail for a clock there is
		return time.Duration(ts.Nano())
	}}, nil
}

// every is how often the ledger is written if it has changed: at most this much is lost when boxd dies.
const every = 5 * time.Second

// Ledger records usage. It is safe for concurrent use.
type Ledger struct {
	clock Clock
	dir   *os.Root
	log   *slog.Logger

	writeMu sync.Mutex // held while days are written, and taken before mu

	mu     sync.Mutex // guards the fields below
	keep   int        // days
	day    string     // being counted
	use    map[string]*Use
	total  Use               // of all since Open, without Executions and Started
	meters map[string]*meter // of sessions, by their keys
	done   map[string]*file  // finished days not written yet
	left   map[string]metered
	leftAt time.Duration
	dirty  bool
}

// meter is a session being counted.
type meter struct {
	principal string
	at        time.Duration // when it was last counted
	last      Reading
}

// OpenLedger opens the ledger in a state directory, or creates it. It keeps that many days.
func OpenLedger(state string, keep int, clock Clock, log *slog.Logger) (*Ledger, error) {
	path := filepath.Join(state, "usage")
	dir, err := durable.Directory(path)
	if err != nil {
		return nil, fmt.Errorf("ledger: %w", err)
	}
	l := &Ledger{clock: clock, dir: dir, log: log, keep: keep, use: map[string]*Use{}, meters: map[string]*meter{}, done: map[string]*file{}}
	if err := l.load(); err != nil {
		dir.Close()
		return nil, fmt.Errorf("%w: today's usage is unknown; repair the file, or move it out of %s", err, path)
	}
	return l, nil
}

// load continues where the last boxd stopped.
func (l *Ledger) load() error {
	l.day = l.today()
	names, err := durable.Recover(l.dir)
	if err != nil {
		return fmt.Errorf("ledger: %w", err)
	}
	days := daysOf(names)
	if len(days) == 0 {
		return nil
	}
	last := days[len(days)-1]
	if slices.Contains(days, l.day) {
		last = l.day
	}
	f, err := l.read(last)
	if err != nil && last != l.day {
		l.log.Warn("cannot count the time sessions ran without boxd", "error", err)
		return nil
	}
	if err != nil {
		return err
	}
	if f.Boot == l.clock.Boot && f.At <= l.clock.Since() {
		l.left, l.leftAt = f.Open, f.At
	}
	if last == l.day {
		l.use = f.Use
	}
	return nil
}

func (l *Ledger) today() string { return l.clock.Wall().UTC().Format(dayLayout) }

// Close writes what is still unwritten.
func (l *Ledger) Close() error {
	err := l.Flush()
	l.dir.Close()
	return err
}

func (l *Ledger) ofLocked(principal string) *Use {
	u := l.use[principal]
	if u == nil {
		u = &Use{}
		l.use[principal] = u
	}
	l.dirty = true
	return u
}

// Begin counts a new execution, unless its principal has reached most today; 0 is any number. It returns how many there were
// before, and how much of the day is left.
func (l *Ledger) Begin(principal string, limit int) (ok bool, used int, untilReset time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.turnLocked()
	u := l.ofLocked(principal)
	untilReset = l.untilReset()
	if used = int(u.Executions); limit > 0 && used >= limit {
		return false, used, untilReset
	}
	u.Executions++
	return true, used, untilReset
}

// Refuse counts a request refused by a rule.
func (l *Ledger) Refuse(principal string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.turnLocked()
	l.ofLocked(principal).Denied++
}

// Used returns how many executions of a principal have begun today, and how much of the day is left.
func (l *Ledger) Used(principal string) (used int, untilReset time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.turnLocked()
	if u := l.use[principal]; u != nil {
		used = int(u.Executions)
	}
	return used, l.untilReset()
}

// untilReset returns how much of the day is left.
func (l *Ledger) untilReset() time.Duration {
	now := l.clock.Wall().UTC()
	return now.Truncate(24 * time.Hour).Add(24 * time.Hour).Sub(now)
}

// AddCPU adds the CPU time of an ended execution, in a session whose readings have none.
func (l *Ledger) AddCPU(principal string, d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.turnLocked()
	l.ofLocked(principal).CPU += d
	l.total.CPU += d
}

// Start begins to count a session.
func (l *Ledger) Start(principal, key string, r Reading) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.turnLocked()
	l.ofLocked(principal).Started++
	l.meters[key] = &meter{principal, l.clock.Since(), r}
}

// Resume continues to count a session of an earlier boxd, and makes up for the time since.
func (l *Ledger) Resume(principal, key string, r Reading) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.turnLocked()
	m := &meter{principal, l.clock.Since(), r}
	l.meters[key] = m
	if was, ok := l.left[key]; ok && was.Principal == principal {
		m.at, m.last.CPU = l.leftAt, was.CPU
		if !was.Counted {
			m.last.CPU = r.CPU
		}
		l.countLocked(m, r)
	}
	delete(l.left, key)
}

// Stop counts a session for the last time.
func (l *Ledger) Stop(key string, r Reading) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if m := l.meters[key]; m != nil {
		l.turnLocked()
		l.countLocked(m, r)
		delete(l.meters, key)
	}
}

// Count counts all sessions until now. Those without a reading keep their last one.
func (l *Ledger) Count(readings map[string]Reading) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.turnLocked()
	for key, m := range l.meters {
		r, ok := readings[key]
		if !ok {
			r = m.last
		}
		l.countLocked(m, r)
	}
}

// countLocked counts the time since the last reading, with the values of that reading.
func (l *Ledger) countLocked(m *meter, r Reading) {
	now := l.clock.Since()
	since := max(now-m.at, 0)
	for _, u := range []*Use{l.ofLocked(m.principal), &l.total} {
		if !m.last.Space {
			u.Sessions += since
		}
		u.Memory += float64(m.last.Memory) * since.Hours()
		u.Disk += float64(m.last.Disk) * since.Hours()
		if r.Counted && r.CPU > m.last.CPU {
			u.CPU += r.CPU - m.last.CPU
		}
	}
	if r.CPU < m.last.CPU { // it could not be read
		r.CPU = m.last.CPU
	}
	m.at, m.last = now, r
}

// Run counts and writes until ctx ends. read returns readings of all sessions.
func (l *Ledger) Run(ctx context.Context, read func() map[string]Reading) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	failing := false
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		l.Count(read())
		err := l.Flush()
		if err != nil && !failing {
			l.log.Error("cannot write usage; trying again", "error", err)
		}
		failing = err != nil
	}
}

// SetKeep changes how many days are kept.
func (l *Ledger) SetKeep(days int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.keep = days
	l.pruneLocked()
}

// Total returns the usage of all principals since OpenLedger: the Sessions, CPU, Memory and Disk of a Use. It only grows.
func (l *Ledger) Total() Use {
	l.Count(nil)
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.total
}
