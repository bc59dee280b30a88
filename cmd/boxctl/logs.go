// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
	"github.com/boxd-dev/boxd/relay/render"
)

func (a *app) logsCommand() *cobra.Command {
	var o client.LogOptions
	var lines int
	var timestamps, onlyOut, onlyErr, raw bool
	var since string
	cmd := &cobra.Command{
		Use:   "logs [flags] BOX [PROCESS]",
		Short: "Print the output of a process",
		Long: `logs prints the stored output of a process: its standard output to standard output, its standard
error to standard error. On a terminal, control characters are shown escaped. PROCESS can be left
out if the box has one process.`,
		Example: `  boxctl logs -f --tail 20 work web
  boxctl logs -t --stderr work web
  boxctl logs --since 10m work web`,
		Args: usage(names(cobra.RangeArgs(1, 2))),
		RunE: a.call(func(cmd *cobra.Command, c *client.Client, args []string) error {
			args, err := withProcess(cmd, c, args)
			switch {
			case err != nil:
				return err
			case onlyOut && onlyErr:
				return &usageError{err: errors.New("--stdout and --stderr: give one of them, or neither for both")}
			case onlyOut:
				o.Stream = "stdout"
			case onlyErr:
				o.Stream = "stderr"
			}
			if cmd.Flags().Changed("tail") {
				o.Lines = &lines
			}
			if since != "" {
				var err error
				if o.Since, err = parseSince(since, time.Now()); err != nil {
					return &usageError{err: err}
				}
			}
			if a.json {
				return a.logLines(cmd.Context(), c, args[0], args[1], o)
			}
			p := render.NewLogs(a.stdout, a.stderr, timestamps, raw)
			err = c.LogLines(cmd.Context(), args[0], args[1], o, p.Print)
			return errors.Join(err, p.Flush())
		}),
	}
	cmd.Flags().BoolVarP(&o.Follow, "follow", "f", false, "follow the output until the process ends")
	cmd.Flags().BoolVarP(&timestamps, "timestamps", "t", false, "print the time before each line")
	cmd.Flags().IntVar(&lines, "tail", 0, "`N` print only the last lines")
	cmd.Flags().StringVar(&since, "since", "", "`TIME` print only output since then, for example 10m (ago) or 2026-11-21T09:30:00Z")
	cmd.Flags().BoolVar(&onlyOut, "stdout", false, "print only standard output")
	cmd.Flags().BoolVar(&onlyErr, "stderr", false, "print only standard error")
	cmd.Flags().BoolVar(&raw, "raw", false, "pass control characters on to the terminal")
	return cmd
}

// parseSince reads a duration before now, or a time. A time without a zone is local.
func parseSince(text string, now time.Time) (time.Time, error) {
	if d, err := quantity.ParseDuration(text); err == nil && d >= 0 {
		return now.Add(-time.Duration(d)), nil
	}
	for _, layout := range []string{time.RFC3339, "2006-01-02T15:04:05", time.DateTime, "2006-01-02 15:04", time.DateOnly} {
		if at, err := time.ParseInLocation(layout, text, now.Location()); err == nil && !at.IsZero() {
			return at, nil
		}
	}
	return now, fmt.Errorf("--since %q: must be how long ago, such as 10m, or a time, such as 2026-11-21T09:30:00Z", text)
}

// logLines prints the output as it comes, one JSON value a line.
func (a *app) logLines(ctx context.Context, c *client.Client, id, name string, o client.LogOptions) error {
	return c.LogLines(ctx, id, name, o, a.printLines())
}

// printLines returns what prints output as JSON, one value a line.
func (a *app) printLines() func(*api.LogLine) error {
	to := json.NewEncoder(a.stdout)
	to.SetEscapeHTML(false)
	return func(line *api.LogLine) error {
		if line.Base64 = !utf8.ValidString(line.Data); line.Base64 {
			line.Data = base64.StdEncoding.EncodeToString([]byte(line.Data))
		}
		return to.Encode(line)
	}
}
