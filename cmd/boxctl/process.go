// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
	"github.com/boxd-dev/boxd/relay/render"
)

// startFlags are the flags of start besides those that say what to run.
type startFlags struct {
	execFlags
	memory, output                     string
	restart, restartDelay              string
	readyLine, readyCommand, readyTime string
	stopSignal, grace, lease           string
	cpus                               float64
	pids, restartLimit, readyPort      int
	stdin, terminal, wait              bool
	labels                             []string
	name                               string
	detach                             bool // the default anyway
}

func (f *startFlags) add(cmd *cobra.Command) {
	f.execFlags.add(cmd)
	f.addOwn()
	f.set.Float64Var(&f.cpus, "cpus", 0, "`N` CPU limit, within the box's limit")
	f.set.StringVarP(&f.memory, "memory", "m", "", "`SIZE` memory limit, within the box's limit")
	f.set.IntVar(&f.pids, "pids", 0, "`N` maximum number of processes and threads, within the box's limit")
	f.set.BoolVarP(&f.stdin, "stdin", "i", false, "open a standard input, for attach")
	f.set.BoolVarP(&f.terminal, "terminal", "t", false, "give the process a terminal, for attach")
	f.set.StringVar(&f.restart, "restart", "", "`POLICY` restart policy: no, on-failure or always")
	f.set.StringVar(&f.restartDelay, "restart-delay", "", "`TIME` delay before the first restart, for example 1s; doubles each time")
	f.set.IntVar(&f.restartLimit, "restart-limit", 0, "`N` give up after more than N restarts per minute; 0: never (default 5)")
	f.set.StringVar(&f.readyLine, "ready-line", "", "`REGEX` ready when a line of output matches")
	f.set.IntVar(&f.readyPort, "ready-port", 0, "`PORT` ready when this TCP port accepts connections")
	f.set.StringVar(&f.readyCommand, "ready-command", "", "`LINE` ready when this shell command line exits with 0")
	f.set.StringVar(&f.readyTime, "ready-timeout", "", "`TIME` end the process if it is not ready after this time")
	f.set.StringVar(&f.stopSignal, "stop-signal", "", "`SIGNAL` signal that asks the process to stop, for example SIGINT")
	f.set.StringVar(&f.grace, "grace", "", "`TIME` time between the stop signal and SIGKILL")
	f.set.StringVar(&f.lease, "lease", "", "`TIME` end the process after this time without a client attached")
	f.set.StringVar(&f.output, "output", "", "`SIZE` how much recent output to store per stream, for example 1MiB")
	f.set.StringArrayVar(&f.labels, "label", nil, "`NAME=value` label")
	f.set.BoolVar(&f.wait, "wait", false, "wait until the process is ready or has ended")
	f.set.StringVar(&f.name, "name", "", "`NAME` name of the process, instead of the argument")
	f.set.BoolVarP(&f.detach, "detach", "d", false, "no effect: start never waits for the process to end")
}

// split divides the arguments after the box into the name of the process, "" if none was given, and the program.
func (f *startFlags) split(args []string) (name string, program []string) {
	if f.set.Changed("name") || len(args) == 0 || args[0] == "--" {
		return f.name, args
	}
	return args[0], args[1:]
}

