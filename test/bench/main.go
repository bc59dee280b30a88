// SPDX-License-Identifier: Apache-2.0

// Command bench measures boxd against the bare kernel and its peers, in one interleaved run.
//
// Every case is timed once per round, in random order, so that other load on the machine affects all of them equally. Only ratios
// mean anything: to the median of the floor, which is vfork, exec and wait of the same program, timed in C. A peer that is not
// installed is left out and listed as such.
package main

import (
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
	"time"

	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
	"github.com/boxd-dev/boxd/test/bench/floor"
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

// settle is the pause between two measurements, so that remaining work of one case, such as the teardown of a network namespace,
// is not measured in the next.
const settle = 10 * time.Millisecond

// options are what to measure, and how often.
type options struct {
	streams, turns, langbot, crowd, counts, live, rounds int
	only, socket, against, page, growth, output, bin     string
	rates                                                bool
}

func parseOptions() *options {
	o := &options{}
	flag.IntVar(&o.streams, "streams", 5, "measurements of each way to carry a stream; 0 leaves those out")
	flag.IntVar(&o.turns, "turns", 5, "turns of a user alone and beside a crowd; 0 leaves those out")
	flag.StringVar(&o.only, "only", "", "measure cases alone whose name has this `text`, and the floor")
	flag.IntVar(&o.langbot, "langbot", 0, "that many sessions of LangBot are counted, after 20 and 200 commands at once; 0 leaves those out")
	flag.IntVar(&o.crowd, "crowd", 0, "be that many clients of one user; for bench itself")
	flag.StringVar(&o.socket, "socket", "", "of the boxd they are clients of")
	flag.StringVar(&o.against, "against", "", "measure boxd of a `commit` side by side with that of this tree; with -counts, of several")
	flag.StringVar(&o.page, "page", "", "write Markdown to a `file`, and pictures beside it")
	flag.StringVar(&o.growth, "growth", "50,250,1000,2000", "`numbers` of sessions that live while others are created; empty leaves that out")
	flag.StringVar(&o.output, "output", "1024,16384,262144,1048576,16777216,268435456", "`bytes` of output of executions; empty leaves those out")
	flag.BoolVar(&o.rates, "rates", true, "measure rates of many clients")
	flag.IntVar(&o.counts, "counts", 0, "that many turns in which work is counted rather than timed; nothing else is measured then")
	flag.IntVar(&o.live, "live", 0, "sessions that live while work is counted")
	flag.IntVar(&o.rounds, "rounds", 200, "measurements of each case")
	flag.StringVar(&o.bin, "bin", "bin", "`directory` of the programs to measure")
	flag.Parse()
	return o
}

func run(ctx context.Context) error {
	o := parseOptions()
	if o.crowd > 0 {
		return crowd(o.socket, o.crowd)
	}
	if os.Geteuid() != 0 {
		return errors.New("boxes need root")
	}
	dir, err := os.MkdirTemp("", "boxd-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	fast, err := os.MkdirTemp("/dev/shm", "boxd-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(fast)
	b := &bench{bin: o.bin, dir: dir, run: fast, only: o.only}
	defer b.stop()
	if o.counts > 0 {
		return b.counts(ctx, o.against, o.counts, o.live)
	}
	if o.against != "" {
		if err := b.buildOther(ctx, o.against); err != nil {
			return err
		}
	}
	if err := b.makeCases(ctx); err != nil {
		return err
	}
	if err := b.measureCases(ctx, o.rounds); err != nil {
		return err
	}
	p := &page{path: o.page}
	if err := b.fill(ctx, p, o); err != nil {
		return err
	}
	return errors.Join(p.write(), failures(b.cases))
}

// measureCases measures each case once per round, or as rarely as the case says.
func (b *bench) measureCases(ctx context.Context, rounds int) error {
	b.cases = slices.DeleteFunc(b.cases, func(m *measure) bool { return m.name != floorName && !strings.Contains(m.name, b.only) })
	for round := range rounds {
		rand.Shuffle(len(b.cases), func(i, j int) { b.cases[i], b.cases[j] = b.cases[j], b.cases[i] })
		for _, m := range b.cases {
			if err := ctx.Err(); err != nil {
				return err
			}
			if m.every > 1 && round%m.every != 0 {
				continue
			}
			elapsed, err := m.once()
			if err != nil {
				m.failed++
				m.err = err
			} else {
				m.times = append(m.times, elapsed)
			}
			time.Sleep(settle)
		}
	}
	return nil
}

// fill writes the page.
func (b *bench) fill(ctx context.Context, p *page, o *options) error {
	if err := b.head(ctx, p, o.rounds); err != nil {
		return err
	}
	if err := p.cases(b.cases); err != nil {
		return err
	}
	if err := b.growth(ctx, p, o.growth, o.output, o.rates); err != nil {
		return err
	}
	for _, block := range []struct {
		title string
		often int
		write func(out io.Writer) error
	}{
		{"Sessions of LangBot", o.langbot, func(out io.Writer) error { return b.langbotCrowd(ctx, out, o.langbot) }},
		{"One user beside a crowd of another", o.turns, func(out io.Writer) error { return b.others(ctx, out, o.turns, 64) }},
		{"Streams", o.streams, func(out io.Writer) error { return b.streams(ctx, out, b.client, o.streams) }},
	} {
		if block.often > 0 {
			if err := p.block(block.title, block.write); err != nil {
				return err
			}
		}
	}
	return nil
}

// bench is one run.
type bench struct {
	bin, dir string
	run      string   // on a tmpfs, where boxd and its peers have what does not outlive the host, as /run is where systemd runs
	other    binaries // of the commit to compare with; zero: none
	after    []func() // cleans up after peers
	versions []string // of the measured peers
	left     []string // peers that are not measured, with the reason
	only     string   // a substring of the names to measure
	daemons  []*exec.Cmd
	cases    []*measure
	env      []string       // of the started daemons
	langbot  string         // address for the LangBot protocol
	client   *client.Client // of the daemon with the session "bench"
}

func (b *bench) stop() {
	for _, remove := range b.after {
		remove()
	}
	for _, cmd := range b.daemons {
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait()
	}
}

// measure is one case.
type measure struct {
	name   string
	order  int
	every  int // measured every that many rounds; 0: in all
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
	h, err := floor.NewTimer(ctx, b.floor(), argv...)
	if err == nil {
		b.add(name, h.Once)
	}
	return err
}

// floor is the path of the program that times commands.
func (b *bench) floor() string { return filepath.Join(b.dir, "floor") }

func (b *bench) makeCases(ctx context.Context) error {
	if err := floor.Compile(ctx, b.floor()); err != nil {
		return err
	}
	bare, err := floor.NewTimer(ctx, b.floor(), program)
	if err != nil {
		return err
	}
	b.add(floorName, bare.Once)
	b.add("floor, each of "+strconv.Itoa(inARow)+" without a pause", backToBack(bare.Once))
	if err := b.addPeers(ctx); err != nil { // before any client connects: boxd waits ten seconds for a first request
		return err
	}
	without, err := b.withoutRecords(ctx)
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
	execute, err := b.blockingClient(ctx, "a", execRequest("bench"))
	if err != nil {
		return err
	}
	cycle, err := b.blockingClient(ctx, "a", createRequest, execRequest("cycle"), deleteRequest)
	if err != nil {
		return err
	}
	b.add("boxd: exec in a live session, client in C", execute)
	b.add("boxd: the same, each of "+strconv.Itoa(inARow)+" without a pause", backToBack(execute))
	b.add("boxd: exec in a live session, Go client", timed(func() error { return succeed(c.Exec(ctx, "bench", trueRequest())) }))
	b.add("boxd: create + exec + delete, client in C", cycle)
	for _, d := range []struct {
		name string
		c    *client.Client
	}{{"", c}, {", nothing cloned ahead", cold}} {
		b.add("boxd: create + exec + delete, Go client"+d.name, timed(func() error { return lifecycle(ctx, d.c) }))
		b.add("boxd: one-shot exec"+d.name, timed(func() error {
			return succeed(d.c.Run(ctx, &api.OneShotRequest{Exec: *trueRequest()}))
		}))
	}
	if b.other.dir != "" {
		if err := b.otherCases(ctx); err != nil {
			return err
		}
	}
	if err := errors.Join(b.warmCases(ctx), b.costCases(ctx, without), b.langbotCases(ctx), b.e2bCases(ctx)); err != nil {
		return err
	}
	if err := b.addCommand(ctx, "boxd: boxctl run, the whole program", filepath.Join(b.bin, "boxctl"),
		"--socket", filepath.Join(b.dir, "a", "s"), "run", "-n", "--", program); err != nil {
		return err
	}
	return nil
}

func trueRequest() *api.ExecRequest { return &api.ExecRequest{Argv: []string{program}} }

func lifecycle(ctx context.Context, c *client.Client) error {
	s, _, err := c.CreateSession(ctx, &api.SessionRequest{})
	if err != nil {
		return err
	}
	return errors.Join(succeed(c.Exec(ctx, s.ID, trueRequest())), c.DeleteSession(ctx, s.ID))
}

// inARow is how many measurements without a pause are one.
const inARow = 20

// backToBack measures what each of some takes that follow each other without a pause.
func backToBack(once func() (time.Duration, error)) func() (time.Duration, error) {
	return func() (sum time.Duration, err error) {
		for range inARow {
			elapsed, err := once()
			if err != nil {
				return 0, err
			}
			sum += elapsed
		}
		return sum / inARow, nil
	}
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

const floorName = "floor: vfork + exec + wait"

// startDaemon starts a private boxd. Its limits are best effort if the host supports nothing better, as the peers are measured
// without any.
func (b *bench) startDaemon(ctx context.Context, name string, ahead int, more string) (*client.Client, error) {
	return b.startDaemonOf(ctx, b.bin, name, ahead, more)
}

// startDaemonOf starts boxd from the programs in a directory.
func (b *bench) startDaemonOf(ctx context.Context, bin, name string, ahead int, more string) (*client.Client, error) {
	dir := filepath.Join(b.dir, name)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	config, socket := filepath.Join(dir, "box.toml"), filepath.Join(dir, "s")
	text := fmt.Sprintf("[daemon]\nsocket = %q\nsocket_group = \"root\"\nstate_dir = %q\nruntime_dir = %q\nahead = %d\non_stop = \"end\"\nadopt_grace = \"0s\"\n"+
		"[limits]\nbest_effort = [\"memory\", \"cpu\", \"pids\", \"workspace\"]\n%s", socket, filepath.Join(dir, "state"), filepath.Join(b.run, name), ahead, more)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(filepath.Join(bin, "boxd"), "-config", config)
	cmd.Stderr = log
	cmd.Env = append(os.Environ(), b.env...)
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
