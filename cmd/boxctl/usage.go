// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/boxd-dev/boxd/relay/client"
	"github.com/boxd-dev/boxd/relay/render"
)

// usageCommand returns boxctl usage.
func (a *app) usageCommand() *cobra.Command {
	var all bool
	var days int
	cmd := &cobra.Command{
		Use:   "usage [flags]",
		Short: "Show your resource use per day",
		Long: `usage lists your resource use on each of the last days (UTC): executions, lifetime of boxes, CPU
time, and memory and disk in GiB-hours. If a policy limits you, it also shows your current use of
each limit. Memory counts the memory limits of boxes, disk the files in workspaces with a quota.`,
		Args: usage(cobra.NoArgs),
		RunE: a.call(func(cmd *cobra.Command, c *client.Client, _ []string) error {
			if days < 1 {
				return &usageError{err: fmt.Errorf("--days %d: must be 1 or more", days)}
			}
			list, err := c.Usage(cmd.Context(), days, all)
			return a.answer(list, err, func() error { return render.Usage(a.stdout, &list, time.Now()) })
		}),
	}
	cmd.Flags().BoolVarP(&all, "all", "a", false, "show the usage of all users (operators)")
	cmd.Flags().IntVar(&days, "days", 7, "`N` number of days to show")
	return cmd
}
