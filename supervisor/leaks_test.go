// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"
)

func TestALeakIsReportedWhenTwoChecksSeeIt(t *testing.T) {
	work, groups := t.TempDir(), t.TempDir()
	for _, dir := range []string{filepath.Join(work, "a"), filepath.Join(work, "left"), filepath.Join(groups, "owner-1", "box-a"), filepath.Join(groups, "owner-2", "box-left"), filepath.Join(groups, "anchor")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		boxes, looks := []string{"a", "left", "other"}, 0
		l := &LeakCheck{
			List:       func(context.Context) ([]string, error) { looks++; return boxes, nil },
			Known:      func() map[string]bool { return map[string]bool{"a": true} },
			Workspaces: func() string { return work }, Groups: groups,
		}
		none := map[string]int{Boxes: 0, Groups: 0, Workspaces: 0}
		for range 3 { // repeated requests share one look
			if got := l.Count(t.Context()); !maps.Equal(got, none) || looks != 1 {
				t.Errorf("at first, after %d checks: got %v, want got == %v and looks == 1", looks, got, none)
			}
		}
		boxes = []string{"a", "left", "fresh"}
		time.Sleep(interval) //nolint:forbidigo // in a bubble, where it takes no time
		if got, want := l.Count(t.Context()), map[string]int{Boxes: 1, Groups: 1, Workspaces: 1}; !maps.Equal(got, want) {
			t.Errorf("then %v, want %v", got, want)
		}
		if err := os.Remove(filepath.Join(work, "left")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(interval) //nolint:forbidigo // as above
		if got, want := l.Count(t.Context()), map[string]int{Boxes: 2, Groups: 1, Workspaces: 0}; !maps.Equal(got, want) {
			t.Errorf("at last %v, want %v", got, want)
		}
	})
}
