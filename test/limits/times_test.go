// SPDX-License-Identifier: Apache-2.0

package limits_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/test/bench/floor"
)

// timeRounds is how often each case is measured; BENCH_ROUNDS sets another number.
func timeRounds() int {
	if n, err := strconv.Atoi(os.Getenv("BENCH_ROUNDS")); err == nil {
		return max(n, 1)
	}
	return 5
}

// How long an execution and a session take where the kernel enforces every limit: cgroups, and a quota on the workspace. The test
// does not depend on the times; "go run ./test/run -bench" writes them down.
func TestTimesWhereTheKernelKeepsTheLimits(t *testing.T) {
	program := filepath.Join(t.TempDir(), "floor")
	if err := floor.Compile(t.Context(), program); err != nil {
		t.Fatal(err)
	}
	bare, err := floor.NewTimer(t.Context(), program, "/bin/true")
	if err != nil {
		t.Fatal(err)
	}
	ahead, cold := start(t, "ahead = 1\n"), start(t, "ahead = 0\n")
	s := ahead.NewSession(t, api.SessionRequest{ID: "s1"})
	if s.Enforcement["memory"] != "cgroup2" || s.Enforcement["workspace"] != "project-quota" {
		t.Fatalf("enforced by %v", s.Enforcement)
	}
	run := func(d *boxtest.Daemon, id string) error {
		r, err := d.Exec(t.Context(), id, &api.ExecRequest{Argv: []string{"/bin/true"}})
		if err == nil && (r.Status != "exited" || *r.ExitCode != 0) {
			err = errors.New(boxtest.Show(r))
		}
		return err
	}
	life := func(d *boxtest.Daemon) func() error {
		return func() error {
			s, _, err := d.CreateSession(t.Context(), &api.SessionRequest{})
			if err != nil {
				return err
			}
			return errors.Join(run(d, s.ID), d.DeleteSession(t.Context(), s.ID))
		}
	}
	cases := []*struct {
		name    string
		do      func() error
		elapsed []time.Duration
	}{
		{name: "floor: vfork + exec + wait"},
		{name: "boxd: exec in a live session", do: func() error { return run(ahead, "s1") }},
		{name: "boxd: create + exec + delete", do: life(ahead)},
		{name: "boxd: create + exec + delete, nothing cloned ahead", do: life(cold)},
	}
	order := slices.Clone(cases)
	for range timeRounds() {
		rand.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
		for _, c := range order {
			start := time.Now()
			var elapsed time.Duration
			var err error
			if c.do == nil {
				elapsed, err = bare.Once()
			} else {
				err = c.do()
				elapsed = time.Since(start)
			}
			if err != nil {
				t.Fatalf("%s: %v", c.name, err)
			}
			c.elapsed = append(c.elapsed, elapsed)
			<-time.After(10 * time.Millisecond) // what is left to do is done
		}
	}
	var table strings.Builder
	quartile := func(i, of int) time.Duration { return cases[i].elapsed[of*len(cases[i].elapsed)/4] }
	for i, c := range cases {
		slices.Sort(c.elapsed)
		fmt.Fprintf(&table, "| %s | %d | %d | %d | %d | %.2f |\n", c.name, len(c.elapsed), quartile(i, 1).Microseconds(), quartile(i, 2).Microseconds(), quartile(i, 3).Microseconds(),
			float64(quartile(i, 1))/float64(quartile(0, 1)))
	}
	t.Log(boxtest.Measured + "\n" + table.String())
}
