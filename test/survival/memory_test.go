// SPDX-License-Identifier: Apache-2.0

package survival_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

// A boxd that gets no more memory from the kernel ends in mid-operation, and loses no more than one that is killed.
func TestNothingIsLostWhenBoxdGetsNoMemory(t *testing.T) {
	under(t, max(kills()/40, 2), func(d *boxtest.Daemon) {
		starve(t, d)
		d.Restart()
	})
}

// starve limits boxd to the memory that it has, sends requests that need more, and waits until it has ended.
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
	large := strings.Repeat("\n", 6<<20) // each newline is sent as two bytes
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for ctx.Err() == nil {
				_, _ = d.Exec(ctx, "s1", &api.ExecRequest{Argv: []string{"true"}, Stdin: large}) // this is meant to kill it
			}
		})
	}
	before := len(d.Log())
	if err := d.Wait(); err == nil {
		t.Error("boxd exited with code 0, want it killed for want of memory")
	}
	cancel()
	wg.Wait()
	// Running out of memory ends a program in many ways, with and without the race detector: a fault of boxd itself has this one.
	if text := d.Log()[min(before, len(d.Log())):]; strings.Contains(text, "panic: ") {
		t.Errorf("boxd has not died for want of memory:\n%.2000s", text)
	}
}

// failslab is the directory for the kernel's fault injection of allocations (Documentation/fault-injection of the kernel).
type failslab string

// newFailslab makes allocations fail for marked tasks; none is marked yet.
func newFailslab(t *testing.T) failslab {
	t.Helper()
	boxtest.RequireRoot(t)
	dir := boxtest.TempDir(t)
	if err := unix.Mount("debugfs", dir, "debugfs", 0, ""); err != nil {
		boxtest.Missing(t, "debugfs")
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	f := failslab(filepath.Join(dir, "failslab"))
	if _, err := os.Stat(string(f)); err != nil {
		boxtest.Missing(t, boxtest.OwnKernel)
	}
	f.set(t, "probability", 0)
	t.Cleanup(func() { f.set(t, "probability", 0) })
	f.set(t, "verbose", 0)
	f.set(t, "interval", 1)
	for name, value := range map[string]string{"task-filter": "Y", "ignore-gfp-wait": "N"} {
		f.write(t, filepath.Join(string(f), name), value)
	}
	return f
}

func (f failslab) set(t *testing.T, name string, value int) {
	t.Helper()
	f.write(t, filepath.Join(string(f), name), strconv.Itoa(value))
}

func (f failslab) write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0); err != nil {
		t.Fatal(err)
	}
}

// next makes one allocation fail, after that many bytes, in the threads of these processes and in what they start from now on.
func (f failslab) next(t *testing.T, bytes int, pids ...int) {
	t.Helper()
	f.set(t, "probability", 0)
	for _, pid := range pids {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/make-it-fail", pid))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range threads {
			if err := os.WriteFile(file, []byte("1"), 0); err != nil && !errors.Is(err, unix.ESRCH) && !errors.Is(err, os.ErrNotExist) {
				t.Fatal(err)
			}
		}
	}
	f.set(t, "space", bytes)
	f.set(t, "times", 1)
	f.set(t, "probability", 100)
}

// A failed kernel allocation fails at most the session that is being created. Existing ones go on, and nothing of the failed one
// is left, whichever allocation it was: of the keeper, of a zygote, or of the box being created.
func TestAKernelWithoutMemoryFailsOneSessionAtMost(t *testing.T) {
	f := newFailslab(t)
	d := start(t)
	stays := d.NewSession(t, api.SessionRequest{ID: "stays"})
	d.NewProcess(t, "stays", "p", &api.ProcessRequest{Argv: []string{"sleep", "100000"}})
	d.AwaitPrefork(1)
	before := d.Look()
	const least = 3 // sessions that fail; most failed allocations are not needed, or retried
	failed, rounds := 0, max(kills()/4, 20)
	for i := 0; i < rounds || failed < least && i < 40*rounds; i++ {
		bytes := int(math.Exp(rand.Float64() * math.Log(1<<21))) // as often below a thousand as above
		f.next(t, bytes, append(d.Zygotes(), d.Keeper())...)
		start := time.Now()
		_, _, err := d.CreateSession(t.Context(), &api.SessionRequest{ID: "made"})
		if err == nil {
			_, err = d.Exec(t.Context(), "made", &api.ExecRequest{Argv: []string{"true"}})
		}
		f.set(t, "probability", 0)
		if err != nil {
			failed++
			e, ok := errors.AsType[*client.Error](err)
			elapsed := time.Since(start)
			t.Logf("%d: after %d bytes and %v: %v", i, bytes, elapsed.Round(time.Millisecond), err)
			if elapsed > 50*time.Second { // of the minute that a start may take
				t.Errorf("the failed creation has no error message: err = %v, want took <= 50 * time.Second", err)
			}
			if !ok || e.Status < http.StatusInternalServerError && e.Status != http.StatusNotFound {
				t.Errorf("after %d bytes: err = %v, want ok == true and (e.Status >= 500 or e.Status == 404)",
					bytes, err)
			}
		}
		boxtest.Eventually(t, "the session that may exist is removed", func() bool { // by a new keeper, if the old one has failed
			err := d.DeleteSession(t.Context(), "made")
			return err == nil || errors.Is(err, client.NotFound)
		})
		if got := d.Sh(t, "stays", "echo here"); got != "here\n" {
			t.Fatalf(`got %q, want "here\n"`, got)
		}
	}
	t.Logf("%d sessions have failed", failed)
	if failed < least {
		t.Error("fewer sessions failed than the test needs")
	}
	if s, err := d.Session(t.Context(), "stays"); err != nil || s.PID != stays.PID {
		t.Errorf("err = %v, s = %+v, want no error and s.PID == %v", err, s, stays.PID)
	}
	if p, err := d.Process(t.Context(), "stays", "p", 0); err != nil || p.State != "running" || p.Starts != 1 {
		t.Errorf(`err = %v, p = %+v, want no error and p.State == "running" and p.Starts == 1`, err, p)
	}
	d.NewSession(t, api.SessionRequest{ID: "after"})
	d.Sh(t, "after", "true")
	if err := d.DeleteSession(t.Context(), "after"); err != nil {
		t.Error(err)
	}
	d.NothingLeft(before)
}
