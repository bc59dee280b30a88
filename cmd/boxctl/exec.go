// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
	"github.com/boxd-dev/boxd/relay/render"
)

// execFlags are the flags of run, exec and start that say what to run.
type execFlags struct {
	command, code, language string
	cwd, timeout, user      string
	mustExist, merge        bool
	spool                   string
	env, rlimits            []string
	set                     *pflag.FlagSet
	changes                 changesFlags
}

func (f *execFlags) add(cmd *cobra.Command) {
	f.set = cmd.Flags()
	f.set.SetInterspersed(false) // flags after the program's name are the program's
	f.set.StringVarP(&f.command, "command", "c", "", "`LINE` run this shell command line")
	f.set.StringVar(&f.code, "code", "", "`CODE` run this source code, in --language")
	f.set.StringVarP(&f.language, "language", "l", "", "`LANGUAGE` language of --code, for example python")
	f.set.StringVarP(&f.cwd, "cwd", "w", "", "`DIRECTORY` working directory; created if missing")
	f.set.BoolVar(&f.mustExist, "cwd-must-exist", false, "fail if --cwd does not exist, and do not create it")
	f.set.StringVarP(&f.user, "user", "u", "", userFlag)
	f.set.BoolVar(&f.merge, "merge-output", false, "send standard error to standard output, in the order of writing")
	f.set.StringVar(&f.timeout, "timeout", "", "`TIME` end the program after this time, for example 90s")
}

// userFlag describes --user.
const userFlag = "`USER` root, in a box with --writable-root, or the box user (default)"

// oneProgram is the error for no program, or for more than one.
const oneProgram = "give one of: a program with its arguments, --command, --code with --language"

// addChanges is for commands that wait for the program.
func (f *execFlags) addChanges() { f.changes.add(f.set) }

// addOwn is for commands whose session has no flags of the same names.
func (f *execFlags) addOwn() {
	f.set.StringVar(&f.spool, "spool", "", "`SIZE` store up to this much output per stream on disk, in the workspace's quota, for example 256MiB")
	f.set.StringArrayVar(&f.rlimits, "ulimit", nil, "`NAME=SOFT:HARD` resource limit within the box's own, for example cpu=10 (seconds)")
	f.set.StringArrayVarP(&f.env, "env", "e", nil, "`NAME=value` set an environment variable; NAME alone passes yours on")
}

func (f *execFlags) request(argv []string) (*api.ExecRequest, error) {
	req := &api.ExecRequest{Language: f.language, Cwd: f.cwd, CwdMustExist: f.mustExist, User: f.user, MergeOutput: f.merge}
	var errs []error
	req.Timeout = parseFlag(&errs, f.set, "timeout", f.timeout, quantity.ParseDuration)
	req.Spool = parseFlag(&errs, f.set, "spool", f.spool, quantity.ParseSize)
	f.changes.request(req, &errs)
	var err error
	if req.Rlimits, err = parsePairs("ulimit", f.rlimits); err != nil {
		errs = append(errs, err)
	}
	given := 0
	if len(argv) > 0 {
		req.Argv = argv
		given++
	}
	if f.set.Changed("command") {
		req.Command = &f.command
		given++
	}
	if f.set.Changed("code") {
		req.Code = &f.code
		given++
	}
	if given != 1 && (given > 0 || !f.set.Changed("image")) { // an image may define the program
		errs = append(errs, errors.New(oneProgram))
	}
	if f.env != nil {
		env, err := parseEnv(f.env)
		if err != nil {
			errs = append(errs, err)
		}
		req.Env = env
	}
	if len(errs) > 0 {
		return nil, &usageError{err: errors.Join(errs...)}
	}
	return req, nil
}

