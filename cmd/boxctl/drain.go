// SPDX-License-Identifier: Apache-2.0

// This file has the commands about the life of sessions: whether new ones may start, and how long one is kept.

package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/render"
)

// drainCommand returns boxctl drain.
func drainCommand(a *App) *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use:   "drain [flags]",
		Short: "Have boxd take no new sessions (root only)",
		Long: `drain has boxd take no new sessions. Those that live go on, and what runs in them. It holds until undrain,
whatever becomes of boxd; status and /readyz say so meanwhile.`,
		Args: Usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			d, err := a.Client().Drain(cmd.Context(), &api.DrainRequest{Reason: reason})
			if err == nil && a.JSON {
				return a.PrintJSON(d)
			}
			return err
		},
	}
	cmd.Flags().StringVar(&reason, "reason", "", "`TEXT` that people are told")
	return cmd
}

// undrainCommand returns boxctl undrain.
func undrainCommand(a *App) *cobra.Command {
	return &cobra.Command{
		Use:   "undrain",
		Short: "Have boxd take new sessions again (root only)",
		Args:  Usage(cobra.NoArgs),
		RunE:  func(cmd *cobra.Command, _ []string) error { return a.Client().Undrain(cmd.Context()) },
	}
}

// renewCommand returns boxctl renew.
func renewCommand(a *App) *cobra.Command {
	return &cobra.Command{
		Use:   "renew ID...",
		Short: "Begin the idle time of sessions anew",
		Long: `renew is a use of sessions that runs nothing: each ends when it was not used for its ttl from now on. When it ends
at the latest, by its max_lifetime, stays as it is; set changes that.`,
		Args: Usage(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			c := a.Client()
			list := api.SessionList{Sessions: []api.Session{}}
			var errs []error
			for _, id := range args {
				s, err := c.RenewSession(cmd.Context(), id)
				if err != nil {
					errs = append(errs, fmt.Errorf("%s: %w", render.Printable(id), err))
					continue
				}
				list.Sessions = append(list.Sessions, s)
			}
			if a.JSON {
				errs = append(errs, a.PrintJSON(list))
			}
			return errors.Join(errs...)
		},
	}
}
