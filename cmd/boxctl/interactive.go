// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
	"github.com/boxd-dev/boxd/relay/render"
)

// terminalFlags are the flags of run and exec that connect the user with the program.
type terminalFlags struct {
	noStdin, interactive, terminal bool
	detachKeys                     string
	keys                           []byte // parsed
}

func (f *terminalFlags) add(cmd *cobra.Command) {
	set := cmd.Flags()
	set.BoolVarP(&f.noStdin, "no-stdin", "n", false, "give the program no standard input")
	set.BoolVarP(&f.interactive, "interactive", "i", false, "pass standard input on, even from a terminal")
	set.BoolVarP(&f.terminal, "terminal", "t", false, "give the program a terminal; with -i, connect it to yours")
	addDetachKeys(cmd, &f.detachKeys)
}

func addDetachKeys(cmd *cobra.Command, keys *string) {
	cmd.Flags().StringVar(keys, "detach-keys", "ctrl-p,ctrl-q", "`KEYS` key sequence to detach from the terminal; \"\" disables it")
}

// checkTerminal checks that the flags fit together, and fit boxctl's standard input and output.
func (a *app) checkTerminal(f *terminalFlags) (err error) {
	f.keys, err = parseKeys(f.detachKeys)
	switch {
	case err != nil:
		return &usageError{err: fmt.Errorf("--detach-keys: %w", err)}
	case f.interactive && f.noStdin:
		return &usageError{err: errors.New("--interactive and --no-stdin: give one of them")}
	case f.terminal && a.json:
		return &usageError{err: errors.New("--terminal and --json: terminal output is not JSON")}
	case f.terminal && f.interactive && !render.IsTerminal(a.stdin):
		return &usageError{err: errors.New("the input device is not a terminal: -i and -t together need one; -i alone takes any input")}
	}
	return nil
}

// processRequest converts an execution request to a process request.
func processRequest(x *api.ExecRequest) *api.ProcessRequest {
	return &api.ProcessRequest{Argv: x.Argv, Command: x.Command, Code: x.Code, Language: x.Language, Env: x.Env, Cwd: x.Cwd, CwdMustExist: x.CwdMustExist, Timeout: x.Timeout, Rlimits: x.Rlimits, User: x.User, MergeOutput: x.MergeOutput, Spool: x.Spool}
}

// Times of a program in a terminal.
const (
	detachedLease   = 10 * time.Minute // how long it lives without a client
	interactiveStop = 2 * time.Second  // for it to end after SIGHUP
	forgetTimeout   = 15 * time.Second // for boxd to end it
)

// setTerminal gives a program a terminal of the size and type of boxctl's, if boxctl has one.
func (a *app) setTerminal(req *api.ProcessRequest) {
	size, ok := render.SizeOfTerminal(a.stdout, a.stdin)
	if !ok {
		size = render.TerminalSize{Rows: 24, Cols: 80}
	}
	req.Terminal = &api.Terminal{Rows: size.Rows, Cols: size.Cols}
	kind := os.Getenv("TERM")
	if _, given := req.Env["TERM"]; !given && kind != "" {
		if req.Env == nil {
			req.Env = map[string]string{}
		}
		req.Env["TERM"] = kind
	}
}

