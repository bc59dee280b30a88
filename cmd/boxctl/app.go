// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/boxd-dev/boxd/relay/client"
)

// app is shared by all commands. Its fields are set when a command runs.
type app struct {
	stdin  io.Reader
	stdout io.Writer
	stderr io.Writer
	socket string
	owner  string     // whose sessions to use; "": the caller's own
	token  string     // "": none
	tls    client.TLS // for an https address
	json   bool       // print JSON
	typed  typed      // the command line, for error messages
	// program is what run or exec runs; nil for other commands. hinted is set when a hint about it was printed.
	program *program
	hinted  bool
	quiet   bool // show no progress
}

// client returns a client of the selected daemon.
func (a *app) client() *client.Client {
	c := client.New(a.socket)
	c.Owner, c.Token, c.TLS = a.owner, a.token, a.tls
	return c
}

// printJSON prints an answer as JSON.
func (a *app) printJSON(v any) error {
	e := json.NewEncoder(a.stdout)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// call makes the RunE of a command that calls boxd: do gets a client, which is closed when it returns.
func (a *app) call(do func(cmd *cobra.Command, c *client.Client, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		a.typed.cmd = cmd // for messages meanwhile
		c := a.client()
		defer c.Close()
		return do(cmd, c, args)
	}
}

// answer prints boxd's answer, unless err is set: v as JSON with --json, otherwise what show prints.
func (a *app) answer(v any, err error, show func() error) error {
	switch {
	case err != nil:
		return err
	case a.json:
		return a.printJSON(v)
	}
	return show()
}

// forEach calls do for every name, and returns all errors.
func forEach(names []string, do func(name string) error) error {
	errs := make([]error, 0, len(names))
	for _, name := range names {
		errs = append(errs, do(name))
	}
	return errors.Join(errs...)
}

// table prints a row of cells for each element of a list, below a header.
func table[T any](w io.Writer, header string, list []T, row func(*T) string) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, header)
	for i := range list {
		fmt.Fprintln(t, row(&list[i]))
	}
	return t.Flush()
}

// exitError ends boxctl with an exit code and no message.
type exitError int

// Error names the exit code.
func (e exitError) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// usageError is a mistake on the command line.
type usageError struct {
	err     error
	command string // the command whose help to suggest, "": boxctl's own
	hint    string // what to type instead, "": suggest that help
}

// Error returns the text of the mistake.
func (e *usageError) Error() string { return e.err.Error() }

// Unwrap returns the mistake.
func (e *usageError) Unwrap() error { return e.err }

// usage turns the error of an argument check into a usage mistake: for a wrong number of arguments it prints the usage
// line.
func usage(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error { return usageMistake(cmd, args, check(cmd, args)) }
}

// usageMistake turns the error of an argument check into a usage mistake. It is separate from usage, which is copied for
// every command.
func usageMistake(cmd *cobra.Command, args []string, err error) error {
	switch {
	case err == nil, errors.As(err, new(*usageError)):
		return err
	case errors.Is(err, client.ErrNoID), errors.Is(err, client.ErrNoName):
		return &usageError{err: fmt.Errorf("%s: %w", cmd.CommandPath(), err)}
	case cmd.HasSubCommands() && len(args) > 0:
		return unknownCommand(cmd, args[0])
	}
	return &usageError{err: wrongArguments("usage: " + shortUse(cmd))}
}

// wrongArguments is the usage line of a command that got too few or too many arguments.
type wrongArguments string

// Error returns that line.
func (e wrongArguments) Error() string { return string(e) }

// group returns a command that has only subcommands, and lists them when it is called by itself.
func group(use, short, long string, below ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use: use, Short: short, Long: long, Args: usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(below...)
	return cmd
}
