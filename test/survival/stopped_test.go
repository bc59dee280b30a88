// SPDX-License-Identifier: Apache-2.0

package survival_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
)

// A boxd or keeper that is killed at any moment of a stop or a start leaves a session that either runs or is stopped, with its
// files and environment, and no box without a session. The moments are spread over the duration of either.
func TestASessionIsStoppedOrRunsWhateverIsKilled(t *testing.T) {
	t.Parallel()
	const moments = 16
	d := start(t)
	d.NewSession(t, api.SessionRequest{ID: "s", ReadOnlyRoot: new(false), HomeOnDisk: new(true), Env: map[string]string{"A": "value"}})
	d.Sh(t, "s", "echo f > /workspace/f; echo home > ~/f; echo top > /opt/f")
	d.NewProcess(t, "s", "p", &api.ProcessRequest{Argv: []string{"sleep", "1000"}, Restart: &api.Restart{Policy: "always"}})
	do := map[bool]func() error{
		true:  func() error { _, err := d.StopSession(t.Context(), "s"); return err },
		false: func() error { _, err := d.StartSession(t.Context(), "s"); return err },
	}
	takes := map[bool]time.Duration{}
	for _, stops := range []bool{true, false} {
		start := time.Now()
		if err := do[stops](); err != nil {
			t.Fatal(err)
		}
		takes[stops] = time.Since(start)
	}
	left := map[string]int{}
	for i := range 4 * moments {
		stops, keeper := i%2 == 0, i/2%2 == 1
		at := takes[stops] * time.Duration(i/4) / moments
		over := make(chan error, 1)
		go func() { over <- do[stops]() }() // ends with boxd
		<-time.After(at)
		if keeper {
			if pid := d.Keeper(); pid > 0 {
				if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
					t.Fatal(err)
				}
			}
			if err := <-over; err != nil && boxtest.StatusOf(err) != 503 {
				t.Fatalf("%d, %v: err = %v, want no error or boxtest.StatusOf(err) == 503", i, at, err)
			}
		} else {
			d.Kill()
			<-over
			d.Restart()
		}
		s, err := d.Session(t.Context(), "s")
		if err != nil {
			t.Fatalf("%d, after %v of a stop %v, of the keeper %v: %v", i, at, stops, keeper, err)
		}
		left[fmt.Sprintf("%s after a stop %v", s.State, stops)]++
		switch s.State {
		case "ready":
		case "stopped":
			wantBoxes(t, d, 0, fmt.Sprintf("%d: it is stopped", i))
		default:
			t.Fatalf("%d: it is %s", i, s.State)
		}
		if err := do[false](); err != nil {
			t.Fatalf("%d: start: %v", i, err)
		}
		if got := d.Sh(t, "s", "cat /workspace/f ~/f /opt/f; echo $A"); got != "f\nhome\ntop\nvalue\n" {
			t.Fatalf(`%d: the files are %q, want got == "f\nhome\ntop\nvalue\n"`, i, got)
		}
		if p, err := d.Process(t.Context(), "s", "p", 0); err != nil || p.State == "ended" {
			t.Errorf(`%d: after %v of a stop %v, of the keeper %v, the process is %+v, %v, want no error and p.State != "ended"`,
				i, at, stops, keeper, p, err)
		}
		wantBoxes(t, d, 1, fmt.Sprintf("%d: it runs", i))
		if i+1 < 4*moments && i%2 == 0 { // started by the next round
			if err := do[true](); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Logf("%v; a stop takes %v, a start %v", left, takes[true], takes[false])
}

// wantBoxes waits until the keeper has so many boxes: the next keeper may still have to clean up what it finds.
func wantBoxes(t *testing.T, d *boxtest.Daemon, n int, when string) {
	t.Helper()
	var boxes []string
	defer func() {
		if t.Failed() {
			t.Logf("%s, and there are the boxes %q", when, boxes)
		}
	}()
	boxtest.Eventually(t, fmt.Sprintf("%s, and there are %d boxes", when, n), func() bool {
		boxes = boxesOf(t, d)
		return len(boxes) == n
	})
}

// boxesOf lists the directories of the boxes that the keeper has.
func boxesOf(t *testing.T, d *boxtest.Daemon) (list []string) {
	t.Helper()
	entries, err := os.ReadDir(d.Dir + "/run/boxes")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".") {
			list = append(list, e.Name())
		}
	}
	return list
}
