// SPDX-License-Identifier: Apache-2.0

// Command run runs the tests layer by layer, each on a ground that has what it needs, and reports which have run where.
//
// A ground is this host, or a machine with systemd, cgroup v2 and project quotas. A test that lacks something on one ground is
// left to another; a test that ran on no ground counts as failed.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/boxd-dev/boxd/internal/boxtest"
)

// Layers, in the order in which they start.
const (
	layerPure     = "pure"
	layerPackages = "packages"
	layerBoxes    = "boxes"
	layerMachine  = "machine"
	layerDemo     = "demo"
	layerSoak     = "soak" // with -soak only
)

// benchRounds is how often each case of a bench is measured.
const benchRounds = 100

// soakReport is the report of test/soak; its picture is written beside it.
const soakReport = "docs/soak-report.md"

var allLayers = []string{layerPure, layerPackages, layerBoxes, layerMachine, layerDemo}

// options are those of the command line.
type options struct {
	skip      []string       // layers
	only      *regexp.Regexp // tests; nil: all
	quick     bool           // only the most useful tests of a minute
	soak      bool           // only the long tests
	bench     string         // file for the times that are measured in the machine; "": measure none
	durations string         // file for how long each test took; "": none
	abuse     bool           // only the cases of test/abuse/cases.md, with a report
	whole     bool           // what else is left out to save time is run too
	ground    string         // of the machine; "": the best on this host
	system    string         // of the machine
	selinux   bool
	fleet     bool // only pairTests, in two machines with a network between them
	arch      string
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	err := start(ctx)
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "run: %v\n", err)
		os.Exit(1)
	}
}

func start(ctx context.Context) error {
	var o options
	var skip, only string
	flag.StringVar(&skip, "skip", "", "layers to leave out: "+strings.Join(allLayers, " "))
	flag.StringVar(&only, "run", "", "run only the tests that this regular expression matches, each on the ground that it needs")
	flag.BoolVar(&o.quick, "quick", false, "run what tells most in a minute: pure tests without the race detector, whose results Go keeps, and a few real boxes")
	flag.BoolVar(&o.soak, "soak", false, "run test/soak for hours and write "+soakReport+", and in the machine a thousand rounds of test/limits and 200 kills of everything, and nothing else")
	flag.StringVar(&o.bench, "bench", "", "measure in the machine how long an execution and a session take, where the kernel keeps all limits, write a page to a `file`, and nothing else")
	flag.StringVar(&o.durations, "durations", "", "write how long each test took, in seconds, with its layer, ground and package, to a `file`")
	flag.BoolVar(&o.abuse, "abuse", false, "run the tests of the cases of "+casesFile+", and write "+reportFile)
	flag.BoolVar(&o.whole, "whole", false, "run in the machine also the tests of test/vm/elsewhere, and here all suites with a boxd that has the race detector and 200 kills")
	flag.StringVar(&o.ground, "ground", "", "ground of the machine: kvm, uml, emulation (default: the first that works)")
	flag.StringVar(&o.system, "system", "bookworm", "system of the machine: bookworm, trixie")
	flag.BoolVar(&o.selinux, "selinux", false, "the machine enforces SELinux and runs the tests of test/vm/selinux")
	flag.BoolVar(&o.fleet, "fleet", false, "two machines with a network between them form a fleet, and nothing else is run")
	flag.StringVar(&o.arch, "arch", "amd64", "architecture of the machine: amd64, arm64")
	flag.Parse()
	if flag.NArg() > 0 {
		return fmt.Errorf("argument %q is not known: there are only flags", flag.Arg(0))
	}
	if err := o.read(skip, only); err != nil {
		return err
	}
	root, err := boxtest.ModuleRoot()
	if err != nil {
		return err
	}
	if err := os.Chdir(root); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "boxd-run")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if err := os.Chmod(dir, 0o755); err != nil { // boxes and other users run programs built in it
		return err
	}
	r := &runner{options: o, dir: dir, start: time.Now(), results: map[test][]result{}}
	if o.abuse {
		if r.cases, err = readCases(); err != nil {
			return err
		}
		r.skip = append(r.skip, layerPackages, layerDemo) // no case is in them
		r.chosen = testsOf(r.cases)
	}
	err = r.all(ctx)
	if o.durations != "" {
		err = errors.Join(err, r.writeDurations())
	}
	if o.bench != "" && err == nil {
		err = r.writeTimes()
	}
	if ctx.Err() != nil {
		return errors.New("interrupted: nothing is left running")
	}
	return err
}