// request makes a request from the given flags, for a process of a box; its name is given, or made from the program.
func (f *startFlags) request(id, name string, argv []string) (*api.ProcessRequest, error) {
	last := "the process's name"
	if name == "" || f.set.Changed("name") {
		last = "the name of the box"
	}
	exec, err := f.requestAfter(last, argv)
	if e, ok := errors.AsType[*usageError](err); ok && len(argv) == 0 && name != "" && !f.set.Changed("name") {
		e.hint = "boxctl start " + render.ShellWord(id) + " -- " + render.ShellWord(name) + " starts the program of that name"
	}
	if err != nil {
		return nil, err
	}
	req := processRequest(exec)
	var errs []error
	given := f.set.Changed
	req.Memory = parseFlag(&errs, f.set, "memory", f.memory, quantity.ParseSize)
	req.Output = parseFlag(&errs, f.set, "output", f.output, quantity.ParseSize)
	req.Lease = parseFlag(&errs, f.set, "lease", f.lease, quantity.ParseDuration)
	if given("cpus") {
		req.CPUs = &f.cpus
	}
	if given("pids") {
		req.Pids = &f.pids
	}
	req.Stdin = f.stdin || f.terminal
	if given("restart") || given("restart-delay") || given("restart-limit") {
		req.Restart = &api.Restart{Policy: f.restart, Delay: parseFlag(&errs, f.set, "restart-delay", f.restartDelay, quantity.ParseDuration)}
		if given("restart-limit") {
			req.Restart.Limit = &f.restartLimit
		}
		if !given("restart") {
			errs = append(errs, errors.New("--restart-delay and --restart-limit go with --restart"))
		}
	}
	req.Ready = f.ready(&errs)
	if given("stop-signal") || given("grace") {
		req.Stop = &api.Stop{Signal: signalName(f.stopSignal), Grace: parseFlag(&errs, f.set, "grace", f.grace, quantity.ParseDuration)}
	}
	if req.Labels, err = parsePairs("label", f.labels); err != nil {
		errs = append(errs, err)
	}
	if len(errs) > 0 {
		return nil, &usageError{err: errors.Join(errs...)}
	}
	return req, nil
}

// anyGiven reports whether a flag of the command itself was given.
func (f *startFlags) anyGiven(cmd *cobra.Command) (given bool) {
	f.set.VisitAll(func(flag *pflag.Flag) {
		given = given || flag.Changed && cmd.LocalNonPersistentFlags().Lookup(flag.Name) != nil
	})
	return given
}

// ready returns the readiness condition, nil if no flag sets one.
func (f *startFlags) ready(errs *[]error) *api.Ready {
	var ready api.Ready
	conditions := 0
	if f.set.Changed("ready-line") {
		ready.Line = &f.readyLine
		conditions++
	}
	if f.set.Changed("ready-port") {
		ready.Port = &f.readyPort
		conditions++
	}
	if f.set.Changed("ready-command") {
		ready.Command = []string{"/bin/sh", "-c", f.readyCommand}
		conditions++
	}
	ready.Timeout = parseFlag(errs, f.set, "ready-timeout", f.readyTime, quantity.ParseDuration)
	switch {
	case conditions > 1:
		*errs = append(*errs, errors.New("give one of: --ready-line, --ready-port, --ready-command"))
	case conditions == 0 && ready.Timeout != nil:
		*errs = append(*errs, errors.New("--ready-timeout goes with --ready-line, --ready-port or --ready-command"))
	case conditions == 0:
		return nil
	}
	return &ready
}

// signalName returns the name of a signal, which may be given without SIG.
func signalName(name string) string {
	name = strings.ToUpper(name)
	if full := "SIG" + name; unix.SignalNum(name) == 0 && unix.SignalNum(full) != 0 {
		return full
	}
	return name
}

