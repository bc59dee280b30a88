// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
	"github.com/boxd-dev/boxd/relay/render"
)

// completionPatience is how long a completion waits for boxd. One that its socket unit has yet to start takes
// longer: then there is nothing to offer until the next time.
const completionPatience = 500 * time.Millisecond

// completionCommand is the command that prints the script of a shell.
func completionCommand(out io.Writer) *cobra.Command {
	scripts := map[string]func(root *cobra.Command) error{
		"bash": func(root *cobra.Command) error { return root.GenBashCompletionV2(out, true) },
		"zsh":  func(root *cobra.Command) error { return root.GenZshCompletion(out) },
		"fish": func(root *cobra.Command) error { return root.GenFishCompletion(out, true) },
	}
	return &cobra.Command{
		Use:   "completion bash|zsh|fish",
		Short: "Print what completes boxctl's command line in a shell",
		Long: `completion prints a script for a shell, which asks boxctl what fits where Tab is pressed: commands,
flags, the sessions you have and their processes. The packages of boxd bring all three scripts along.`,
		Example: `  . <(boxctl completion bash)
  boxctl completion zsh > ~/.zfunc/_boxctl
  boxctl completion fish > ~/.config/fish/completions/boxctl.fish`,
		ValidArgs: slices.Sorted(maps.Keys(scripts)),
		Args: usage(func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 && scripts[args[0]] == nil {
				return &usageError{err: fmt.Errorf("unknown shell %q: use bash, zsh or fish", args[0])}
			}
			return cobra.ExactArgs(1)(cmd, args)
		}),
		RunE: func(cmd *cobra.Command, args []string) error { return scripts[args[0]](cmd.Root()) },
	}
}

// completer offers what boxd has, by a client that is made when the flags have been read.
type completer struct{ client func() *client.Client }

// addCompletion says for every command and flag what fits there when Tab is pressed; client is called once the flags have
// been read. For what is not named here no file of this host would fit, so none is offered. A boxd that does not answer at once is not waited for.
func addCompletion(root *cobra.Command, client func() *client.Client) {
	a := completer{client}
	root.CompletionOptions.DisableDefaultCmd = true
	root.CompletionOptions.SetDefaultShellCompDirective(cobra.ShellCompDirectiveNoFileComp)
	in := func(states ...string) func(*api.Session) bool {
		return func(s *api.Session) bool { return slices.Contains(states, s.State) }
	}
	anyProcess := func(*api.Process) bool { return true }
	living := func(p *api.Process) bool { return p.State != "ended" }
	arguments := map[string]cobra.CompletionFunc{
		"run":     files, // of the directory that --here makes the workspace
		"exec":    a.session(anySession),
		"start":   a.session(anySession),
		"set":     a.session(anySession),
		"inspect": a.session(anySession),
		"ps":      a.session(anySession),
		"top":     a.session(anySession),
		"rm":      a.eachSession(anySession),
		"freeze":  a.eachSession(in("ready")),
		"thaw":    a.eachSession(in("frozen")),
		"attach":  a.process(living),
		"logs":    a.process(anyProcess),
		"stop":    a.eachProcess(living),
	}
	signals := cobra.FixedCompletions([]cobra.Completion{"TERM", "INT", "HUP", "QUIT", "KILL", "USR1", "USR2"}, cobra.ShellCompDirectiveNoFileComp)
	words := func(list ...cobra.Completion) cobra.CompletionFunc {
		return cobra.FixedCompletions(list, cobra.ShellCompDirectiveNoFileComp)
	}
	flags := map[string]cobra.CompletionFunc{
		"socket": files, "mount": files,
		"profile": a.profile,
		"image":   words("host"), "network": words("off"), "here": words("rw", "ro"), "oom": words("process", "program", "session"),
		"restart": words("no", "on-failure", "always"), "signal": signals, "stop-signal": signals,
	}
	for _, cmd := range append(slices.Clone(root.Commands()), root) {
		if f, ok := arguments[cmd.Name()]; ok {
			cmd.ValidArgsFunction = f
		}
		for name, f := range flags {
			if cmd.LocalFlags().Lookup(name) != nil {
				_ = cmd.RegisterFlagCompletionFunc(name, f) // fails for a flag that is not there
			}
		}
	}
}

func anySession(*api.Session) bool { return true }

func files(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return nil, cobra.ShellCompDirectiveDefault
}

// session offers sessions as the first argument.
func (a completer) session(want func(*api.Session) bool) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return a.sessions(cmd.Context(), nil, want), cobra.ShellCompDirectiveNoFileComp
	}
}

// eachSession offers sessions as every argument, each of them once.
func (a completer) eachSession(want func(*api.Session) bool) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return a.sessions(cmd.Context(), args, want), cobra.ShellCompDirectiveNoFileComp
	}
}

// process offers a session and then one of its processes.
func (a completer) process(want func(*api.Process) bool) cobra.CompletionFunc {
	all := a.eachProcess(want)
	return func(cmd *cobra.Command, args []string, word string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 1 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return all(cmd, args, word)
	}
}

// eachProcess offers a session and then its processes, each of them once.
func (a completer) eachProcess(want func(*api.Process) bool) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) == 0 {
			return a.sessions(cmd.Context(), nil, anySession), cobra.ShellCompDirectiveNoFileComp
		}
		var list []cobra.Completion
		a.query(cmd.Context(), func(ctx context.Context, c *client.Client) error {
			processes, err := c.Processes(ctx, args[0])
			for _, p := range processes {
				if want(&p) {
					list = offer(list, args[1:], p.ID, p.State)
				}
			}
			return err
		})
		return list, cobra.ShellCompDirectiveNoFileComp
	}
}

// sessions lists the sessions that are wanted and not given already.
func (a completer) sessions(ctx context.Context, given []string, want func(*api.Session) bool) (list []cobra.Completion) {
	a.query(ctx, func(ctx context.Context, c *client.Client) error {
		sessions, err := c.Sessions(ctx, false)
		for _, s := range sessions {
			if want(&s) {
				list = offer(list, given, s.ID, s.State+", "+s.Profile)
			}
		}
		return err
	})
	return list
}

// profile offers the profiles there are.
func (a completer) profile(cmd *cobra.Command, _ []string, _ string) (list []cobra.Completion, _ cobra.ShellCompDirective) {
	a.query(cmd.Context(), func(ctx context.Context, c *client.Client) error {
		found, err := c.Profiles(ctx)
		for _, name := range slices.Sorted(maps.Keys(found.Profiles)) {
			p := found.Profiles[name]
			list = offer(list, nil, name, fmt.Sprintf("%v, %g processors, network %s", p.Memory, p.CPUs, p.Network))
		}
		return err
	})
	return list, cobra.ShellCompDirectiveNoFileComp
}

// query asks boxd in the middle of a line that is being typed: quickly, and without a word when it cannot.
func (a completer) query(ctx context.Context, question func(context.Context, *client.Client) error) {
	ctx, cancel := context.WithTimeout(ctx, completionPatience)
	defer cancel()
	c := a.client()
	defer c.Close()
	_ = question(ctx, c) // what there is to say would stand in the middle of that line
}

// offer adds a word, unless it is given already or would speak to the terminal.
func offer(list []cobra.Completion, given []string, word, what string) []cobra.Completion {
	if slices.Contains(given, word) || render.Printable(word) != word {
		return list
	}
	return append(list, cobra.CompletionWithDesc(word, what))
}