func (a *app) runCommand() *cobra.Command {
	var sf sessionFlags
	var ef execFlags
	var tf terminalFlags
	var detach bool
	cmd := &cobra.Command{
		Use:   "run [flags] [--] PROGRAM [ARG...]",
		Short: "Run a program in a new box and remove the box afterwards",
		Long: `run creates a box, runs a program in it, and removes the box and its files when the program ends.
The program uses the standard input, output and error of boxctl, and boxctl exits with its exit
code. Input from a terminal is passed on only with -i.

With --here the current directory is the workspace of the box: files that the program writes there
stay, and belong to you.

With -d the program becomes a process of a box that stays: run prints the name of the box, for logs,
attach and exec. boxctl rm removes it; so does its idle timeout (--ttl), once the program has ended.

--network-rule implies --network egress; the rule "none" allows no
connection. Without --timeout the timeout of the profile applies, or for a program with a terminal
exec.max_interactive of box.toml.`,
		Example: `  boxctl run -- python3 -c 'print(6*7)'
  boxctl run --here -- make test
  boxctl run --image python:3.12 -- python3 -V
  boxctl run -it -- bash
  boxctl run -c 'ls -la | head' < input.txt
  boxctl run --language python --code 'import sys; print(sys.version)'`,
		RunE: a.call(func(cmd *cobra.Command, c *client.Client, args []string) error {
			exec, err := ef.request(args)
			if err != nil {
				return err
			}
			session, err := sf.request(sf.name)
			if err != nil {
				return err
			}
			a.program = &program{argv: exec.Argv, full: sf.here != "" || sf.workspace != "" || len(sf.mounts) > 0 || exec.Cwd != ""}
			if detach {
				return a.runDetached(cmd.Context(), c, session, exec, &tf, sf.dry)
			}
			if err := cmp.Or(a.checkTerminal(&tf), ef.changes.checkTerminal(tf.terminal)); err != nil {
				return err
			}
			if sf.dry {
				p, err := c.PlanRun(cmd.Context(), &api.OneShotRequest{Session: *session, Exec: *exec})
				return a.printPlan(&p, err)
			}
			if tf.terminal {
				return a.runInteractive(cmd.Context(), c, session, exec, &tf)
			}
			req := &api.OneShotRequest{Session: *session, Exec: *exec}
			err = a.execute(cmd.Context(), exec, a.input(&tf), execution{
				wait: func(ctx context.Context) (api.ExecResult, error) { req.Exec = *exec; return c.Run(ctx, req) },
				stream: func(ctx context.Context, io client.Stdio, sig <-chan string) (*api.ExecResult, error) {
					return c.RunStream(ctx, req, io, sig)
				},
			})
			if hint := absent(session, args, err); hint != "" && !a.hinted {
				a.printMessage("hint", hint)
			}
			return err
		}),
	}
	sf.add(cmd)
	sf.addName()
	ef.add(cmd)
	ef.addChanges()
	tf.add(cmd)
	cmd.Flags().BoolVarP(&detach, "detach", "d", false, "start the program in a box that stays, and print the name of the box")
	return cmd
}

func (a *app) execCommand() *cobra.Command {
	var ef execFlags
	var tf terminalFlags
	var dry, detach bool
	cmd := &cobra.Command{
		Use:   "exec [flags] BOX [--] PROGRAM [ARG...]",
		Short: "Run a program in a box",
		Long: `exec runs a program in a box and waits until it ends. Processes that the program leaves running are
killed, unless the profile of the box says otherwise. Files stay.

With -it the program gets your terminal: ctrl-p ctrl-q detaches from it, and boxctl attach returns
to it. Without --timeout the timeout of the profile applies, or for a program with a terminal
exec.max_interactive of box.toml.`,
		Example: `  boxctl exec work -- ls -la
  boxctl exec -it work -- bash
  boxctl exec -c 'cat > notes.txt' work < notes.txt`,
		Args: usage(cobra.MinimumNArgs(1)),
		RunE: a.call(func(cmd *cobra.Command, c *client.Client, args []string) error {
			id := args[0]
			if id == "" {
				return &usageError{err: client.ErrNoID}
			}
			exec, err := ef.requestAfter("the session's id", args[1:])
			if err != nil {
				return err
			}
			a.program = programOf(c, id, exec.Cwd, exec.Argv)
			if detach {
				return a.execDetached(cmd.Context(), c, id, exec, &tf, dry)
			}
			if exec.Spool != nil && !tf.terminal {
				return &usageError{err: errors.New("--spool needs -d or -t: otherwise all output goes through boxctl"), hint: "send it to a file: boxctl exec BOX -- PROGRAM > FILE"}
			}
			if err := cmp.Or(a.checkTerminal(&tf), ef.changes.checkTerminal(tf.terminal)); err != nil {
				return err
			}
			if dry {
				p, err := c.PlanExec(cmd.Context(), id, exec)
				return a.printPlan(&p, err)
			}
			if tf.terminal {
				return a.explain(cmd.Context(), a.interact(cmd.Context(), c, id, processRequest(exec), &tf))
			}
			return a.explain(cmd.Context(), a.execute(cmd.Context(), exec, a.input(&tf), execution{
				wait: func(ctx context.Context) (api.ExecResult, error) { return c.Exec(ctx, id, exec) },
				stream: func(ctx context.Context, io client.Stdio, sig <-chan string) (*api.ExecResult, error) {
					return c.ExecStream(ctx, id, exec, io, sig)
				},
			}))
		}),
	}
	ef.add(cmd)
	ef.addChanges()
	ef.addOwn()
	tf.add(cmd)
	cmd.Flags().BoolVar(&dry, "dry-run", false, "print what would be run, as JSON, and run nothing")
	cmd.Flags().BoolVarP(&detach, "detach", "d", false, "start the program as a process, print its name and do not wait")
	return cmd
}

