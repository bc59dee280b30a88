// SPDX-License-Identifier: Apache-2.0

package limits_test

import (
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

// The usage of a session is sampled regularly, also while it is stopped and started, until the operator disables that.
func TestTheUseOfASessionHasAHistory(t *testing.T) {
	d := start(t, "[usage]\nhistory = \"1m\"\n")
	d.NewSession(t, api.SessionRequest{ID: "s", ReadOnlyRoot: new(false)})
	d.NewSession(t, api.SessionRequest{ID: "idle"})
	d.Sh(t, "s", "head -c 3M /dev/zero > f")
	d.NewProcess(t, "s", "busy", boxtest.ShellProcess("while :; do :; done"))
	history := func(id string, after time.Time) api.UsageHistory {
		t.Helper()
		h, err := d.UsageHistory(t.Context(), id, after)
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	var last api.UsageSample
	boxtest.Eventually(t, "a sample shows the CPU time of the loop", func() bool {
		h := history("s", time.Time{})
		if time.Duration(h.Kept) != time.Minute || time.Duration(h.Interval) != 5*time.Second {
			t.Fatalf("h = %+v, want time.Duration(h.Kept) == time.Minute and time.Duration(h.Interval) == 5 * time.Second",
				h)
		}
		if len(h.Samples) < 2 {
			return false
		}
		last = h.Samples[len(h.Samples)-1]
		u, w := last.Usage, last.Workspace
		return u != nil && u.CPUPercent > 5 && u.CPUMS > 0 && u.Memory > 0 && u.Pids > 0 && w != nil && w.Used >= 3<<20 && w.Files > 0
	})
	if at := history("s", last.At).Samples; len(at) > 1 || len(at) == 1 && !at[0].At.After(last.At) {
		t.Errorf("after the last one there are %+v, want len(at) <= 1 and (len(at) != 1 or at[0].At.After(last.At))",
			at)
	}
	if idle := history("idle", time.Time{}).Samples; len(idle) == 0 || idle[len(idle)-1].Usage.CPUPercent >= last.Usage.CPUPercent {
		t.Errorf("an idle session: idle = %+v, want len(idle) != 0 and idle[len(idle)-1].Usage.CPUPercent < last.Usage.CPUPercent",
			idle)
	}

	list, err := d.FindSessions(t.Context(), &client.SessionFilter{WithUsage: true})
	if err != nil || len(list) != 2 || list[0].Usage == nil || list[0].Usage.CPUMS < last.Usage.CPUMS || list[0].Workspace == nil || list[1].Usage == nil {
		t.Errorf("a list with usage: list = %+v, err = %v, want no error and len(list) == 2 and list[0].Usage != nil and list[0].Usage.CPUMS >= last.Usage.CPUMS and list[0].Workspace != nil and list[1].Usage != nil",
			list, err)
	}
	if list, err := d.FindSessions(t.Context(), &client.SessionFilter{}); err != nil || len(list) != 2 || list[0].Usage != nil || list[0].Workspace != nil {
		t.Errorf("a list without: list = %+v, err = %v, want no error and len(list) == 2 and list[0].Usage == nil and list[0].Workspace == nil",
			list, err)
	}

	if _, err := d.StopSession(t.Context(), "s"); err != nil {
		t.Fatal(err)
	}
	if h := history("s", time.Time{}).Samples; len(h) < 2 {
		t.Errorf("stopped, it has %+v, want len(h) >= 2", h)
	}
	if _, err := d.StartSession(t.Context(), "s"); err != nil {
		t.Fatal(err)
	}
	boxtest.Eventually(t, "the session has a new sample", func() bool {
		h := history("s", time.Time{}).Samples
		return len(h) > 2 && h[len(h)-1].Usage.CPUMS < last.Usage.CPUMS && h[len(h)-1].Usage.CPUPercent >= 0
	})

	text, err := os.ReadFile(d.Config)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(d.Config, []byte(strings.Replace(string(text), `history = "1m"`, `history = "0s"`, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(d.PID(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	boxtest.Eventually(t, "the history is empty, as the new configuration keeps none", func() bool {
		h := history("s", time.Time{})
		return h.Kept == 0 && h.Samples != nil && len(h.Samples) == 0
	})
}
