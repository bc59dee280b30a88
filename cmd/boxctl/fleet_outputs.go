// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
	"github.com/boxd-dev/boxd/relay/render"
)

func (f fleetCommands) outputs() *cobra.Command {
	return fleetList(f, &cobra.Command{
		Use: "outputs", Short: "List kept output of boxes that their nodes have ended",
		Long: `outputs lists the stored output of your processes on nodes that were lost. If a lost node returns
and a box of it has been given up (boxctl rm) or created again elsewhere, the node ends the box, and
the output of its processes and of executions with an id is kept for seven days. The gateway must
have a size in [outputs] of its configuration. boxctl fleet output prints one.`,
		Example: `  boxctl fleet outputs
  boxctl fleet outputs --format '{{.session}} {{.process}} {{.exit_code}}'`,
	}, "names", func(k *api.FleetOutput) string { return k.Name }, (*client.Client).FleetOutputs,
		func(list []api.FleetOutput) any { return api.FleetOutputList{Outputs: list} }, f.printOutputs)
}

func (f fleetCommands) printOutputs(list []api.FleetOutput) error {
	return table(f.stdout, "BOX\tPROCESS\tNODE\tSTARTED\tENDED\tSTATE\tSIZE\tREASON", list, func(k *api.FleetOutput) string {
		ended, state := "-", k.State
		if k.EndedAt != nil {
			ended = k.EndedAt.Local().Format(time.DateTime)
		}
		switch {
		case k.ExitCode != nil:
			state = fmt.Sprintf("%s (%d)", k.Status, *k.ExitCode)
		case k.Signal != "":
			state = fmt.Sprintf("%s (%s)", k.Status, k.Signal)
		case k.Status != "":
			state = k.Status
		}
		return strings.Join([]string{
			render.Printable(k.Session), render.Printable(k.Process), render.Printable(k.Node), k.StartedAt.Local().Format(time.DateTime), ended, visible(state), roundSize(k.Size).String(), orElse(k.Why, "-"),
		}, "\t")
	})
}

func (f fleetCommands) output() *cobra.Command {
	var timestamps, raw bool
	cmd := &cobra.Command{
		Use: "output [flags] BOX [PROCESS]", Short: "Print kept output of a box that its node has ended", Args: usage(names(cobra.RangeArgs(1, 2))),
		Long: `output prints the stored output of a process whose box a returning node has ended, as boxctl logs
prints it: at most the last 1 MiB of each stream. If output of several processes with that name is
kept, it prints the newest. PROCESS can be left out if the output of only one process is kept.`,
		Example: `  boxctl fleet output build
  boxctl fleet output -t build compile`,
		RunE: f.call(func(cmd *cobra.Command, c *client.Client, args []string) error {
			list, err := c.FleetOutputs(cmd.Context())
			if err != nil {
				return f.noGateway(err)
			}
			k, err := newestOutput(list, args)
			if err != nil {
				return err
			}
			if f.json {
				return c.FleetOutput(cmd.Context(), k.Name, f.printLines())
			}
			p := render.NewLogs(f.stdout, f.stderr, timestamps, raw)
			err = errors.Join(c.FleetOutput(cmd.Context(), k.Name, p.Print), p.Flush())
			if err == nil && k.Omitted > 0 {
				f.printMessage("boxctl", fmt.Sprintf("%d bytes were not kept", k.Omitted))
			}
			return err
		}),
	}
	cmd.Flags().BoolVarP(&timestamps, "timestamps", "t", false, "print the time before each line")
	cmd.Flags().BoolVar(&raw, "raw", false, "pass control characters on to the terminal")
	return cmd
}

func (f fleetCommands) removeOutput() *cobra.Command {
	return &cobra.Command{
		Use: "rm-output BOX [PROCESS]", Short: "Remove kept output of a box that its node has ended", Args: usage(names(cobra.RangeArgs(1, 2))),
		Long: `rm-output removes all stored output of a box whose node has ended it, or that of one process.
Without it the output is removed after seven days.`,
		Example: `  boxctl fleet rm-output build`,
		RunE: f.call(func(cmd *cobra.Command, c *client.Client, args []string) error {
			list, err := c.FleetOutputs(cmd.Context())
			if err != nil {
				return f.noGateway(err)
			}
			of := outputsOf(list, args)
			if len(of) == 0 {
				return nothingKept(args)
			}
			for _, k := range of {
				if err := c.DeleteFleetOutput(cmd.Context(), k.Name); err != nil && !errors.Is(err, client.NotFound) {
					return err
				}
			}
			return nil
		}),
	}
}

// outputsOf returns what is kept of a box, or of a process of it.
func outputsOf(list []api.FleetOutput, args []string) (of []*api.FleetOutput) {
	for i := range list {
		if k := &list[i]; k.Session == args[0] && (len(args) == 1 || k.Process == args[1]) {
			of = append(of, k)
		}
	}
	return of
}

func nothingKept(args []string) error {
	return &client.Error{Problem: api.Problem{Type: client.NotFound.Type, Detail: fmt.Sprintf("no output is kept of %q", strings.Join(args, " ")), Hint: "boxctl fleet outputs"}}
}

// newestOutput finds what was kept last of a process, or of a box of which only one process is kept. The list begins with the oldest.
func newestOutput(list []api.FleetOutput, args []string) (k *api.FleetOutput, err error) {
	var processes []string
	for _, k = range outputsOf(list, args) {
		if !slices.Contains(processes, k.Process) {
			processes = append(processes, k.Process)
		}
	}
	switch {
	case k == nil:
		return nil, nothingKept(args)
	case len(processes) > 1:
		return nil, &usageError{err: fmt.Errorf("output is kept of several processes of the box: %s", render.Printable(strings.Join(processes, ", "))), hint: "name one of them after the box"}
	}
	return k, nil
}
