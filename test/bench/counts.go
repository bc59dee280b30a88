// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

// counterSource is added to a boxd whose allocations are counted.
//
//go:embed counter/counter.go.txt
var counterSource []byte

// counted is one boxd whose work is counted, with its results per turn, by case.
type counted struct {
	name    string
	daemon  *exec.Cmd
	dir     string // where its counter writes
	queries int    // number of queries to it
	client  *client.Client
	bare    *bareClient
	init    int   // PID 1 of the session "count"
	keeper  []int // the keeper and its zygotes
	turns   map[string][]work
}

// The programs whose work is counted separately.
const (
	ofDaemon = iota
	ofInit   // PID 1 of the box
	ofKeeper // with its zygotes
	programsCounted
)

// work is the cost of one operation. A field that could not be counted is negative.
type work struct {
	allocations, bytes float64 // of boxd
	calls, switches    [programsCounted]float64
	processor          [programsCounted]time.Duration
}

const (
	countWarm = 100
	countEach = 100
	countRest = 3 * time.Millisecond // between two operations: long enough for every thread to go to sleep
)

// countCase is an operation to count.
type countCase struct {
	name string
	do   func(c *counted) error
}

func countCases() []countCase {
	exec := func(body string) func(c *counted) error {
		return func(c *counted) error { return c.bare.expect("/v1/sessions/count/exec", body, `"exit_code":0`) }
	}
	return []countCase{
		{"exec of true", exec(`{"argv":["` + program + `"]}`)},
		{"exec, 1 MiB of output", exec(`{"command":"printf %01048576d 1"}`)},
		{"exec of echo", exec(`{"argv":["/bin/echo","some words"]}`)},
		{"create + delete", func(c *counted) error {
			if err := c.bare.expect("/v1/sessions", `{"id":"again"}`, `"state":"ready"`); err != nil {
				return err
			}
			return c.client.DeleteSession(context.Background(), "again")
		}},
	}
}

// counts builds this tree, and that of another commit if given, with a counter, and counts.
func (b *bench) counts(ctx context.Context, against string, turns, sessions int) error {
	trees := map[string]string{"now": "."}
	daemons := []*counted{{name: "now"}}
	for rev := range strings.FieldsSeq(against) {
		dir := filepath.Join(b.dir, rev+".tree")
		remove, err := checkOut(ctx, rev, dir)
		if err != nil {
			return err
		}
		defer remove()
		trees[rev] = dir
		daemons = append(daemons, &counted{name: rev})
	}
	slices.Reverse(daemons)
	for name, tree := range trees {
		if err := build(ctx, tree, filepath.Join(b.dir, name+".bin"), map[string][]byte{"cmd/boxd/counter.go": counterSource}); err != nil {
			return err
		}
	}
	return b.count(ctx, os.Stdout, daemons, turns, sessions)
}

// count counts the work of each daemon, in alternating turns.
func (b *bench) count(ctx context.Context, out io.Writer, daemons []*counted, turns, sessions int) error {
	for _, c := range daemons {
		if err := b.startCounted(ctx, c); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		for n := range sessions {
			if _, _, err := c.client.CreateSession(ctx, &api.SessionRequest{ID: "live" + strconv.Itoa(n)}); err != nil {
				return fmt.Errorf("%s: session %d: %w", c.name, n, err)
			}
		}
		bare, err := newBareClient(filepath.Join(b.dir, c.name, "s")) // boxd waits ten seconds for a first request
		if err != nil {
			return err
		}
		c.bare = bare
	}
	cases := countCases()
	cases = slices.DeleteFunc(cases, func(m countCase) bool { return !strings.Contains(m.name, b.only) })
	for turn := range turns + 1 { // the first is a warm-up
		for _, m := range cases {
			for _, c := range daemons {
				w, err := c.turn(ctx, m.do)
				if err != nil {
					return fmt.Errorf("%s: %s: %w", c.name, m.name, err)
				}
				if turn > 0 {
					c.turns[m.name] = append(c.turns[m.name], w)
				}
			}
		}
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "one operation\tof\tallocations\tbytes\tcalls\tswitches\tµs\tPID 1: calls\tswitches\tµs\tkeeper: calls\tswitches\tµs\t")
	for _, m := range cases {
		for _, c := range daemons {
			v := middle(c.turns[m.name])
			fmt.Fprintf(w, "%s\t%s\t%.1f\t%.0f\t", m.name, c.name, v.allocations, v.bytes)
			for i := range programsCounted {
				fmt.Fprintf(w, "%.1f\t%.1f\t%d\t", v.calls[i], v.switches[i], v.processor[i].Microseconds())
			}
			fmt.Fprintln(w)
		}
	}
	return w.Flush()
}

// middle returns the median of each field.
func middle(turns []work) (m work) {
	of := func(field func(*work) float64) float64 {
		list := make([]float64, len(turns))
		for i := range turns {
			list[i] = field(&turns[i])
		}
		slices.Sort(list)
		return list[len(list)/2]
	}
	m.allocations, m.bytes = of(func(w *work) float64 { return w.allocations }), of(func(w *work) float64 { return w.bytes })
	for i := range programsCounted {
		m.calls[i] = of(func(w *work) float64 { return w.calls[i] })
		m.switches[i] = of(func(w *work) float64 { return w.switches[i] })
		m.processor[i] = time.Duration(of(func(w *work) float64 { return float64(w.processor[i]) }))
	}
	return m
}

