// SPDX-License-Identifier: Apache-2.0

// This file is what the commands of one subject have of boxctl: its streams, its client and its way to fail.

package main

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/boxd-dev/boxd/relay/client"
)

// App is what all commands share. Its fields are set when a command runs.
type App struct {
	Stdin  io.Reader
	Stdout io.Writer
	Stderr io.Writer
	Socket string
	Owner  string // whose sessions; "" is the caller's own
	Token  string // that is shown; "" is none
	JSON   bool   // print JSON
}

// Client returns a client of the daemon that was asked for.
func (a *App) Client() *client.Client {
	c := client.New(a.Socket)
	c.Owner, c.Token = a.Owner, a.Token
	return c
}

// PrintJSON prints an answer for programs.
func (a *App) PrintJSON(v any) error {
	e := json.NewEncoder(a.Stdout)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// ExitError ends boxctl with a code and no further words.
type ExitError int

// Error names the code.
func (e ExitError) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// UsageError is a mistake on the command line.
type UsageError struct{ Err error }

// Error is that of the mistake.
func (e *UsageError) Error() string { return e.Err.Error() }

// Unwrap leads to the mistake.
func (e *UsageError) Unwrap() error { return e.Err }

// Usage makes what a check of arguments finds a mistake on the command line.
func Usage(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return &UsageError{Err: fmt.Errorf("%s: %w", cmd.CommandPath(), err)}
		}
		return nil
	}
}

// Group is a command that has others below it, and says which when it is called by itself.
func Group(use, short, long string, below ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use: use, Short: short, Long: long, Args: Usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(below...)
	return cmd
}
