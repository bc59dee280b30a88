// SPDX-License-Identifier: Apache-2.0

package sessions_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

// noBoxes waits until no process of a box is left.
func noBoxes(t *testing.T, d *boxtest.Daemon) {
	t.Helper()
	boxtest.Eventually(t, "every box is dead", func() bool { return len(d.Look().Processes) == 0 })
}

// churn creates, uses and deletes sessions as fast as boxd allows, until boxd stops answering. done counts the completed rounds.
func churn(ctx context.Context, d *boxtest.Daemon, workers int, done *atomic.Int64) (wait func()) {
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for n := 0; ; n++ {
				id := fmt.Sprintf("w%d-%d", w, n%3)
				if _, _, err := d.CreateSession(ctx, &api.SessionRequest{ID: id}); err != nil {
					return
				}
				done.Add(1)
				if _, err := d.Exec(ctx, id, new(boxtest.Shell("echo x > file; (setsid sleep 1000 &) ; sleep 0.01"))); err != nil {
					return
				}
				done.Add(1)
				if n%2 == 0 && d.DeleteSession(ctx, id) != nil {
					return
				}
				done.Add(1)
			}
		})
	}
	return wg.Wait
}

func TestKilledBoxdTakesEveryBoxWithItAndItsSuccessorCleansUp(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.Warm()
	before := d.Look()
	for _, moment := range []int64{0, 1, 2, 3, 5, 8, 13, 40} {
		var done atomic.Int64
		wait := churn(t.Context(), d, 4, &done)
		boxtest.Eventually(t, "the load has reached the given number of requests", func() bool { return done.Load() >= moment })
		d.Kill()
		wait()
		noBoxes(t, d)
		d.Restart()
		if got := sessions(t, d); len(got) > 0 {
			t.Fatalf("killed after %d: the next boxd has %q, want len(got) == 0", moment, got)
		}
		d.Warm()
		d.NothingLeft(before)
	}
}

func TestBoxdKilledWhileAProgramRuns(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.Warm()
	before := d.Look()
	d.NewSession(t, api.SessionRequest{ID: "s1"})
	failed := make(chan error, 1)
	go func() {
		_, err := d.Exec(t.Context(), "s1", new(boxtest.Shell("setsid sleep 1000 & trap '' TERM HUP INT; echo x > file; sleep 1000")))
		failed <- err
	}()
	boxtest.Eventually(t, "the program runs", func() bool {
		s, err := d.Session(t.Context(), "s1")
		return err == nil && s.Running == 1
	})
	d.Kill()
	if err := <-failed; err == nil {
		t.Error("an execution of a boxd that was killed has a result")
	}
	noBoxes(t, d)
	if files := d.Look().Files; len(files) == 0 {
		t.Error("nothing is left for the next boxd to clean up: this test proves nothing")
	}
	d.Restart()
	d.Warm()
	d.NothingLeft(before)
	d.NewSession(t, api.SessionRequest{ID: "s1"})
	if got := d.Sh(t, "s1", "ls"); got != "" {
		t.Errorf("the new session has %q of the old one", got)
	}
}

func TestAStopIsInOrder(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.NewSession(t, api.SessionRequest{ID: "s1"})
	results := make(chan api.ExecResult, 1)
	go func() {
		r, _ := d.Exec(t.Context(), "s1", new(boxtest.Shell("sleep 1000")))
		results <- r
	}()
	boxtest.Eventually(t, "the program runs", func() bool {
		s, err := d.Session(t.Context(), "s1")
		return err == nil && s.Running == 1
	})
	d.Stop()
	if r := <-results; r.Status != "canceled" {
		t.Errorf(`r = %s, want r.Status == "canceled"`, boxtest.Show(r))
	}
	noBoxes(t, d)
	boxtest.Eventually(t, "no file is left", func() bool { return len(d.Look().Files) == 0 })
	if _, err := os.Lstat(d.Socket); !os.IsNotExist(err) {
		t.Errorf("the socket is left: err = %v, want os.IsNotExist(err)", err)
	}
	if !strings.Contains(d.Log(), "reason=shutdown") {
		t.Errorf("the log does not say why the session has ended:\n%s", d.Log())
	}
	d.Restart()
	d.NewSession(t, api.SessionRequest{ID: "s1"})
}

// A request for which boxd has no descriptors left fails; nothing else does.
func TestBoxdOutOfDescriptorsFailsRequestsAlone(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.Warm()
	before := d.Look()
	d.NewSession(t, api.SessionRequest{ID: "s1"})
	var old unix.Rlimit
	if err := unix.Prlimit(d.PID(), unix.RLIMIT_NOFILE, nil, &old); err != nil {
		t.Fatal(err)
	}
	var failed atomic.Int64
	for room := 20; room <= 60; room += 10 {
		if err := unix.Prlimit(d.PID(), unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(room), Max: old.Max}, nil); err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for i := range 40 {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second) // boxd may be unable to accept the connection
				defer cancel()
				var out strings.Builder
				req := boxtest.Shell("cat; head -c 100000 /dev/zero | tr '\\0' x")
				if i%2 == 0 {
					_, err := d.RunStream(ctx, &api.OneShotRequest{Exec: req}, client.Stdio{Stdin: strings.NewReader("x"), Stdout: &out, Stderr: &out}, nil)
					if err != nil {
						failed.Add(1)
					}
				} else if r, err := d.Exec(ctx, "s1", &req); err != nil || r.Status != "exited" {
					failed.Add(1)
				}
			})
		}
		wg.Wait()
	}
	if err := unix.Prlimit(d.PID(), unix.RLIMIT_NOFILE, &old, nil); err != nil {
		t.Fatal(err)
	}
	if failed.Load() == 0 {
		t.Error("no request failed for want of descriptors: this test proves nothing")
	}
	d.Sh(t, "s1", "true")
	if err := d.DeleteSession(t.Context(), "s1"); err != nil {
		t.Fatal(err)
	}
	boxtest.Eventually(t, "all sessions are gone", func() bool { return len(sessions(t, d)) == 0 })
	d.Warm()
	d.NothingLeft(before)
}

