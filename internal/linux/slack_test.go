// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// All threads get the slack, also those started earlier; without the capability only the first one is sure to.
func TestEveryThreadHasTheTimerSlack(t *testing.T) {
	err := SetTimerSlack(70 * time.Microsecond)
	if err != nil && (os.Geteuid() == 0 || !strings.Contains(err.Error(), unix.EPERM.Error())) {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = SetTimerSlack(50 * time.Microsecond) })
	threads, err := filepath.Glob("/proc/self/task/*")
	if err != nil || len(threads) < 2 {
		t.Fatalf("threads %v, %v", threads, err)
	}
	for _, thread := range threads {
		got, err := os.ReadFile("/proc/" + filepath.Base(thread) + "/timerslack_ns")
		if os.Geteuid() != 0 && os.IsPermission(err) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) { // it may have ended
			continue
		}
		if err != nil || string(got) != "70000\n" {
			t.Errorf(`thread %s: got %q, err = %v, want no error and got == "70000\n"`, thread, got, err)
		}
	}
}

// The units set the same slack, for a boxd that may not set it itself.
func TestUnitsSetTheSameTimerSlack(t *testing.T) {
	t.Parallel()
	units := os.DirFS("../../systemd/units")
	for _, name := range []string{"boxd.service", "boxd-keeper.service"} {
		text, err := fs.ReadFile(units, name)
		if want := "\nTimerSlackNSec=" + strings.Replace(TimerSlack.String(), "µ", "u", 1) + "\n"; err != nil || !strings.Contains(string(text), want) {
			t.Errorf("%s has no line %q: err = %v, want no error and text containing want", name, want, err)
		}
	}
}
