// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/boxd-dev/boxd/internal/boxtest"
)

// hostGround is the ground that needs no machine.
const hostGround = "this host"

// test is a test function.
type test struct{ pkg, name string }

// result is the result of a test on one ground.
type result struct {
	layer, ground string
	action        string  // "pass", "fail" or "skip"
	why           string  // if it was left to another ground: what it lacks
	failure       string  // if it has failed: its output, without the logs of daemons
	seconds       float64 // seconds
}

// maxOutput is how many bytes of a failed test's output the summary repeats.
const maxOutput = 4000

// failure returns the output of a failed test without the logs that it shows.
func failure(text string) string {
	text, _, _ = strings.Cut(text, boxtest.LogOfBoxd)
	return strings.TrimRight(text[:min(len(text), maxOutput)], " \n")
}

// layer is an entry of the summary.
type layer struct {
	name, ground string
	elapsed      time.Duration
	err          error
}

// runner runs layers and records the result of each test.
type runner struct {
	options
	dir   string // for build results; removed at the end of the run
	start time.Time

	cases  []abuseCase         // with -abuse
	chosen map[string][]string // by package, the only tests to run; nil: as the options say

	built sync.Map // results of builds, by name, as func() error

	mu      sync.Mutex // guards the fields below, and output
	results map[test][]result
	times   string // rows of a table that tests have measured
	wanted  []test // tests of suites, each of which must pass on some ground
	layers  []layer
}

// printf prints a line without interleaving it with others.
func (r *runner) printf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fmt.Printf(format+"\n", args...)
}