// requestAfter is request for a program that follows boxctl's own arguments; last names the last of those.
func (f *execFlags) requestAfter(last string, argv []string) (*api.ExecRequest, error) {
	if len(argv) > 0 && argv[0] == "--" {
		argv = argv[1:]
	} else if len(argv) > 0 && strings.HasPrefix(argv[0], "-") {
		return nil, &usageError{err: fmt.Errorf("%s comes after %s: flags go before it, and a program that begins with - after --", argv[0], last)}
	}
	return f.request(argv)
}

// execution is one program to run, in either of two ways.
type execution struct {
	wait   func(context.Context) (api.ExecResult, error)
	stream func(context.Context, client.Stdio, <-chan string) (*api.ExecResult, error)
}

// maxJSONStdin is the maximum standard input in a request; boxd has its own limit.
const maxJSONStdin = 64 << 20

// execute runs a program and streams its output, or with --json waits and prints the answer.
func (a *app) execute(ctx context.Context, req *api.ExecRequest, in io.Reader, e execution) error {
	if a.json {
		return a.await(ctx, req, in, e)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	signals, release := catchSignals()
	defer release()
	names := make(chan string)
	var passing sync.WaitGroup
	passer := &signalPasser{from: signals, to: names}
	passing.Go(func() { passer.run(ctx, cancel) })
	r, err := e.stream(ctx, client.Stdio{Stdin: in, Stdout: a.stdout, Stderr: a.stderr}, names)
	cancel()
	passing.Wait()
	if r != nil && req.Changes && r.Changes == nil {
		r.Changes = &api.Changes{Unknown: "the connection was lost meanwhile"}
	}
	return a.conclude(r, err, passer.signal)
}

// await runs a program and prints boxd's answer.
func (a *app) await(ctx context.Context, req *api.ExecRequest, in io.Reader, e execution) error {
	if in != nil {
		data, err := io.ReadAll(io.LimitReader(in, maxJSONStdin))
		if err != nil {
			return programError{fmt.Errorf("read standard input: %w", err)}
		}
		req.Stdin = string(data)
		if !utf8.Valid(data) {
			req.Stdin, req.StdinEncoding = base64.StdEncoding.EncodeToString(data), "base64"
		}
	}
	signals, release := catchSignals()
	defer release()
	ctx, cancel := context.WithCancel(ctx)
	var watching sync.WaitGroup
	var caught syscall.Signal
	watching.Go(func() {
		select {
		case sig := <-signals:
			caught, _ = sig.(syscall.Signal)
			cancel() // boxd ends the program when its caller goes
		case <-ctx.Done():
		}
	})
	r, err := e.wait(ctx)
	cancel()
	watching.Wait()
	switch {
	case err != nil && caught != 0:
		return exitError(exitSignalBase + int(caught))
	case err != nil:
		return programError{err}
	}
	if err := a.printJSON(r); err != nil {
		return err
	}
	return resultCode(&r, caught)
}

// input returns standard input, unless that is a terminal and -i is not given: without a terminal in the box it would
// only look interactive.
func (a *app) input(f *terminalFlags) io.Reader {
	if f.noStdin || !f.interactive && render.IsTerminal(a.stdin) {
		return nil
	}
	return a.stdin
}

// absent returns a hint for a program that probably failed because a file of the current directory is not in the box.
// Interpreters and tools that cannot open a file exit with 1 or 2; other codes are the program's own.
func absent(session *api.SessionRequest, args []string, err error) string {
	code, ok := errors.AsType[exitError](err)
	if !ok || len(args) == 0 {
		return ""
	}
	if common := []exitError{1, 2, exitCannotRun, exitNotFound}; !slices.Contains(common, code) || len(session.Mounts) > 0 || session.Workspace != "" {
		return ""
	}
	for _, arg := range args {
		if info, err := os.Stat(arg); err == nil && info.Mode().IsRegular() && !filepath.IsAbs(arg) {
			return fmt.Sprintf("the box does not have the file %s of this directory: boxctl run --here", render.Printable(arg))
		}
	}
	return ""
}

// conclude turns the end of a stream into messages and an exit code.
func (a *app) conclude(r *api.ExecResult, err error, caught syscall.Signal) error {
	if err != nil && caught != 0 {
		return exitError(exitSignalBase + int(caught))
	}
	if err != nil {
		return programError{err}
	}
	a.showClamped(r.Clamped)
	switch r.Status {
	case "timed_out":
		fmt.Fprintf(a.stderr, "boxctl: timed out after %v\n", r.Timeout)
		if len(r.Clamped) == 0 {
			fmt.Fprintf(a.stderr, "hint: --timeout gives it longer, up to the profile's max_timeout\n")
		}
	case "start_failed":
		text, hint := r.Failure.Text, a.typed.words(r.Failure.Hint)
		if r.Failure.Step == "lookup" && r.Failure.Errno == "ENOENT" && r.Failure.Item != "" {
			text, hint = a.program.noProgram(r.Failure.Item)
		}
		a.printMessage("boxctl", text)
		if a.hinted = hint != ""; a.hinted {
			a.printMessage("hint", hint)
		}
	case "oom_killed":
		hint := "--memory gives a box more"
		if r.OOM != nil && r.OOM.Of == "owner" {
			hint = "end another box, or use less there: a policy limits their total"
		}
		fmt.Fprintf(a.stderr, "boxctl: killed: %s\nhint: %s\n", outOfMemory(r.OOM), hint)
	case "exited", "signaled":
		if o := r.OOM; o != nil && o.Sign != "" {
			fmt.Fprintf(a.stderr, "boxctl: probably out of memory (%s): each process may have %v\nhint: --memory gives a box more\n", o.Sign, o.Limit)
		}
	case "lost":
		fmt.Fprintf(a.stderr, "boxctl: the box was lost while the program ran\n")
	case "canceled":
		fmt.Fprintf(a.stderr, "boxctl: canceled\n")
	}
	switch n := r.LeftoversKilled; n {
	case 0:
	case 1:
		fmt.Fprintln(a.stderr, "boxctl: killed a process it left running")
	default:
		fmt.Fprintf(a.stderr, "boxctl: killed %d processes it left running\n", n)
	}
	showChanges(a.stderr, r.Changes)
	return resultCode(r, caught)
}

func (a *app) showClamped(list []api.Clamp) {
	for _, c := range list {
		name, _, _ := a.typed.name(c.Field)
		a.printMessage("boxctl", fmt.Sprintf("%s %s: limited to %s (%s)", name, c.Asked, c.Got, c.By))
	}
}

// resultCode returns the exit code of a program's result, nil if that is 0.
func resultCode(r *api.ExecResult, caught syscall.Signal) error {
	code := exitBoxd
	switch r.Status {
	case "exited":
		code = *r.ExitCode
	case "signaled":
		code = exitSignalBase + int(unix.SignalNum(r.Signal))
	case "oom_killed":
		code = exitSignalBase + int(unix.SIGKILL)
	case "timed_out":
		code = exitTimeout
	case "canceled":
		if caught != 0 {
			code = exitSignalBase + int(caught)
		}
	case "start_failed":
		code = failureCode(r.Failure)
	}
	if code == 0 {
		return nil
	}
	return exitError(code)
}

// failureCode returns a shell's exit code for a program that did not start, if that is the program's fault.
func failureCode(f *api.StartFailure) int {
	switch {
	case f.Step != "directory" && f.Step != "lookup" && f.Step != "exec":
		return exitBoxd
	case f.Step != "directory" && f.Errno == "ENOENT":
		return exitNotFound
	}
	return exitCannotRun
}

// outOfMemory says which limit was reached, and what was killed.
func outOfMemory(o *api.OOM) string {
	if o == nil {
		return "out of memory"
	}
	text := fmt.Sprintf("out of memory, the %s may have %v", o.Of, o.Limit)
	if len(o.Names) > 0 {
		text += "; the kernel chose " + render.Printable(strings.Join(o.Names, ", "))
	}
	return text
}
