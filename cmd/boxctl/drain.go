// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/spf13/cobra"

	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

// drainCommand returns boxctl drain.
func (a *app) drainCommand() *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use:   "drain [flags]",
		Short: "Have boxd take no new sessions (root only)",
		Long: `drain has boxd take no new sessions. Those that live go on, and what runs in them. It holds until undrain,
whatever becomes of boxd; status and /readyz say so meanwhile.`,
		Args: usage(cobra.NoArgs),
		RunE: a.call(func(cmd *cobra.Command, c *client.Client, _ []string) error {
			d, err := c.Drain(cmd.Context(), &api.DrainRequest{Reason: reason})
			if err == nil && a.json {
				return a.printJSON(d)
			}
			return err
		}),
	}
	cmd.Flags().StringVar(&reason, "reason", "", "`TEXT` reason, shown to users")
	return cmd
}

// undrainCommand returns boxctl undrain.
func (a *app) undrainCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "undrain",
		Short: "Have boxd take new sessions again (root only)",
		Args:  usage(cobra.NoArgs),
		RunE:  func(cmd *cobra.Command, _ []string) error { return a.client().Undrain(cmd.Context()) },
	}
}