// interact runs a program in a terminal, as a process, so that the user can detach and attach again.
func (a *app) interact(ctx context.Context, c *client.Client, id string, req *api.ProcessRequest, f *terminalFlags) error {
	a.setTerminal(req)
	req.Stdin = f.interactive
	req.Lease = new(quantity.Duration(detachedLease))
	req.Stop = &api.Stop{Signal: "SIGHUP", Grace: new(quantity.Duration(interactiveStop))}
	name := terminalName(req)
	defer outliveTerminal()()
	p, _, err := c.StartProcess(ctx, id, name, req)
	if err != nil {
		return programError{err}
	}
	a.showClamped(p.Clamped)
	v := attachment{
		id: id, name: name, options: client.AttachOptions{Replay: true, Write: f.interactive, Lossless: true},
		input: f.interactive, terminal: true, keys: f.keys, passSignals: true,
	}
	r, caught, err := a.attachTo(ctx, c, &v)
	if errors.Is(err, client.ErrDetached) {
		a.printDetached(&v)
		fmt.Fprintf(a.stderr, "boxctl: it ends after %v without an attached client\n", quantity.Duration(detachedLease))
		return client.ErrDetached
	}
	timeoutCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), forgetTimeout)
	defer cancel()
	deleteErr := c.DeleteProcess(timeoutCtx, id, name) // otherwise its lease ends it
	ended := err != nil && deleteErr == nil
	switch {
	case ended && caught == 0:
		err = fmt.Errorf("%w; the program in the terminal was ended", err)
	case caught == syscall.SIGHUP && (ended || r != nil && r.Signal == "SIGKILL"): // SIGHUP did not end it
		fmt.Fprintln(a.stderr, "boxctl: the terminal is gone; its program was ended")
	}
	if r != nil {
		r.Clamped = nil // printed already
	}
	return a.conclude(r, err, caught)
}

// outliveTerminal keeps SIGHUP from ending boxctl, until release, before it has ended the program in the terminal.
func outliveTerminal() (release func()) {
	if signal.Ignored(syscall.SIGHUP) { // as with nohup(1)
		return func() {}
	}
	hungUp := make(chan os.Signal, 1)
	signal.Notify(hungUp, syscall.SIGHUP)
	return func() { signal.Stop(hungUp) }
}

// terminalName makes a process id from the program in the terminal.
func terminalName(req *api.ProcessRequest) string {
	return programName(req) + "-" + strings.ToLower(rand.Text()[:5])
}

// runInteractive is interact in a new session, which is kept if the user detaches.
func (a *app) runInteractive(ctx context.Context, c *client.Client, session *api.SessionRequest, exec *api.ExecRequest, f *terminalFlags) error {
	defer outliveTerminal()() // also until the box is removed
	s, _, err := c.CreateSession(ctx, session)
	if err != nil {
		return programError{err}
	}
	err = a.interact(ctx, c, s.ID, processRequest(exec), f)
	if errors.Is(err, client.ErrDetached) {
		fmt.Fprintf(a.stderr, "boxctl: 'boxctl rm %s' removes its box\n", render.ShellWord(s.ID))
		return err
	}
	timeoutCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), forgetTimeout)
	defer cancel()
	if derr := c.DeleteSession(timeoutCtx, s.ID); derr != nil && err == nil {
		return programError{fmt.Errorf("remove the box: %w", derr)}
	}
	return err
}

// attachment says how to attach to a process.
type attachment struct {
	id, name    string
	options     client.AttachOptions
	input       bool   // send standard input
	terminal    bool   // the process has one
	keys        []byte // the detach keys
	passSignals bool   // otherwise signals detach
}