func (a *app) startCommand() *cobra.Command {
	var f startFlags
	cmd := &cobra.Command{
		Use:   "start [flags] BOX [NAME] [--] [PROGRAM [ARG...]]",
		Short: "Start a background process in a box, or a stopped box",
		Long: `start starts a process in a box and prints its name. It runs until it ends, is stopped, or its box
is removed; logs and attach show its output. If the box already has a process of that name with the
same flags, start does nothing. Without NAME, the process is named after the program, which then
follows --.

With nothing but BOX, start starts a box again that boxctl stop has stopped: with its name,
settings, environment and files, and with the processes of --restart always. It waits for room as
create does.`,
		Example: `  boxctl start --restart on-failure --ready-port 8080 --wait work web -- ./serve
  boxctl start --stdin --restart always --restart-limit 0 work mcp -- python3 /opt/mcp/server.py
  boxctl start -t work shell -- bash
  boxctl start work -- ./serve
  boxctl start work`,
		Args: usage(names(cobra.MinimumNArgs(1))),
		RunE: a.call(func(cmd *cobra.Command, c *client.Client, args []string) error {
			id := args[0]
			if len(args) == 1 && !f.anyGiven(cmd) {
				s, err := c.StartSession(cmd.Context(), id)
				if err == nil && a.json {
					return a.printJSON(s)
				}
				return err
			}
			name, program := f.split(args[1:])
			req, err := f.request(id, name, program)
			if err != nil {
				return err
			}
			if name == "" {
				if name, err = freeName(cmd.Context(), c, id, req); err != nil {
					return programError{err}
				}
			}
			if f.terminal {
				a.setTerminal(req)
			}
			p, _, err := c.StartProcess(cmd.Context(), id, name, req)
			if err == nil && f.wait {
				clamped := p.Clamped
				p, err = awaitReady(cmd.Context(), c, id, name)
				p.Clamped = clamped
			}
			if err != nil {
				return programError{err}
			}
			if a.json {
				err = a.printJSON(p)
			} else {
				a.showClamped(p.Clamped)
				fmt.Fprintln(a.stdout, render.Printable(p.ID))
			}
			failed := p.Result != nil && p.Result.Status == "start_failed"
			if (f.wait || failed) && p.State == "ended" {
				return errors.Join(err, a.printEnded(&p))
			}
			return err
		}),
	}
	f.add(cmd)
	return cmd
}

// readyTimeout is how long one request waits for a process to be ready.
const readyTimeout = 200 * time.Millisecond

func awaitReady(ctx context.Context, c *client.Client, id, name string) (api.Process, error) {
	for {
		p, err := c.Process(ctx, id, name, readyTimeout)
		if err != nil || p.Ready || p.State == "ended" {
			return p, err
		}
	}
}

// printEnded says why a process has ended, and returns its exit code.
func (a *app) printEnded(p *api.Process) error {
	why := p.Reason
	if why == "" && p.Result != nil {
		why = p.Result.Status
	}
	fmt.Fprintf(a.stderr, "boxctl: %s has ended: %s\nhint: 'boxctl logs %s %s' shows what it wrote\n", render.Printable(p.ID), why, render.ShellWord(p.Session), render.ShellWord(p.ID))
	if p.Result == nil {
		return exitError(exitBoxd)
	}
	if a.json {
		return resultCode(p.Result, 0)
	}
	return a.conclude(p.Result, nil, 0)
}

func (a *app) psCommand() *cobra.Command {
	var l *listing[api.Process]
	cmd := &cobra.Command{
		Use:   "ps BOX",
		Short: "List the processes of a box",
		Long: `ps lists the processes of a box that boxctl start started or that have a terminal, with those that
ended recently. STARTS is the number of times a process was started, CLIENTS the number of clients
attached to it.`,
		Args: usage(ids(cobra.ExactArgs(1))),
		RunE: a.call(func(cmd *cobra.Command, c *client.Client, args []string) error {
			list, err := processesOf(cmd.Context(), c, args[0])
			return l.print(list, api.ProcessList{Processes: list}, err, func() error { return render.Processes(a.stdout, list, time.Now()) })
		}),
	}
	l = newListing(a, cmd, "names", func(p *api.Process) string { return p.ID })
	return cmd
}

