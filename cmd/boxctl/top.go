// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/boxd-dev/boxd/internal/tty"
	"github.com/boxd-dev/boxd/relay/render"
)

func (a *app) topCommand() *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:   "top [flags] [ID]",
		Short: "Show live what sessions use, or one and its processes",
		Long: `top shows what sessions use, the busiest first, every second until q or Ctrl-C is pressed. CPU% is of one
processor. Where standard output is no terminal, or with --json, it looks once, which takes a second.`,
		Example: `  boxctl top
  boxctl top work
  boxctl top --json work`,
		Args: Usage(ids(cobra.MaximumNArgs(1))),
		RunE: func(cmd *cobra.Command, args []string) error {
			t := &render.Looker{Client: a.Client(), All: all || a.Owner != "", Owner: a.Owner}
			if len(args) > 0 {
				t.ID = args[0]
			}
			first, err := t.Look(cmd.Context(), nil)
			if err != nil {
				return err
			}
			if !a.JSON && tty.Is(a.Stdout) {
				return a.topLive(cmd.Context(), t, first)
			}
			v, err := t.LookAgain(cmd.Context(), first)
			switch {
			case err != nil:
				return err
			case a.JSON:
				return a.PrintJSON(v)
			}
			return v.Print(a.Stdout)
		},
	}
	cmd.Flags().BoolVarP(&all, "all", "a", false, "everybody's sessions (root only)")
	return cmd
}

func (a *app) topLive(ctx context.Context, t *render.Looker, first *render.Top) error {
	signals, release := catchSignals()
	defer release()
	sig, err := t.Live(ctx, a.Stdin, a.Stdout, first, signals)
	if s, ok := sig.(syscall.Signal); ok {
		return ExitError(exitSignalBase + int(s))
	}
	return err
}
