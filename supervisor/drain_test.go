// SPDX-License-Identifier: Apache-2.0

package supervisor_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/supervisor"
)

func open(t *testing.T, state string) *supervisor.DrainSwitch {
	t.Helper()
	g, err := supervisor.OpenDrainSwitch(state)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.Close)
	return g
}

func TestADrainOutlivesBoxd(t *testing.T) {
	t.Parallel()
	state, now := t.TempDir(), time.Unix(1e9, 5)
	g := open(t, state)
	if err := g.Check(true); err != nil {
		t.Error(err)
	}
	if err := g.Check(false); fault.KindOf(err) != fault.Unavailable || !strings.Contains(err.Error(), "enabled = false") {
		t.Error(err)
	}
	d, err := g.Drain("uid:0", "new disk", now)
	if err != nil || d.By != "uid:0" {
		t.Fatalf(`d = %+v, err = %v, want no error and d.By == "uid:0"`, d, err)
	}
	if again, err := g.Drain("uid:1", "", now.Add(time.Hour)); err != nil || again != d {
		t.Errorf("%+v, %v: the first caller that drained boxd is lost", again, err)
	}
	next := open(t, state)
	err = next.Check(true)
	if fault.KindOf(err) != fault.Unavailable || !strings.Contains(err.Error(), "drained by root at "+now.Local().Format(time.DateTime)+` ("new disk")`) {
		t.Error(err)
	}
	for range 2 {
		if err := next.Undrain(); err != nil {
			t.Error(err)
		}
	}
	if err := next.Check(true); err != nil {
		t.Error(err)
	}
	if err := open(t, state).Check(true); err != nil {
		t.Error(err)
	}
}

func TestBadDrainInputIsRefused(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	if _, err := open(t, state).Drain("x", strings.Repeat("a", supervisor.MaxDrainReason+1), time.Now()); fault.KindOf(err) != fault.Invalid {
		t.Error(err)
	}
	if err := os.WriteFile(filepath.Join(state, "drained.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := supervisor.OpenDrainSwitch(state); err == nil || !strings.Contains(err.Error(), "remove the file") {
		t.Error(err)
	}
}
