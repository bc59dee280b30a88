// SPDX-License-Identifier: Apache-2.0

// Command bench measures boxd against the bare kernel and its peers, in one interleaved run.
//
// Every case is timed once per round, in random order, so that what else the machine does falls on
// all of them alike. Only ratios mean anything: to the median of the floor, which is vfork, exec and
// wait of the same program, timed in C. A peer that is not installed is left out, and said so.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "bench: %v\n", err)
		os.Exit(1)
	}
}

// program is what all cases run.
const program = "/bin/true"

// settle is the pause between two measurements, so that one case's clean-up, such as the teardown
// of a network namespace, does not fall into the next.
const settle = 1500 * time.Microsecond

func run(ctx context.Context) error {
	rounds := flag.Int("rounds", 200, "measurements of each case")
	bin := flag.String("bin", "bin", "`directory` of the programs to measure")
	flag.Parse()
	if os.Geteuid() != 0 {
		return errors.New("boxes need root")
	}
	dir, err := os.MkdirTemp("", "boxd-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	daemon, c, err := startDaemon(ctx, *bin, dir)
	if err != nil {
		return err
	}
	defer stopDaemon(daemon)
	cases, err := makeCases(ctx, c, *bin, dir)
	if err != nil {
		return err
	}
	for range *rounds {
		rand.Shuffle(len(cases), func(i, j int) { cases[i], cases[j] = cases[j], cases[i] })
		for _, m := range cases {
			if err := ctx.Err(); err != nil {
				return err
			}
			took, err := m.once()
			if err != nil {
				m.failed++
				m.err = err
			} else {
				m.times = append(m.times, took)
			}
			time.Sleep(settle)
		}
	}
	return report(os.Stdout, cases)
}

// measure is one case.
type measure struct {
	name   string
	order  int
	once   func() (time.Duration, error)
	times  []time.Duration
	failed int
	err    error
}

func makeCases(ctx context.Context, c *client.Client, bin, dir string) ([]*measure, error) {
	var cases []*measure
	add := func(name string, once func() (time.Duration, error)) {
		cases = append(cases, &measure{name: name, order: len(cases), once: once})
	}
	floor := filepath.Join(dir, "floor")
	if out, err := exec.CommandContext(ctx, "cc", "-O2", "-o", floor, "test/bench/floor/floor.c").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("compile the floor: %w: %s", err, out)
	}
	helper, err := newHelper(ctx, floor, program)
	if err != nil {
		return nil, err
	}
	add(floorName, helper.once)
	add("boxd: exec in a live session", timed(func() error { return succeed(c.Exec(ctx, "bench", trueRequest())) }))
	add("boxd: create + exec + delete, cold", timed(func() error { return lifecycle(ctx, c) }))
	add("boxd: one-shot exec, cold", timed(func() error {
		return succeed(c.Run(ctx, &api.OneShotRequest{Exec: *trueRequest()}))
	}))
	ctl, err := newHelper(ctx, floor, filepath.Join(bin, "boxctl"), "--socket", filepath.Join(dir, "s"), "run", "-n", "--", program)
	if err != nil {
		return nil, err
	}
	add("boxd: boxctl run, cold, the whole program", ctl.once)
	for _, p := range peers() {
		path, err := exec.LookPath(p[0])
		if err != nil {
			fmt.Fprintf(os.Stderr, "bench: %s is not installed: left out\n", p[0])
			continue
		}
		h, err := newHelper(ctx, floor, append([]string{path}, p[1:]...)...)
		if err != nil {
			return nil, err
		}
		add(p[0], h.once)
	}
	if _, _, err := c.Create(ctx, &api.SessionRequest{ID: "bench"}); err != nil {
		return nil, fmt.Errorf("session: %w", err)
	}
	return cases, nil
}

// peers are command lines of comparable isolation.
func peers() [][]string {
	return [][]string{
		{
			"bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin",
			"--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp",
			"--cap-drop", "ALL", program,
		},
		{"unshare", "-UrmpniuC", "--fork", "--mount-proc", program},
	}
}

