// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"
)

// instructions returns boxctl mcp instructions.
func instructions(a *App) *cobra.Command {
	var profile string
	cmd := &cobra.Command{
		Use:   "instructions [flags] [SESSION]",
		Short: "Print what a model is told of a box",
		Long: `instructions prints the lines that boxctl mcp gives a model at the handshake: what a box offers and forbids. They are
those of a living session, or of the box that would be made.`,
		Args: Usage(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			id := ""
			if len(args) > 0 {
				id = args[0]
			}
			if id != "" && profile != "" {
				return &UsageError{Err: errors.New("--profile is of a box that is still to be made: give a session or a profile")}
			}
			c := a.Client()
			defer c.Close()
			told, err := c.Instructions(cmd.Context(), id, profile)
			if err != nil {
				return err
			}
			if a.JSON {
				return a.PrintJSON(told)
			}
			_, err = fmt.Fprint(a.Stdout, told.Instructions)
			return err
		},
	}
	cmd.Flags().StringVar(&profile, "profile", "", "of a box with this `PROFILE`, that is not there yet")
	return cmd
}
