// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

func (a *app) waitCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "wait BOX [PROCESS...]",
		Short: "Wait for processes to end and print their exit codes",
		Long: `wait waits until processes of a box have ended, and prints the exit code of each on a line of its
own, in the order they are named. Without PROCESS it waits for all processes that ps lists, in that
order. A process that its policy restarts has not ended.

The codes are those of exec: 128+N if signal N ended the process, 137 if it ran out of memory, 124
if it timed out, 125 to 127 if it was not run. wait itself exits with 0.`,
		Example: `  boxctl start work build -- make
  boxctl wait work build`,
		Args: usage(ids(cobra.MinimumNArgs(1))),
		RunE: a.call(func(cmd *cobra.Command, c *client.Client, args []string) error {
			names := args[1:]
			if len(names) == 0 {
				list, err := processesOf(cmd.Context(), c, args[0])
				if err != nil {
					return err
				}
				for i := range list {
					names = append(names, list[i].ID)
				}
			}
			ended := api.ProcessList{Processes: []api.Process{}}
			for _, name := range names {
				p, err := c.ProcessEnd(cmd.Context(), args[0], name)
				if err != nil {
					return err
				}
				if ended.Processes = append(ended.Processes, p); !a.json {
					fmt.Fprintln(a.stdout, endCode(&p))
				}
			}
			if a.json {
				return a.printJSON(ended)
			}
			return nil
		}),
	}
}

// processesOf lists the processes of a box, the oldest first.
func processesOf(ctx context.Context, c *client.Client, id string) ([]api.Process, error) {
	list, err := c.Processes(ctx, id)
	slices.SortStableFunc(list, func(p, q api.Process) int { return p.StartedAt.Compare(q.StartedAt) })
	return list, err
}

// endCode returns the exit code of a process that has ended, as exec would exit with it.
func endCode(p *api.Process) int {
	if p.Result == nil {
		return exitBoxd
	}
	if e, ok := errors.AsType[exitError](resultCode(p.Result, 0)); ok {
		return int(e)
	}
	return 0
}
