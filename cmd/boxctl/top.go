// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/boxd-dev/boxd/relay/client"
	"github.com/boxd-dev/boxd/relay/render"
)

func (a *app) topCommand() *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:   "top [flags] [BOX]",
		Short: "Show the resource use of boxes",
		Long: `top shows the resource use of boxes, the busiest first, and refreshes every second until you press
q or ctrl-c. With BOX it shows that box with its processes and its use over the last hour. 100 in
CPU% is one processor. If standard output is not a terminal, or with --json, top measures for one
second and prints the result once.`,
		Example: `  boxctl top
  boxctl top work
  boxctl top --json work`,
		Args: usage(ids(cobra.MaximumNArgs(1))),
		RunE: a.call(func(cmd *cobra.Command, c *client.Client, args []string) error {
			t := &render.Sampler{Client: c, All: all || a.owner != "", Owner: a.owner}
			if len(args) > 0 {
				t.ID = args[0]
			}
			first, err := t.Sample(cmd.Context(), nil)
			if err != nil {
				return err
			}
			if !a.json && render.IsTerminal(a.stdout) {
				return a.topLive(cmd.Context(), t, first)
			}
			v, err := t.SampleAgain(cmd.Context(), first)
			return a.answer(v, err, func() error { return v.Print(a.stdout) })
		}),
	}
	cmd.Flags().BoolVarP(&all, "all", "a", false, "show the boxes of all users (operators)")
	return cmd
}

func (a *app) topLive(ctx context.Context, t *render.Sampler, first *render.Top) error {
	signals, release := catchSignals()
	defer release()
	sig, err := t.Live(ctx, a.stdin, a.stdout, first, signals)
	if s, ok := sig.(syscall.Signal); ok {
		return exitError(exitSignalBase + int(s))
	}
	return err
}
