// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/boxd-dev/boxd/relay/client"
)

// mcpInstructionsCommand returns boxctl mcp instructions.
func (a *app) mcpInstructionsCommand() *cobra.Command {
	var profile string
	cmd := &cobra.Command{
		Use:   "instructions [flags] [BOX]",
		Short: "Print the instructions for a model",
		Long: `instructions prints the text that boxctl mcp sends to a model at the handshake: what a box allows
and forbids. It is about a running box, or about the box that would be created.`,
		Args: usage(cobra.MaximumNArgs(1)),
		RunE: a.call(func(cmd *cobra.Command, c *client.Client, args []string) error {
			id := ""
			if len(args) > 0 {
				id = args[0]
			}
			if id != "" && profile != "" {
				return &usageError{err: errors.New("--profile is for a new box: give a box or a profile")}
			}
			text, err := c.Instructions(cmd.Context(), id, profile)
			return a.answer(text, err, func() error {
				_, err = fmt.Fprint(a.stdout, text.Instructions)
				return err
			})
		}),
	}
	cmd.Flags().StringVar(&profile, "profile", "", "`PROFILE` describe a new box of this profile")
	return cmd
}