// attachTo connects boxctl with a process until that ends or the user detaches. It restores the terminal before it
// returns.
func (a *app) attachTo(ctx context.Context, c *client.Client, v *attachment) (*api.ExecResult, syscall.Signal, error) {
	ctx, cancel := context.WithCancel(ctx)
	signals, release := catchSignals()
	defer release()
	names := make(chan string)
	var tasks sync.WaitGroup
	defer tasks.Wait()
	defer cancel() // before that
	passer := &signalPasser{from: signals, to: names}
	tasks.Go(func() {
		if v.passSignals {
			passer.run(ctx, cancel)
		} else {
			passer.hangUp(ctx, cancel)
		}
	})
	stdio := client.Stdio{Stdout: a.stdout, Stderr: a.stderr}
	if v.input {
		stdio.Stdin = a.stdin
	}
	end := "\n"
	if f, ok := a.stdin.(*os.File); ok && v.input && v.terminal && render.IsTerminal(f) {
		restore, err := render.RawMode(f)
		if err != nil {
			return nil, 0, fmt.Errorf("raw mode: %w", err)
		}
		defer restore()
		stdio.Stdin, end = newDetacher(f, v.keys, client.ErrDetached), "\r\n"
	}
	if v.terminal {
		sizes := make(chan api.Terminal)
		stdio.Resize = sizes
		tasks.Go(func() {
			render.WatchSize(ctx, func(s render.TerminalSize) {
				select {
				case sizes <- api.Terminal{Rows: s.Rows, Cols: s.Cols}:
				case <-ctx.Done():
				}
			}, a.stdout, a.stdin)
		})
	}
	o := v.options
	o.Attached = func(at *api.StreamAttached) {
		if o.Write && !at.Writer {
			fmt.Fprintf(a.stderr, "boxctl: read-only, as another client writes to it; attach --take-over writes instead%s", end)
		}
	}
	o.Gap = func(g api.StreamGap) {
		fmt.Fprintf(a.stderr, "boxctl: %d bytes of %s are no longer stored%s", g.Bytes, g.Stream, end)
	}
	o.WriterLost = func() {
		fmt.Fprintf(a.stderr, "boxctl: another client writes to it now; your input is ignored%s", end)
	}
	r, err := c.Attach(ctx, v.id, v.name, o, stdio, names)
	cancel()
	tasks.Wait()
	return r, passer.signal, err
}

func (a *app) printDetached(v *attachment) {
	fmt.Fprintf(a.stderr, "\nboxctl: detached; 'boxctl attach %s %s' attaches again\n", render.ShellWord(v.id), render.ShellWord(v.name))
}

func (a *app) attachCommand() *cobra.Command {
	var noStdin, takeOver, noReplay, drop bool
	var detachKeys string
	cmd := &cobra.Command{
		Use:   "attach [flags] BOX [PROCESS]",
		Short: "Attach to a process of a box",
		Long: `attach prints the stored output of a process, then its new output, and passes your input to the
process. Only one client at a time can send input. attach ends when the process ends, unless the
restart policy starts the process again. The process continues when attach ends.
PROCESS can be left out if the box has one process.

If standard input is not a terminal, its end also closes the standard input of the process. As
with a pipe, the process blocks while its output is not read. With --drop it does not: output that
is not read in time is dropped, with a note on standard error.

For an MCP server use --no-replay, so that the client does not receive answers to an earlier
client, and make that command the server command in the configuration of the MCP client.`,
		Example: `  boxctl attach work bash-x7k2q
  boxctl attach -n work server
  boxctl attach --no-replay work mcp`,
		Args: usage(names(cobra.RangeArgs(1, 2))),
		RunE: a.call(func(cmd *cobra.Command, c *client.Client, args []string) error {
			var v attachment
			var err error
			if v.keys, err = parseKeys(detachKeys); err != nil {
				return &usageError{err: fmt.Errorf("--detach-keys: %w", err)}
			}
			if args, err = withProcess(cmd, c, args); err != nil {
				return err
			}
			v.id, v.name = args[0], args[1]
			p, err := c.Process(cmd.Context(), v.id, v.name, 0)
			if err != nil {
				return programError{err}
			}
			v.terminal = p.Terminal != nil
			v.input = !noStdin && p.State != "ended" && (p.Stdin || v.terminal)
			v.options = client.AttachOptions{Replay: !noReplay, Write: v.input, TakeOver: takeOver && v.input, Lossless: !drop}
			r, caught, err := a.attachTo(cmd.Context(), c, &v)
			if errors.Is(err, client.ErrDetached) {
				a.printDetached(&v)
				return nil
			}
			return a.conclude(r, err, caught)
		}),
	}
	cmd.Flags().BoolVarP(&noStdin, "no-stdin", "n", false, "only show output, send no input")
	cmd.Flags().BoolVar(&takeOver, "take-over", false, "become the client that writes to the process")
	cmd.Flags().BoolVar(&drop, "drop", false, "drop output that is not read in time, instead of blocking the process")
	cmd.Flags().BoolVar(&noReplay, "no-replay", false, "do not show earlier output")
	addDetachKeys(cmd, &detachKeys)
	return cmd
}