// layer runs a layer unless it is skipped.
func (r *runner) layer(ctx context.Context, name, ground string, do func(context.Context) error) {
	if r.skips(name) || ctx.Err() != nil {
		return
	}
	r.printf("\n== %s, on %s", name, ground)
	start := time.Now()
	err := do(ctx)
	if err != nil {
		r.printf("%s: %v", name, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.layers = append(r.layers, layer{name, ground, time.Since(start), err})
}

// event is an event of test2json, see "go doc test2json".
type event struct {
	Action, Package, Test, Output string
	Elapsed                       float64
}

// errFailed says that tests have failed, whose output has been printed.
var errFailed = errors.New("tests have failed")

// read reads the events of a layer and prints failures. It returns errFailed if there are any.
func (r *runner) read(layer, ground string, from io.Reader) error {
	output := map[test]*strings.Builder{}
	ran, alone := map[string]int{}, map[string]bool{}
	var failed error
	dec := json.NewDecoder(from)
	for {
		var e event
		if err := dec.Decode(&e); errors.Is(err, io.EOF) {
			return failed
		} else if err != nil {
			return fmt.Errorf("events of tests: %w", err)
		}
		name, sub, _ := strings.Cut(e.Test, "/")
		key := test{strings.TrimPrefix(e.Package, modulePath+"/"), name}
		switch e.Action {
		case "output", "build-output":
			if output[key] == nil {
				output[key] = &strings.Builder{}
			}
			output[key].WriteString(e.Output)
		case "pass", "fail", "skip":
			if e.Action == "fail" {
				failed = errFailed
			}
			if sub != "" {
				continue
			}
			text := ""
			if b := output[key]; b != nil {
				text = b.String()
			}
			if name == "" {
				if alone[key.pkg] {
					text = "" // the failed tests have printed it
				}
				r.ended(key.pkg, ground, &e, ran[key.pkg], text)
				continue
			}
			ran[key.pkg]++
			res := result{layer: layer, ground: ground, action: e.Action, seconds: e.Elapsed}
			if _, after, ok := strings.Cut(text, boxtest.LeftTo); ok {
				res.why, _, _ = strings.Cut(after, "\n")
				if e.Action == "pass" {
					res.action = "skip" // a subtest was skipped, so the test proves nothing
				}
			} else if _, after, ok := strings.Cut(text, boxtest.Lacks); ok && e.Action == "skip" {
				res.why, _, _ = strings.Cut(after, "\n")
			}
			if e.Action == "fail" {
				r.printf("%s", strings.TrimRight(text, "\n"))
				res.failure = failure(text)
				alone[key.pkg] = true
			}
			delete(output, key)
			r.mu.Lock()
			r.times += measured(text)
			r.results[key] = append(r.results[key], res)
			r.mu.Unlock()
		}
	}
}

// measured returns the rows of a table in what a test has said.
func measured(text string) string {
	_, rows, _ := strings.Cut(text, boxtest.Measured)
	var b strings.Builder
	for line := range strings.Lines(rows) {
		if row := strings.TrimSpace(line); strings.HasPrefix(row, "|") {
			b.WriteString(row + "\n")
		}
	}
	return b.String()
}

// writeTimes writes a page of what tests have measured.
func (r *runner) writeTimes() error {
	if r.times == "" {
		return errors.New("no test has measured anything")
	}
	text := fmt.Sprintf("# Benchmark where the kernel keeps the limits\n\nWritten by `make bench-machine`: every case once in each of %d rounds, in random order, in a machine (%s) with cgroup v2 and\n"+
		"project quotas, both in use. Ratios are of lower quartiles, to that of the floor: vfork, exec and wait of /bin/true, timed in C. A machine is\n"+
		"slower than its host, so nothing here compares with [benchmark.md](benchmark.md).\n\n"+
		"| case | n | lower quartile µs | median | upper quartile | ratio |\n|---|---|---|---|---|---|\n%s", benchRounds, r.layers[len(r.layers)-1].ground, r.times)
	return os.WriteFile(r.bench, []byte(text), 0o644)
}

// ended reports the end of a package's tests. The package's own output is printed if none of its tests has failed alone.
func (r *runner) ended(pkg, ground string, e *event, ran int, text string) {
	if ground != hostGround {
		pkg += " on " + ground
	}
	switch {
	case e.Action == "fail":
		r.printf("%s\nFAIL  %s, %.1f s", strings.TrimRight(text, "\n"), pkg, e.Elapsed)
	case ran > 0:
		r.printf("ok    %s, %d tests, %.1f s", pkg, ran, e.Elapsed)
	}
}

// goTest runs "go test -json" with arguments.
func (r *runner) goTest(ctx context.Context, layer string, env []string, args ...string) error {
	cmd := r.command(ctx, "go", append([]string{"test", "-json"}, args...)...)
	cmd.Env = append(cmd.Env, env...)
	cmd.Stderr = os.Stderr
	return r.follow(cmd, layer, hostGround)
}

// follow starts a command that prints events, and waits until it exits.
func (r *runner) follow(cmd *exec.Cmd, layer, ground string) error {
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	err = r.read(layer, ground, out)
	if ended := cmd.Wait(); err == nil && ended != nil {
		return fmt.Errorf("%s: %w", filepath.Base(cmd.Path), ended)
	}
	return err
}

// converter returns a writer for the output of a test program with -test.v=test2json. The function waits for the conversion to
// end, and returns errFailed if a test has failed.
func (r *runner) converter(ctx context.Context, layer, ground, pkg string) (io.WriteCloser, func() error, error) {
	convert := r.command(ctx, filepath.Join(r.dir, "test2json"), "-t", "-p", pkg)
	in, err := convert.StdinPipe()
	if err != nil {
		return nil, nil, err
	}
	done := make(chan error, 1)
	go func() { done <- r.follow(convert, layer, ground) }()
	return in, func() error { return <-done }, nil
}

// unproven returns the tests of suites that have passed on no ground.
func (r *runner) unproven() (list []test) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, t := range r.wanted {
		if slices.ContainsFunc(r.results[t], func(res result) bool { return res.action == "pass" }) {
			continue
		}
		// The machine has started it, and lacks our own kernel or an unemulated processor.
		if slices.ContainsFunc(r.results[t], func(res result) bool {
			return res.layer == layerMachine && (res.ground != groundUML && res.why == boxtest.OwnKernel || res.ground == groundEmulation && res.why == boxtest.NotEmulated)
		}) {
			continue
		}
		list = append(list, t)
	}
	return list
}

// writeDurations writes how long each test took on each ground, the longest first.
func (r *runner) writeDurations() error {
	type row struct {
		test
		result
	}
	var rows []row
	for t, results := range r.results {
		for _, res := range results {
			rows = append(rows, row{t, res})
		}
	}
	slices.SortFunc(rows, func(a, b row) int {
		return cmp.Or(-cmp.Compare(a.seconds, b.seconds), strings.Compare(a.pkg, b.pkg), strings.Compare(a.name, b.name))
	})
	w := &strings.Builder{}
	for _, row := range rows {
		fmt.Fprintf(w, "%.2f\t%s\t%s\t%s\t%s\n", row.seconds, row.layer, row.ground, row.pkg, row.name)
	}
	return os.WriteFile(r.durations, []byte(w.String()), 0o644)
}

// summary says which layer ran on which ground, and what it left to others. It returns an error if there was a failure.
func (r *runner) summary() error {
	unproven := r.unproven()
	slices.SortStableFunc(r.layers, func(a, b layer) int { // some run side by side
		return slices.Index(allLayers, a.name) - slices.Index(allLayers, b.name)
	})
	w := &strings.Builder{}
	defer func() { fmt.Print(w) }()
	fmt.Fprintf(w, "\n%-9s %-28s %6s %6s %8s\n", "layer", "ground", "ran", "left", "seconds")
	var failed []string
	for _, l := range r.layers {
		ran, left := 0, map[string][]string{}
		for t, results := range r.results {
			for _, res := range results {
				switch {
				case res.layer != l.name:
				case res.action == "skip":
					left[res.why] = append(left[res.why], t.name)
				default:
					ran++
				}
			}
		}
		n := 0
		for _, names := range left {
			n += len(names)
		}
		fmt.Fprintf(w, "%-9s %-28s %6d %6d %8.0f\n", l.name, l.ground, ran, n, l.elapsed.Seconds())
		for why, names := range left {
			slices.Sort(names)
			fmt.Fprintf(w, "          needs %s: %s\n", why, strings.Join(names, " "))
		}
		if l.err != nil {
			failed = append(failed, l.name)
		}
	}
	fmt.Fprintf(w, "all, after %.0f s\n", time.Since(r.start).Seconds())
	if len(r.skip) > 0 {
		fmt.Fprintf(w, "left out, as asked: %s\n", strings.Join(r.skip, " "))
	}
	for t, results := range r.results { // repeated for readers who only see the end of the output
		for _, res := range results {
			if res.failure != "" {
				fmt.Fprintf(w, "failed on %s: %s of %s\n%s\n", res.ground, t.name, t.pkg, res.failure)
			}
		}
	}
	if len(failed) > 0 {
		return fmt.Errorf("FAILED: %s", strings.Join(failed, " "))
	}
	if len(unproven) == 0 || r.skips(layerBoxes) && !r.fleet || r.skips(layerMachine) {
		return nil
	}
	for _, t := range unproven {
		fmt.Fprintf(w, "on no ground: %s of %s\n", t.name, t.pkg)
	}
	return fmt.Errorf("FAILED: %d tests have run on no ground", len(unproven))
}
