// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
	"github.com/boxd-dev/boxd/relay/render"
)

// shellCommand opens a shell: in a new box on the current directory, or in an existing box.
func (a *app) shellCommand() *cobra.Command {
	var sf sessionFlags
	var tf terminalFlags
	var cwd, timeout, user string
	var newOnly []string // flags for a new box
	cmd := &cobra.Command{
		Use:   "shell [flags] [BOX]",
		Short: "Open a shell in a new box, or in BOX",
		Long: `shell opens a shell in a new box with the current directory as its workspace, and removes the box
when the shell exits: it is short for boxctl run -it --here. The shell is yours ($SHELL) if the box
has it, else bash, else sh.

With BOX it opens bash in that box, or sh if the box has no bash, and the box stays. If standard
input is not a terminal, the shell reads its commands from there.`,
		Example: `  boxctl shell
  boxctl shell --image python:3.12 --network-rule pypi.org
  boxctl shell work
  echo 'make test' | boxctl shell`,
		Args: usage(ids(cobra.MaximumNArgs(1))),
		RunE: a.call(func(cmd *cobra.Command, c *client.Client, args []string) error {
			tf.terminal, tf.interactive = render.IsTerminal(a.stdin), render.IsTerminal(a.stdin)
			if err := a.checkTerminal(&tf); err != nil {
				return err
			}
			exec := &api.ExecRequest{Cwd: cwd, User: user}
			var errs []error
			if exec.Timeout = parseFlag(&errs, cmd.Flags(), "timeout", timeout, quantity.ParseDuration); len(errs) > 0 {
				return &usageError{err: errs[0]}
			}
			if len(args) == 0 {
				exec.Argv = shellArgv(userShell(os.Getenv("SHELL")))
				return a.newShell(cmd.Context(), c, &sf, exec, &tf)
			}
			for _, name := range newOnly {
				if cmd.Flags().Changed(name) {
					return &usageError{err: fmt.Errorf("--%s is for a new box and %s exists: leave out one of them", name, args[0])}
				}
			}
			var err error
			if exec.Env, err = parseEnv(sf.env); err != nil {
				return &usageError{err: err}
			}
			exec.Argv = shellArgv()
			if tf.terminal {
				return a.interact(cmd.Context(), c, args[0], processRequest(exec), &tf)
			}
			return a.execute(cmd.Context(), exec, a.stdin, execution{
				wait: func(ctx context.Context) (api.ExecResult, error) { return c.Exec(ctx, args[0], exec) },
				stream: func(ctx context.Context, io client.Stdio, sig <-chan string) (*api.ExecResult, error) {
					return c.ExecStream(ctx, args[0], exec, io, sig)
				},
			})
		}),
	}
	sf.add(cmd)
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if f.Name != "env" {
			newOnly = append(newOnly, f.Name)
		}
	})
	cmd.Flags().StringVarP(&cwd, "cwd", "w", "", "`DIRECTORY` working directory; created if missing")
	cmd.Flags().StringVarP(&user, "user", "u", "", userFlag)
	cmd.Flags().StringVar(&timeout, "timeout", "", "`TIME` end the shell after this time, for example 90s")
	addDetachKeys(cmd, &tf.detachKeys)
	return cmd
}

// newShell runs a shell in a new box.
func (a *app) newShell(ctx context.Context, c *client.Client, sf *sessionFlags, exec *api.ExecRequest, tf *terminalFlags) error {
	if !sf.set.Changed("here") && sf.workspace == "" && !slices.ContainsFunc(sf.mounts, isWorkspaceMount) {
		sf.here = "rw"
	}
	session, err := sf.request("")
	if err != nil {
		return err
	}
	req := &api.OneShotRequest{Session: *session, Exec: *exec}
	switch {
	case sf.dry:
		p, err := c.PlanRun(ctx, req)
		return a.printPlan(&p, err)
	case tf.terminal:
		return a.runInteractive(ctx, c, session, exec, tf)
	}
	return a.execute(ctx, exec, a.stdin, execution{
		wait: func(ctx context.Context) (api.ExecResult, error) { req.Exec = *exec; return c.Run(ctx, req) },
		stream: func(ctx context.Context, io client.Stdio, sig <-chan string) (*api.ExecResult, error) {
			return c.RunStream(ctx, req, io, sig)
		},
	})
}

// isWorkspaceMount reports whether a mount replaces the current directory in the box.
func isWorkspaceMount(text string) bool {
	_, rest, _ := strings.Cut(text, ":")
	target, _, _ := strings.Cut(rest, ":")
	return path.Clean(target) == "/workspace"
}

// userShell returns the name of the user's shell, "bash" if that is not interactive, such as nologin.
func userShell(shell string) string {
	name := path.Base(shell)
	if slices.Contains([]string{"bash", "zsh", "fish", "ksh", "mksh", "dash", "ash", "tcsh", "csh", "sh"}, name) {
		return name
	}
	return "bash"
}

// shellArgv runs the first of the shells that the box has; the last ones are bash and sh.
func shellArgv(first ...string) []string {
	const choose = `for s; do p=$(command -v "$s") && exec "$p"; done; exec sh`
	return append(append([]string{"/bin/sh", "-c", choose, "sh"}, first...), "bash")
}