// read parses the options that are text, and refuses invalid ones.
func (o *options) read(skip, only string) error {
	o.skip = strings.Fields(skip)
	for _, layer := range o.skip {
		if !slices.Contains(allLayers, layer) {
			return fmt.Errorf("-skip is %q: must be one of %s", layer, strings.Join(allLayers, ", "))
		}
	}
	if only != "" {
		var err error
		if o.only, err = regexp.Compile(only); err != nil {
			return fmt.Errorf("-run is %q: %w", only, err)
		}
	}
	if o.ground != "" && !slices.Contains([]string{groundKVM, groundUML, groundEmulation}, o.ground) {
		return fmt.Errorf("-ground is %q: must be one of kvm, uml, emulation", o.ground)
	}
	if !slices.Contains([]string{"bookworm", "trixie"}, o.system) {
		return fmt.Errorf("-system is %q: must be one of bookworm, trixie", o.system)
	}
	if !slices.Contains([]string{"amd64", "arm64"}, o.arch) {
		return fmt.Errorf("-arch is %q: must be one of amd64, arm64", o.arch)
	}
	switch {
	case o.quick:
		o.skip, o.only = []string{layerPackages, layerMachine, layerDemo}, nil
	case o.bench != "":
		o.skip, o.only = []string{layerPure, layerBoxes, layerPackages, layerDemo}, regexp.MustCompile("^TestTimesWhereTheKernelKeepsTheLimits$")
	case o.fleet:
		o.skip, o.only = []string{layerPure, layerBoxes, layerPackages, layerDemo}, regexp.MustCompile(exactly(pairTests))
	case o.soak:
		o.only = regexp.MustCompile("^(TestTwoHundredRoundsLeaveNothing|TestNothingIsLostWhateverIsKilled)$")
	}
	return nil
}

func (r *runner) skips(layer string) bool { return slices.Contains(r.skip, layer) }

// all runs every layer. Kernel, system and tests of the machine are built while tests on this host leave a processor idle. Packages
// are checked beside pure tests, since both wait for much else than processors, and so do real boxes, beside which the machine runs.
func (r *runner) all(ctx context.Context) error {
	if r.only != nil {
		return r.some(ctx)
	}
	m := &machine{runner: r}
	prepared := make(chan error, 1)
	if r.skips(layerMachine) {
		prepared <- nil
	} else {
		if err := m.choose(ctx); err != nil {
			return err
		}
		go func() { prepared <- m.prepare(ctx) }()
	}
	var wg sync.WaitGroup
	wg.Go(func() { r.layer(ctx, layerPure, hostGround, r.pure) })
	wg.Go(func() { r.layer(ctx, layerPackages, hostGround, r.packages) })
	wg.Wait()
	boxesEnded := make(chan struct{})
	wg.Go(func() {
		defer close(boxesEnded)
		r.layer(ctx, layerBoxes, hostGround, r.boxes)
		r.layer(ctx, layerDemo, hostGround, r.demo)
	})
	wg.Go(func() {
		err := <-prepared
		if err == nil && !r.abuse { // those that have not passed on this host are known when it has run them
			err = m.build(ctx)
		}
		if m.runsApart() {
			<-boxesEnded
		}
		r.layer(ctx, layerMachine, m.ground, func(ctx context.Context) error {
			if err != nil {
				return err
			}
			return m.suites(ctx)
		})
	})
	wg.Wait()
	if r.abuse {
		return r.reported(ctx, r.summary(), m.ground)
	}
	return r.summary()
}

// some runs the selected tests, wherever they are: here first, and what is left to others in the machine.
func (r *runner) some(ctx context.Context) error {
	if r.soak {
		r.layer(ctx, layerSoak, hostGround, r.soaks)
	}
	r.layer(ctx, layerPure, hostGround, r.pure)
	if r.skips(layerBoxes) { // this layer records the tests of suites
		for _, s := range r.testPackages() {
			if err := r.list(ctx, s.pkg); err != nil {
				return err
			}
		}
	}
	r.layer(ctx, layerBoxes, hostGround, r.boxes)
	if len(r.unproven()) > 0 && !r.skips(layerMachine) {
		m := &machine{runner: r}
		if err := m.choose(ctx); err != nil {
			return err
		}
		err := m.prepare(ctx)
		r.layer(ctx, layerMachine, m.ground, func(ctx context.Context) error {
			if err != nil {
				return err
			}
			return m.suites(ctx)
		})
	}
	if len(r.results) == 0 {
		return fmt.Errorf("-run is %q: no test is called that", r.only)
	}
	return r.summary()
}
