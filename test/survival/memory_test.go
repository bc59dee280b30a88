// SPDX-License-Identifier: Apache-2.0

package survival_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
)

// A boxd to which the kernel gives no more memory ends in the middle of what it does, and loses no more than one that is killed.
func TestNothingIsLostWhenBoxdGetsNoMemory(t *testing.T) {
	under(t, max(kills()/40, 2), func(d *boxtest.Daemon) {
		starve(t, d)
		d.Restart()
	})
}

// starve takes from boxd the right to more memory than it has, asks for what takes some, and waits until it has ended.
func starve(t *testing.T, d *boxtest.Daemon) {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", d.PID()))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), "VmData:")
	var has uint64
	if _, err := fmt.Sscan(rest, &has); err != nil {
		t.Fatal(err)
	}
	has <<= 10
	if err := unix.Prlimit(d.PID(), unix.RLIMIT_DATA, &unix.Rlimit{Cur: has, Max: has}, nil); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	large := strings.Repeat("\n", 6<<20) // each is two bytes on the way
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for ctx.Err() == nil {
				_, _ = d.Exec(ctx, "s1", &api.ExecRequest{Argv: []string{"true"}, Stdin: large}) // it is to die of it
			}
		})
	}
	before := len(d.Log())
	if err := d.Wait(); err == nil {
		t.Error("boxd has ended in order")
	}
	cancel()
	all.Wait()
	// How a program dies of it has many forms, with the race detector and without: a fault of boxd's own has this one.
	if text := d.Log()[min(before, len(d.Log())):]; strings.Contains(text, "panic: ") {
		t.Errorf("boxd has not died for want of memory:\n%.2000s", text)
	}
}
