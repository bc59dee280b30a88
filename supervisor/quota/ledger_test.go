// SPDX-License-Identifier: Apache-2.0

package quota

import (
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/boxd-dev/boxd/quantity"
)

// clock is a clock that a test sets.
type clock struct {
	mu    sync.Mutex
	wall  time.Time
	since time.Duration
	boot  string
}

func newClock() *clock {
	return &clock{wall: time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC), since: time.Hour, boot: "b1"}
}

func (c *clock) pass(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wall, c.since = c.wall.Add(d), c.since+d
}

func (c *clock) jump(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wall = c.wall.Add(d)
}

func (c *clock) Clock() Clock {
	return Clock{
		Wall:  func() time.Time { c.mu.Lock(); defer c.mu.Unlock(); return c.wall },
		Since: func() time.Duration { c.mu.Lock(); defer c.mu.Unlock(); return c.since },
		Boot:  c.boot,
	}
}

func open(t *testing.T, dir string, c *clock) *Ledger {
	t.Helper()
	l, err := OpenLedger(dir, 3, c.Clock(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func rows(t *testing.T, l *Ledger, caller string) map[string]Use {
	t.Helper()
	list, err := l.Rows(caller, 100)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]Use{}
	for _, r := range list {
		all[r.Day+" "+r.Principal] = r.Use
	}
	return all
}

const day = 24 * time.Hour

func TestTimeAndBytesOfSessionsAddUp(t *testing.T) {
	t.Parallel()
	c := newClock()
	l := open(t, t.TempDir(), c)
	l.Start("ann", "k1", Reading{Memory: quantity.GiB, Disk: 100, Counted: true})
	c.pass(30 * time.Minute)
	l.Start("ann", "k2", Reading{Memory: quantity.GiB})
	l.Count(map[string]Reading{"k1": {Memory: quantity.GiB, Disk: 300, CPU: time.Second, Counted: true}})
	c.pass(30 * time.Minute)
	l.Stop("k1", Reading{CPU: 3 * time.Second, Counted: true})
	l.Stop("k1", Reading{CPU: 9 * time.Second, Counted: true}) // it has stopped already
	l.AddCPU("ann", 500*time.Millisecond)
	want := map[string]Use{"2026-11-22 ann": {Sessions: 90 * time.Minute, CPU: 3500 * time.Millisecond, Memory: 1.5 * float64(quantity.GiB), Disk: 200, Started: 2}}
	if diff := cmp.Diff(want, rows(t, l, "")); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if len(rows(t, l, "bob")) != 0 {
		t.Error("bob has usage, want none")
	}
	l.Start("bob", "k3", Reading{})
	c.pass(2 * day) // the total does not restart with the day; k2 lives too
	if diff := cmp.Diff(Use{Sessions: 90*time.Minute + 4*day, CPU: 3500 * time.Millisecond, Memory: 49.5 * float64(quantity.GiB), Disk: 200}, l.Total()); diff != "" {
		t.Errorf("in all: -want +got:\n%s", diff)
	}
}

func TestExecutionsPerDayAreLimited(t *testing.T) {
	t.Parallel()
	c := newClock()
	l := open(t, t.TempDir(), c)
	for i := range 3 {
		if ok, used, _ := l.Begin("ann", 3); !ok || used != i {
			t.Fatalf("execution %d: ok = %v, used = %d, want ok == true and used == i", i, ok, used)
		}
	}
	ok, used, untilReset := l.Begin("ann", 3)
	if ok || used != 3 || untilReset != 12*time.Hour {
		t.Errorf("one too many: ok = %v, used = %d, untilReset = %v, want ok == false and used == 3 and rest == 12 * time.Hour",
			ok, used, untilReset)
	}
	l.Refuse("ann")
	if ok, _, _ := l.Begin("bob", 3); !ok {
		t.Error("the exhausted day of one principal counts for another")
	}
	c.pass(12 * time.Hour)
	if ok, used, _ := l.Begin("ann", 3); !ok || used != 0 {
		t.Errorf("on the next day: ok = %v, used = %d, want ok == true and used == 0", ok, used)
	}
	if got := rows(t, l, "ann"); got["2026-11-22 ann"].Executions != 3 || got["2026-11-22 ann"].Denied != 1 || got["2026-11-23 ann"].Executions != 1 {
		t.Errorf("rows %+v", got)
	}
}

// A boxd that is killed loses only what it has not written; the next one counts the time that sessions ran without a boxd.
func TestUsageAccountingContinuesAfterAKill(t *testing.T) {
	t.Parallel()
	c, dir := newClock(), t.TempDir()
	l := open(t, dir, c)
	l.Start("ann", "k1", Reading{Memory: quantity.GiB, Counted: true})
	l.Begin("ann", 0)
	c.pass(time.Hour)
	l.Count(map[string]Reading{"k1": {Memory: quantity.GiB, CPU: time.Minute, Counted: true}})
	if err := l.Flush(); err != nil {
		t.Fatal(err)
	}
	l.Begin("ann", 0) // lost
	c.pass(30 * time.Minute)
	next := open(t, dir, c)
	next.Resume("ann", "k1", Reading{Memory: quantity.GiB, CPU: 3 * time.Minute, Counted: true})
	next.Resume("bob", "k2", Reading{Memory: quantity.GiB, CPU: time.Hour, Counted: true}) // no record of its beginning
	want := map[string]Use{"2026-11-22 ann": {Executions: 1, Started: 1, Sessions: 90 * time.Minute, CPU: 3 * time.Minute, Memory: 1.5 * float64(quantity.GiB)}}
	if diff := cmp.Diff(want, rows(t, next, "")); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if err := next.Close(); err != nil {
		t.Fatal(err)
	}
	c.boot, c.since = "b2", 0 // no session survives a boot
	after := open(t, dir, c)
	after.Resume("ann", "k1", Reading{Memory: quantity.GiB})
	if diff := cmp.Diff(want, rows(t, after, "")); diff != "" {
		t.Errorf("after a boot -want +got:\n%s", diff)
	}
}

// The wall clock only decides which day something counts for.
func TestAClockJumpLosesNoUsage(t *testing.T) {
	t.Parallel()
	c, dir := newClock(), t.TempDir()
	l := open(t, dir, c)
	l.Begin("ann", 0)
	l.Start("ann", "k1", Reading{})
	c.pass(time.Hour)
	c.jump(400 * day)
	l.Begin("ann", 0)
	c.jump(-400 * day) // before anything was written
	l.Begin("ann", 0)
	if err := l.Flush(); err != nil {
		t.Fatal(err)
	}
	c.jump(-20 * 365 * day)
	l.Begin("ann", 0)
	c.jump(20 * 365 * day)
	c.pass(time.Hour)
	l.Begin("ann", 0)
	got := rows(t, l, "")
	var all Use
	for _, u := range got {
		all.Executions += u.Executions
		all.Sessions += u.Sessions
	}
	if got["2026-11-22 ann"].Executions != 3 || all.Executions != 5 || all.Sessions != 2*time.Hour {
		t.Errorf(`got %+v, want got["2026-11-22 ann"].Executions == 3 and all.Executions == 5 and all.Sessions == 2 * time.Hour`,
			got)
	}
}

func TestOldDaysAreRemoved(t *testing.T) {
	t.Parallel()
	c, dir := newClock(), t.TempDir()
	l := open(t, dir, c)
	for range 6 {
		l.Begin("ann", 0)
		if err := l.Flush(); err != nil {
			t.Fatal(err)
		}
		c.pass(day)
	}
	l.Begin("ann", 0)
	if err := l.Flush(); err != nil {
		t.Fatal(err)
	}
	got := rows(t, l, "")
	if len(got) != 4 || got["2026-11-28 ann"].Executions != 1 { // three, and the day that has just begun
		t.Errorf(`got %+v, want len(got) == 4 and got["2026-11-28 ann"].Executions == 1`, got)
	}
	l.SetKeep(1)
	if got := rows(t, l, ""); len(got) != 1 {
		t.Errorf("of one day: got %+v, want len(got) == 1", got)
	}
}

func TestARecordThatCannotBeReadIsNotPassedOver(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{"no JSON": "{", "another day": `{"day":"2020-01-01"}`, "empty": ""} {
		c, dir := newClock(), t.TempDir()
		path := filepath.Join(dir, "usage", "2026-11-22.json")
		if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := OpenLedger(dir, 3, c.Clock(), slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "2026-11-22.json") {
			t.Errorf(`%s: err = %v, want an error containing "2026-11-22.json"`, name, err)
		}
		// A bad record of a later day must not keep boxd from counting.
		c.jump(-day)
		l := open(t, dir, c)
		c.jump(day)
		if ok, _, _ := l.Begin("ann", 1); !ok {
			t.Errorf("%s: nothing is counted", name)
		}
		if ok, _, _ := l.Begin("ann", 1); ok {
			t.Errorf("%s: nothing is held", name)
		}
	}
}

// A record of a later boxd, with unknown fields, is read.
func TestARecordWithMoreInItIsRead(t *testing.T) {
	t.Parallel()
	c, dir := newClock(), t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "usage"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "usage", "2026-11-22.json"), []byte(`{"day":"2026-11-22","more":1,"use":{"ann":{"executions":7,"gpu":1},"bob":null}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := rows(t, open(t, dir, c), ""); got["2026-11-22 ann"].Executions != 7 || len(got) != 1 {
		t.Errorf(`got %+v, want got["2026-11-22 ann"].Executions == 7 and len(got) == 1`, got)
	}
}

func TestConcurrentExecutionsAreAllCounted(t *testing.T) {
	t.Parallel()
	c, dir := newClock(), t.TempDir()
	l := open(t, dir, c)
	var work sync.WaitGroup
	for i := range 8 {
		work.Go(func() {
			for range 250 {
				if ok, _, _ := l.Begin("ann", 1000); !ok {
					l.Refuse("ann")
				}
				if i == 0 {
					if err := l.Flush(); err != nil {
						t.Error(err)
					}
				}
				l.Total()
				if _, err := l.Rows("", 30); err != nil { // who reads takes nothing from who writes
					t.Error(err)
				}
			}
		})
	}
	work.Wait()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if got := rows(t, open(t, dir, c), ""); got["2026-11-22 ann"].Executions != 1000 || got["2026-11-22 ann"].Denied != 1000 {
		t.Errorf(`got %+v, want got["2026-11-22 ann"].Executions == 1000 and got["2026-11-22 ann"].Denied == 1000`, got)
	}
	left, err := fs.Glob(os.DirFS(filepath.Join(dir, "usage")), ".new-*")
	if err != nil || len(left) > 0 {
		t.Errorf("left over: left = %v, err = %v, want no error and len(left) == 0", left, err)
	}
}

// FuzzRecord feeds arbitrary records to the ledger: what it accepts can be counted on.
func FuzzRecord(f *testing.F) {
	f.Add(`{"day":"2026-11-22","use":{"a":{"executions":1}},"open":{"k":{"principal":"a","cpu":5}}}`)
	f.Add(`{"day":"2026-11-22","use":{"a":null},"at":-1,"boot":"b1"}`)
	f.Fuzz(func(t *testing.T, text string) {
		c, dir := newClock(), t.TempDir()
		if err := os.Mkdir(filepath.Join(dir, "usage"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "usage", "2026-11-22.json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		l, err := OpenLedger(dir, 3, c.Clock(), slog.New(slog.DiscardHandler))
		if err != nil {
			return
		}
		l.Begin("a", 0)
		l.Resume("a", "k", Reading{Counted: true, CPU: time.Second})
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// After the clock is set back over midnight the earlier day goes on in a copy: a record that Flush may be writing does not change.
func TestAUsageRecordBeingWrittenDoesNotChange(t *testing.T) {
	t.Parallel()
	c := newClock()
	l := open(t, t.TempDir(), c)
	l.Begin("uid:1", 0)
	c.pass(24 * time.Hour)
	l.Begin("uid:1", 0)
	writing := l.done["2026-11-22"] // as Flush reads it, without the lock
	c.jump(-24 * time.Hour)
	l.Begin("uid:1", 0)
	l.Begin("uid:2", 0)
	if n := writing.Use["uid:1"].Executions; n != 1 || len(writing.Use) != 1 {
		t.Errorf("%d executions, of %d principals", n, len(writing.Use))
	}
	if used, _ := l.Used("uid:1"); used != 2 {
		t.Errorf("of that day there are %d, want 2", used)
	}
}