func (a *app) stopCommand() *cobra.Command {
	var signal, grace string
	var remove bool
	cmd := &cobra.Command{
		Use:   "stop [flags] BOX [PROCESS...]",
		Short: "Stop processes of a box, or the box",
		Long: `stop sends each process its stop signal, kills it if it does not end in its grace time, and returns
when all of them have ended. Their output can still be read for a while, unless --rm removes it.

Without PROCESS, stop stops the box: it ends all programs of the box and frees its memory. Name,
settings, environment, workspace and changes to the root filesystem stay, and the home directory of
a box with --home-on-disk. /tmp and any other home directory are lost. boxctl start BOX starts the
box again, also after a reboot of the host.`,
		Example: `  boxctl stop work web
  boxctl stop --signal INT --grace 1m work job
  boxctl stop work`,
		Args: usage(names(cobra.MinimumNArgs(1))),
		RunE: a.call(func(cmd *cobra.Command, c *client.Client, args []string) error {
			if len(args) == 1 {
				return a.stopBox(cmd, c, args[0])
			}
			var errs []error
			wait := parseFlag(&errs, cmd.Flags(), "grace", grace, quantity.ParseDuration)
			signal = signalName(signal)
			if signal != "" && unix.SignalNum(signal) == 0 {
				errs = append(errs, fmt.Errorf("--signal %s: must be the name of a signal, for example TERM", render.ShellWord(signal)))
			}
			if len(errs) > 0 {
				return &usageError{err: errors.Join(errs...)}
			}
			ended := api.ProcessList{Processes: []api.Process{}}
			for _, name := range args[1:] {
				p, err := stopProcess(cmd.Context(), c, args[0], name, signal, wait)
				if err == nil && remove {
					err = c.DeleteProcess(cmd.Context(), args[0], name)
				}
				if err != nil {
					errs = append(errs, err)
					continue
				}
				ended.Processes = append(ended.Processes, p)
			}
			if a.json {
				errs = append(errs, a.printJSON(ended))
			}
			return errors.Join(errs...)
		}),
	}
	cmd.Flags().StringVarP(&signal, "signal", "s", "", "`SIGNAL` stop signal, for example INT (default: the process's own)")
	cmd.Flags().StringVar(&grace, "grace", "", "`TIME` time until SIGKILL; 0s kills at once (default: the process's own)")
	cmd.Flags().BoolVar(&remove, "rm", false, "remove the stopped processes and their output")
	return cmd
}

// stopBox stops a box.
func (a *app) stopBox(cmd *cobra.Command, c *client.Client, id string) error {
	for _, name := range []string{"signal", "grace", "rm"} {
		if cmd.Flags().Changed(name) {
			return &usageError{err: fmt.Errorf("stop: --%s is for processes; name one of the box", name), hint: "boxctl stop " + render.ShellWord(id) + " stops the box"}
		}
	}
	s, err := c.StopSession(cmd.Context(), id)
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(s)
	}
	return nil
}

// stopProcess ends a process, in its configured way unless a signal or a grace period is given.
func stopProcess(ctx context.Context, c *client.Client, id, name, signal string, grace *quantity.Duration) (api.Process, error) {
	if signal == "" && grace == nil {
		return c.StopProcess(ctx, id, name)
	}
	p, err := c.Process(ctx, id, name, 0)
	if err != nil || p.State == "ended" {
		return p, err
	}
	if signal == "" {
		signal = p.Stop.Signal
	}
	if grace == nil {
		grace = p.Stop.Grace
	}
	if grace == nil || *grace > 0 {
		if err := c.SignalProcess(ctx, id, name, signal); err != nil {
			return p, err
		}
	}
	if grace != nil {
		const limit = time.Minute // per request
		for end := time.Now().Add(time.Duration(*grace)); p.State != "ended" && time.Now().Before(end); {
			if p, err = c.Process(ctx, id, name, min(time.Until(end), limit)); err != nil {
				return p, err
			}
		}
	}
	if grace != nil && p.State != "ended" {
		_ = c.SignalProcess(ctx, id, name, unix.SignalName(unix.SIGKILL)) // if it fails, StopProcess kills it
	}
	return c.StopProcess(ctx, id, name) // otherwise it may be restarted
}

// names is ids for commands whose arguments are a session and its processes.
func names(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return err
		}
		switch slices.Index(args[:min(len(args), 2)], "") {
		case 0:
			return client.ErrNoID
		case 1:
			return client.ErrNoName
		}
		return nil
	}
}
