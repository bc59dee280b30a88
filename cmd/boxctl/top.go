// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/boxd-dev/boxd/internal/tty"
	"github.com/boxd-dev/boxd/relay/client"
	"github.com/boxd-dev/boxd/relay/client/show"
)

// topEvery is how often top looks.
const topEvery = time.Second

// Keys that end top.
const (
	keyQuit  = 'q'
	keyCtrlC = 3
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
		Args: usage(ids(cobra.MaximumNArgs(1))),
		RunE: func(cmd *cobra.Command, args []string) error {
			t := &show.Looker{Client: a.client(), All: all || a.owner != "", Owner: a.owner}
			if len(args) > 0 {
				t.ID = args[0]
			}
			first, err := t.Look(cmd.Context(), nil)
			if err != nil {
				return err
			}
			if a.json || !tty.Is(a.stdout) {
				return a.topOnce(cmd.Context(), t, first)
			}
			return a.topLive(cmd.Context(), t, first)
		},
	}
	cmd.Flags().BoolVarP(&all, "all", "a", false, "everybody's sessions (root only)")
	return cmd
}

// topOnce prints one picture: the second, which has rates.
func (a *app) topOnce(ctx context.Context, t *show.Looker, first *show.Top) error {
	timer := time.NewTimer(topEvery)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	v, err := t.Look(ctx, first)
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(v)
	}
	for _, line := range v.Lines() {
		fmt.Fprintln(a.stdout, strings.TrimRight(line, " "))
	}
	return nil
}

// topLive draws until it is ended.
func (a *app) topLive(ctx context.Context, t *show.Looker, v *show.Top) error {
	signals, release := catchSignals()
	defer release()
	screen, err := tty.OpenScreen(a.stdin, a.stdout)
	if err != nil {
		return err
	}
	defer screen.Close()
	var keys <-chan byte
	if tty.Is(a.stdin) {
		keys = tty.Keys(a.stdin)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	resized := make(chan struct{}, 1)
	go tty.Watch(ctx, func(tty.Size) { // ends with ctx
		select {
		case resized <- struct{}{}:
		default:
		}
	}, a.stdout)
	tick := time.NewTicker(topEvery)
	defer tick.Stop()
	lines := v.Lines()
	for {
		size, ok := tty.SizeOf(a.stdout)
		if !ok {
			size = tty.Size{Rows: 24, Cols: 80}
		}
		if err := screen.Draw(lines, size); err != nil {
			return err
		}
		select {
		case key, ok := <-keys:
			if !ok || key == keyQuit || key == keyCtrlC {
				return nil
			}
		case sig := <-signals:
			s, _ := sig.(syscall.Signal)
			return exitError(exitSignalBase + int(s))
		case <-resized:
		case <-tick.C:
			next, err := t.Look(ctx, v)
			switch {
			case errors.Is(err, client.NotFound):
				return err
			case err != nil: // boxd may come back
				lines = append([]string{"boxctl: " + err.Error(), ""}, v.Lines()...)
			default:
				v, lines = next, next.Lines()
			}
		}
	}
}
