// SPDX-License-Identifier: Apache-2.0

package access_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/boxd-dev/boxd/supervisor/access"

	"github.com/boxd-dev/boxd/internal/fault"
)

// clock is a clock that a test moves.
type clock struct{ at time.Time }

func (c *clock) now() time.Time { return c.at }

func open(t *testing.T, dir string, c *clock) *access.Grants {
	t.Helper()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	s, err := access.OpenGrants(root, c.now)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestAGrantLastsForItsTimeAndOverBoxd(t *testing.T) {
	t.Parallel()
	dir, c := t.TempDir(), &clock{time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)}
	s := open(t, dir, c)
	changes := 0
	s.OnChange(func() { changes++ })
	g, err := s.Give("uid:1000", access.Operator, time.Hour, "uid:0")
	if err != nil || !g.Until.Equal(c.at.Add(time.Hour)) || g.By != "uid:0" {
		t.Fatalf(`g = %+v, err = %v, want no error and g.Until.Equal(c.at.Add(time.Hour)) and g.By == "uid:0"`, g, err)
	}
	if _, err := s.Give("ci", access.Admin, 2*time.Hour, "uid:0"); err != nil {
		t.Fatal(err)
	}
	next := open(t, dir, c) // of the next boxd
	for _, s := range []*access.Grants{s, next} {
		if g, ok := s.Of("uid:1000"); !ok || g.Role != access.Operator {
			t.Errorf("g = %+v, ok = %v, want ok == true and g.Role == access.Operator", g, ok)
		}
		if list := s.List(); len(list) != 2 || list[0].Principal != "ci" {
			t.Errorf(`list = %+v, want len(list) == 2 and list[0].Principal == "ci"`, list)
		}
		if _, ok := s.Of("uid:1001"); ok {
			t.Error("another caller has the grant")
		}
	}
	c.at = c.at.Add(time.Hour)
	if _, ok := next.Of("uid:1000"); ok || len(next.List()) != 1 {
		t.Error("the grant has not expired")
	}
	if err := s.Revoke("uid:1000"); fault.KindOf(err) != fault.NotFound {
		t.Errorf("an expired grant was revoked: err = %v, want a fault.NotFound error", err)
	}
	if err := s.Revoke("ci"); err != nil {
		t.Error(err)
	}
	if _, ok := s.Of("ci"); ok || len(open(t, dir, c).List()) != 0 {
		t.Error("the revoked grant is still in force or on disk")
	}
	if changes != 3 {
		t.Errorf("%d changes were reported", changes)
	}
}

// Setting the clock back does not prolong a grant.
func TestAClockThatGoesBackEndsAGrant(t *testing.T) {
	t.Parallel()
	dir, c := t.TempDir(), &clock{time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)}
	if _, err := open(t, dir, c).Give("a", access.Admin, time.Hour, "uid:0"); err != nil {
		t.Fatal(err)
	}
	c.at = c.at.Add(-24 * time.Hour)
	if list := open(t, dir, c).List(); len(list) != 0 {
		t.Errorf("list = %+v, want len(list) == 0", list)
	}
}

func TestAGrantIsBounded(t *testing.T) {
	t.Parallel()
	dir, c := t.TempDir(), &clock{time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)}
	s := open(t, dir, c)
	for _, d := range []time.Duration{0, -time.Hour, access.LongestGrant + 1} {
		if _, err := s.Give("a", access.Admin, d, "uid:0"); fault.KindOf(err) != fault.Invalid {
			t.Errorf("%v: err = %v, want a fault.Invalid error", d, err)
		}
	}
	for i := range uint32(300) {
		if _, err := s.Give(access.OfUser(i), access.Admin, time.Hour, "uid:0"); (err == nil) != (i < 256) {
			t.Fatalf("%d: err = %v, want (err == nil) == (i < 256)", i, err)
		}
	}
	if _, err := s.Give(access.OfUser(3), access.Viewer, time.Hour, "uid:0"); err != nil {
		t.Errorf("a grant in place of another: %v", err)
	}
	// A record that was edited to last longer, or is not valid, grants nothing.
	for _, text := range []string{`[{"principal":"a","role":"admin","created":"2026-11-22T12:00:00Z","until":"2027-11-22T12:00:00Z"}]`, `[{}]`, `[]`} {
		if err := os.WriteFile(filepath.Join(dir, "grants.json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if list := open(t, dir, c).List(); len(list) != 0 {
			t.Errorf("%s: list = %+v, want len(list) == 0", text, list)
		}
	}
}