// helpers returns the children of the keeper that run its own program with the given command.
func helpers(t *testing.T, d *boxtest.Daemon, command string) (list []int) {
	t.Helper()
	for _, pid := range boxtest.Children(t, d.Keeper()) {
		cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err == nil && strings.HasPrefix(string(cmdline), "boxkeeper\x00"+command) {
			list = append(list, pid)
		}
	}
	return list
}

// Each helper process of boxkeeper keeps only the capabilities of root that its work needs, on every thread: a zygote, from which
// boxes are cloned, and a worker, which accesses users' filesystems.
func TestHelpersOfTheKeeperKeepFewCapabilities(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.Warm()
	const both = 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_SETGID | 1<<unix.CAP_SETUID | 1<<unix.CAP_SYS_ADMIN | 1<<unix.CAP_SYS_PTRACE
	for command, kept := range map[string]uint64{"zygote": both, "errands": both | 1<<unix.CAP_SYS_CHROOT} {
		var all []int
		want := fmt.Sprintf("%016x", kept)
		boxtest.Eventually(t, "the keeper has a "+command+" that has finished its start", func() bool { // before that it drops the others
			all = helpers(t, d, command)
			return len(all) > 0 && !slices.ContainsFunc(all, func(pid int) bool {
				threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
				return len(threads) == 0 || slices.ContainsFunc(threads, func(path string) bool {
					status, err := os.ReadFile(path)
					return err != nil || !strings.Contains(string(status), "CapEff:\t"+want)
				})
			})
		})
		for _, pid := range all {
			threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
			if err != nil || len(threads) == 0 {
				t.Fatalf("threads: threads = %v, err = %v, want no error and len(threads) != 0", threads, err)
			}
			for _, thread := range threads {
				tid, err := strconv.Atoi(thread.Name())
				if err != nil {
					t.Fatal(err)
				}
				status := boxtest.ProcessStatus(t, tid)
				if status["CapEff"] != want || status["CapPrm"] != want || status["CapInh"] != strings.Repeat("0", 16) {
					t.Errorf("a thread of %s has %s, permitted %s, inheritable %s; want %s", command, status["CapEff"], status["CapPrm"], status["CapInh"], want)
				}
			}
			if got := boxtest.ProcessStatus(t, pid)["CapBnd"]; command == "zygote" && got != want {
				t.Errorf("the bounding set of %s is %s, want %s", command, got, want)
			}
		}
	}
}

func TestADeadZygoteIsReplaced(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.Warm()
	before := d.Look()
	for round := range 3 {
		var zygotes []int
		boxtest.Eventually(t, "there is one zygote", func() bool { // a process that is being started still looks like its parent
			zygotes = helpers(t, d, "zygote")
			return len(zygotes) == 1
		})
		if err := syscall.Kill(zygotes[0], syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		for i := range 3 { // one of them was preforked
			id := fmt.Sprintf("s%d-%d", round, i)
			d.NewSession(t, api.SessionRequest{ID: id})
			d.Sh(t, id, "true")
			if err := d.DeleteSession(t.Context(), id); err != nil {
				t.Fatal(err)
			}
		}
	}
	d.NothingLeft(before)
}

func TestADeadBoxMadeAheadIsNotUsed(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	for range 3 {
		d.Warm()
		var pid int
		if _, err := fmt.Sscan(d.Look().Processes[0], &pid); err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		s := d.NewSession(t, api.SessionRequest{})
		d.Sh(t, s.ID, "true")
		if err := d.DeleteSession(t.Context(), s.ID); err != nil {
			t.Fatal(err)
		}
	}
}

// A one-shot session ends with the boxd that was to answer, since no client knows its id.
func TestAOneShotEndsWithItsBoxd(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, boxtest.Kept)
	d.Warm()
	before := d.Look()
	over := make(chan error, 1)
	go func() {
		_, err := d.Run(context.WithoutCancel(t.Context()), &api.OneShotRequest{Exec: api.ExecRequest{Argv: []string{"sleep", "100"}}})
		over <- err
	}()
	boxtest.Eventually(t, "the program runs", func() bool {
		s, err := d.Status(t.Context())
		return err == nil && s.Running == 1
	})
	d.Kill()
	if err := <-over; err == nil {
		t.Error("the program ended by itself")
	}
	d.Restart()
	if left := sessions(t, d); len(left) != 0 {
		t.Errorf("there are %q, want len(left) == 0", left)
	}
	d.NothingLeft(before)
}