func trueRequest() *api.ExecRequest { return &api.ExecRequest{Argv: []string{program}} }

func lifecycle(ctx context.Context, c *client.Client) error {
	s, _, err := c.Create(ctx, &api.SessionRequest{})
	if err != nil {
		return err
	}
	return errors.Join(succeed(c.Exec(ctx, s.ID, trueRequest())), c.Delete(ctx, s.ID))
}

// succeed makes anything but exit code 0 an error: a case that fails is fast.
func succeed(r api.ExecResult, err error) error {
	if err != nil {
		return err
	}
	if r.Status != "exited" || *r.ExitCode != 0 {
		return fmt.Errorf("ended as %s", r.Status)
	}
	return nil
}

func timed(f func() error) func() (time.Duration, error) {
	return func() (time.Duration, error) {
		start := time.Now()
		err := f()
		return time.Since(start), err
	}
}

// helper is floor.c at work.
type helper struct {
	in  io.WriteCloser
	out *bufio.Reader
}

func newHelper(ctx context.Context, floor string, argv ...string) (*helper, error) {
	cmd := exec.CommandContext(ctx, floor, argv...)
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return &helper{in: in, out: bufio.NewReader(out)}, nil
}

func (h *helper) once() (time.Duration, error) {
	if _, err := io.WriteString(h.in, "\n"); err != nil {
		return 0, err
	}
	line, err := h.out.ReadString('\n')
	if err != nil {
		return 0, err
	}
	nanos, status, _ := strings.Cut(strings.TrimSpace(line), " ")
	if status != "0" {
		return 0, fmt.Errorf("status %s", status)
	}
	n, err := strconv.ParseInt(nanos, 10, 64)
	return time.Duration(n), err
}

const floorName = "floor: vfork + exec + wait"

func report(out io.Writer, cases []*measure) error {
	slices.SortFunc(cases, func(a, b *measure) int { return a.order - b.order })
	var floor time.Duration
	for _, m := range cases {
		slices.Sort(m.times)
		if m.name == floorName && len(m.times) > 0 {
			floor = m.times[len(m.times)/2]
		}
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "case\tn\tmin µs\tmedian µs\tp99 µs\tratio\tfailed\t")
	var errs []error
	for _, m := range cases {
		if m.err != nil {
			errs = append(errs, fmt.Errorf("%s: %d failed, the last: %w", m.name, m.failed, m.err))
		}
		if len(m.times) == 0 || floor == 0 {
			continue
		}
		n := len(m.times)
		median := m.times[n/2]
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%.2f\t%d\t\n", m.name, n, m.times[0].Microseconds(), median.Microseconds(),
			m.times[n*99/100].Microseconds(), float64(median)/float64(floor), m.failed)
	}
	return errors.Join(w.Flush(), errors.Join(errs...))
}

// startDaemon starts a private boxd. Its limits are best effort where the host has nothing better,
// as the figures of the peers have none at all.
func startDaemon(ctx context.Context, bin, dir string) (*exec.Cmd, *client.Client, error) {
	config := filepath.Join(dir, "box.toml")
	socket := filepath.Join(dir, "s")
	text := fmt.Sprintf("[daemon]\nsocket = %q\nsocket_group = \"root\"\nstate_dir = %q\n[limits]\nbest_effort = [\"memory\", \"cpu\", \"pids\"]\n",
		socket, filepath.Join(dir, "state"))
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return nil, nil, err
	}
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "boxd"), "-config", config)
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return nil, nil, err
	}
	defer log.Close()
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		return nil, nil, err
	}
	c := client.New(socket)
	for deadline := time.Now().Add(10 * time.Second); ; {
		err := c.Ready(ctx)
		if err == nil {
			return cmd, c, nil
		}
		if time.Now().After(deadline) {
			text, _ := os.ReadFile(log.Name())
			return nil, nil, fmt.Errorf("boxd does not come up: %w\n%s", err, text)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func stopDaemon(cmd *exec.Cmd) {
	_ = cmd.Process.Signal(os.Interrupt)
	_ = cmd.Wait()
}