func (b *bench) startCounted(ctx context.Context, c *counted) error {
	c.dir, c.turns = filepath.Join(b.dir, c.name+".counts"), map[string][]work{}
	if err := os.Mkdir(c.dir, 0o700); err != nil {
		return err
	}
	whole := b.bin
	defer func() { b.bin = whole }()
	b.bin, b.env = filepath.Join(b.dir, c.name+".bin"), []string{"BOXD_BENCH_COUNTS=" + c.dir}
	defer func() { b.env = nil }()
	var err error
	if c.client, err = b.startDaemon(ctx, c.name, 0, many); err != nil {
		return err
	}
	c.daemon = b.daemons[len(b.daemons)-1]
	s, _, err := c.client.CreateSession(ctx, &api.SessionRequest{ID: "count"})
	c.init, c.keeper = int(s.PID), below(c.daemon.Process.Pid, "boxkeeper")
	return err
}

// below returns the descendants of a process that have a name: zygotes have the keeper's name too.
func below(pid int, name string) (found []int) {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for again := []int{pid}; len(again) > 0; again = again[1:] {
		for _, path := range stats {
			text, _ := os.ReadFile(path)
			before, after, _ := strings.Cut(string(text), ") ")
			number, comm, _ := strings.Cut(before, " (")
			var state string
			var parent int
			_, _ = fmt.Sscan(after, &state, &parent)
			if n, err := strconv.Atoi(number); err == nil && parent == again[0] && comm == name {
				found, again = append(found, n), append(again, n)
			}
		}
	}
	return found
}

// turn repeats an operation, and returns its average cost.
func (c *counted) turn(ctx context.Context, do func(c *counted) error) (w work, err error) {
	var before, after [programsCounted]threadTimes
	pids := [programsCounted][]int{ofDaemon: {c.daemon.Process.Pid}, ofInit: {c.init}, ofKeeper: c.keeper}
	allocs, bytes, err := c.allocations()
	if err != nil {
		return w, err
	}
	for i, list := range pids {
		before[i] = timesOf(list)
	}
	calls, err := countCalls(ctx, pids, func() error {
		for range countEach {
			if err := errors.Join(ctx.Err(), do(c)); err != nil {
				return err
			}
			time.Sleep(countRest)
		}
		return nil
	})
	if err != nil {
		return w, err
	}
	for i, list := range pids {
		after[i] = timesOf(list)
	}
	a, size, err := c.allocations()
	const n = countEach
	w.allocations, w.bytes = (a-allocs)/n, (size-bytes)/n
	for i := range programsCounted {
		w.calls[i], w.switches[i], w.processor[i] = calls[i]/n, (after[i].switches-before[i].switches)/n, (after[i].processor-before[i].processor)/n
	}
	return w, err
}

// allocations queries the counter for the number of allocations and their bytes.
func (c *counted) allocations() (allocs, bytes float64, err error) {
	c.queries++
	if err := c.daemon.Process.Signal(syscall.SIGUSR1); err != nil {
		return 0, 0, err
	}
	path := filepath.Join(c.dir, strconv.Itoa(c.queries))
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		text, err := os.ReadFile(path)
		switch {
		case err == nil:
			_, err = fmt.Sscan(string(text), &allocs, &bytes)
			return allocs, bytes, err
		case time.Now().After(deadline):
			return 0, 0, err
		}
	}
}

// threadTimes is the scheduling statistics of a process's threads.
type threadTimes struct {
	switches  float64
	processor time.Duration
}

// timesOf sums the statistics of the threads of some processes (proc_pid_status(5), Documentation/scheduler/sched-stats.rst of
// the kernel).
func timesOf(pids []int) (t threadTimes) {
	var threads []string
	for _, pid := range pids {
		list, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
		threads = append(threads, list...)
	}
	for _, dir := range threads {
		text, _ := os.ReadFile(filepath.Join(dir, "schedstat"))
		var ran, waited, slices int64
		_, _ = fmt.Sscan(string(text), &ran, &waited, &slices)
		t.processor += time.Duration(ran)
		text, _ = os.ReadFile(filepath.Join(dir, "status"))
		for line := range strings.Lines(string(text)) {
			if name, value, ok := strings.Cut(line, ":"); ok && strings.HasSuffix(name, "voluntary_ctxt_switches") {
				n, _ := strconv.ParseFloat(strings.TrimSpace(value), 64)
				t.switches += n
			}
		}
	}
	return t
}

// countCalls counts the system calls of the programs during do, with perf(1); -countEach if that cannot count.
func countCalls(ctx context.Context, pids [programsCounted][]int, do func() error) (calls [programsCounted]float64, err error) {
	for i := range calls {
		calls[i] = -countEach
	}
	path, err := exec.LookPath("perf")
	if err != nil {
		return calls, do()
	}
	var counting [programsCounted]*exec.Cmd
	var outputs [programsCounted]strings.Builder
	for i, list := range pids {
		text := strings.Trim(strings.Join(strings.Fields(fmt.Sprint(list)), ","), "[]")
		counting[i] = exec.CommandContext(ctx, path, "stat", "-x", ",", "-e", "raw_syscalls:sys_enter", "-p", text)
		counting[i].Stderr = &outputs[i]
		if err := counting[i].Start(); err != nil {
			return calls, err
		}
	}
	time.Sleep(200 * time.Millisecond) // until they count: perf does not signal that
	err = do()
	for i, cmd := range counting {
		_ = cmd.Process.Signal(unix.SIGINT)
		_ = cmd.Wait() // its output says more than its exit status
		if n, perr := strconv.ParseFloat(strings.Split(outputs[i].String(), ",")[0], 64); perr == nil {
			calls[i] = n
		}
	}
	return calls, err
}
