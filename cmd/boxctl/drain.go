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
		Short: "Stop accepting new boxes",
		Long: `drain makes boxd refuse new boxes. Existing boxes and their programs continue. This stays in effect,
also when boxd restarts, until boxctl undrain; boxctl status and /readyz report it. drain needs the
admin role.`,
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
		Short: "Accept new boxes again",
		Long:  "undrain makes boxd accept new boxes again after drain. It needs the admin role.",
		Args:  usage(cobra.NoArgs),
		RunE:  func(cmd *cobra.Command, _ []string) error { return a.client().Undrain(cmd.Context()) },
	}
}
