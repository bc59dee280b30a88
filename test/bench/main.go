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

// settle is the pause between two measurements, so that what one case leaves to do, such as the teardown
// of a network namespace, does not fall into the next.
const settle = 10 * time.Millisecond

func run(ctx context.Context) error {
	streamRounds := flag.Int("streams", 5, "measurements of each way to carry a stream; 0 leaves those out")
	turns := flag.Int("turns", 5, "turns of a user alone and beside a crowd; 0 leaves those out")
	only := flag.String("only", "", "measure cases alone whose name has this `text`, and the floor")
	sessions := flag.Int("langbot", 0, "that many sessions of LangBot are counted, after 20 and 200 commands at once; 0 leaves those out")
	clients := flag.Int("crowd", 0, "be that many clients of one user; for bench itself")
	socket := flag.String("socket", "", "of the boxd they are clients of")
	rounds := flag.Int("rounds", 200, "measurements of each case")
	bin := flag.String("bin", "bin", "`directory` of the programs to measure")
	flag.Parse()
	if *clients > 0 {
		return crowd(*socket, *clients)
	}
	if os.Geteuid() != 0 {
		return errors.New("boxes need root")
	}
	dir, err := os.MkdirTemp("", "boxd-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	b := &bench{bin: *bin, dir: dir}
	defer b.stop()
	if err := b.makeCases(ctx); err != nil {
		return err
	}
	b.cases = slices.DeleteFunc(b.cases, func(m *measure) bool { return m.name != floorName && !strings.Contains(m.name, *only) })
	for range *rounds {
		rand.Shuffle(len(b.cases), func(i, j int) { b.cases[i], b.cases[j] = b.cases[j], b.cases[i] })
		for _, m := range b.cases {
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
	if err := report(os.Stdout, b.cases); err != nil {
		return err
	}
	if *sessions > 0 {
		if err := b.langbotCrowd(ctx, os.Stdout, *sessions); err != nil {
			return err
		}
	}
	if *turns > 0 {
		if err := b.others(ctx, *turns, 64); err != nil {
			return err
		}
	}
	if *streamRounds == 0 {
		return nil
	}
	return b.streams(ctx, b.client, *streamRounds)
}

// bench is one run.
type bench struct {
	bin, dir string
	daemons  []*exec.Cmd
	cases    []*measure
	langbot  string         // address of LangBot's dialect
	client   *client.Client // of the daemon that has the session "bench"
}

func (b *bench) stop() {
	for _, cmd := range b.daemons {
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait()
	}
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

func (b *bench) add(name string, once func() (time.Duration, error)) {
	b.cases = append(b.cases, &measure{name: name, order: len(b.cases), once: once})
}

// addCommand adds a command line, timed in C from vfork to wait.
func (b *bench) addCommand(ctx context.Context, name string, argv ...string) error {
	h, err := newHelper(ctx, filepath.Join(b.dir, "floor"), argv...)
	if err == nil {
		b.add(name, h.once)
	}
	return err
}

func (b *bench) makeCases(ctx context.Context) error {
	floor := filepath.Join(b.dir, "floor")
	if out, err := exec.CommandContext(ctx, "cc", "-O2", "-o", floor, "test/bench/floor/floor.c").CombinedOutput(); err != nil {
		return fmt.Errorf("compile the floor: %w: %s", err, out)
	}
	if err := b.addCommand(ctx, floorName, program); err != nil {
		return err
	}
	without, err := b.withoutRecords(ctx) // before anybody connects: boxd waits ten seconds for a first request
	if err != nil {
		return err
	}
	c, err := b.startDaemon(ctx, "a", 1, "")
	if err != nil {
		return err
	}
	b.client = c
	cold, err := b.startDaemon(ctx, "b", 0, "")
	if err != nil {
		return err
	}
	if _, _, err := c.CreateSession(ctx, &api.SessionRequest{ID: "bench"}); err != nil {
		return fmt.Errorf("session: %w", err)
	}
	bare, err := newBareClient(filepath.Join(b.dir, "a", "s"))
	if err != nil {
		return err
	}
	b.add("boxd: exec in a live session, bare HTTP client", timed(func() error { return bare.exec("bench") }))
	b.add("boxd: exec in a live session, Go client", timed(func() error { return succeed(c.Exec(ctx, "bench", trueRequest())) }))
	for _, d := range []struct {
		name string
		c    *client.Client
	}{{"", c}, {", nothing cloned ahead", cold}} {
		b.add("boxd: create + exec + delete"+d.name, timed(func() error { return lifecycle(ctx, d.c) }))
		b.add("boxd: one-shot exec"+d.name, timed(func() error {
			return succeed(d.c.Run(ctx, &api.OneShotRequest{Exec: *trueRequest()}))
		}))
	}
	if err := errors.Join(b.warmCases(ctx), b.costCases(ctx, without), b.langbotCases(ctx), b.e2bCases(ctx)); err != nil {
		return err
	}
	if err := b.addCommand(ctx, "boxd: boxctl run, the whole program", filepath.Join(b.bin, "boxctl"),
		"--socket", filepath.Join(b.dir, "a", "s"), "run", "-n", "--", program); err != nil {
		return err
	}
	for _, p := range peers() {
		path, err := exec.LookPath(p[0])
		if err != nil {
			fmt.Fprintf(os.Stderr, "bench: %s is not installed: left out\n", p[0])
			continue
		}
		if err := b.addCommand(ctx, p[0], append([]string{path}, p[1:]...)...); err != nil {
			return err
		}
	}
	return nil
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
	s, _, err := c.CreateSession(ctx, &api.SessionRequest{})
	if err != nil {
		return err
	}
	return errors.Join(succeed(c.Exec(ctx, s.ID, trueRequest())), c.DeleteSession(ctx, s.ID))
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
func (b *bench) startDaemon(ctx context.Context, name string, ahead int, more string) (*client.Client, error) {
	dir := filepath.Join(b.dir, name)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	config, socket := filepath.Join(dir, "box.toml"), filepath.Join(dir, "s")
	text := fmt.Sprintf("[daemon]\nsocket = %q\nsocket_group = \"root\"\nstate_dir = %q\nruntime_dir = %q\nahead = %d\non_stop = \"end\"\nadopt_grace = \"0s\"\n"+
		"[limits]\nbest_effort = [\"memory\", \"cpu\", \"pids\", \"workspace\"]\n%s", socket, filepath.Join(dir, "state"), filepath.Join(dir, "run"), ahead, more)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(filepath.Join(b.bin, "boxd"), "-config", config)
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	b.daemons = append(b.daemons, cmd)
	c := client.New(socket)
	for deadline := time.Now().Add(10 * time.Second); ; {
		err := c.Ready(ctx)
		if err == nil {
			return c, nil
		}
		if time.Now().After(deadline) {
			text, _ := os.ReadFile(log.Name())
			return nil, fmt.Errorf("boxd does not come up: %w\n%s", err, text)
		}
		time.Sleep(10 * time.Millisecond)
	}
}
