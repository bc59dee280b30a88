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

// app is what all commands share. Its fields are set when a command runs.
type app struct {
	stdin  io.Reader
	stdout io.Writer
	stderr io.Writer
	socket string
	owner  string     // whose sessions; "" is the caller's own
	token  string     // that is shown; "" is none
	tls    client.TLS // of an https address
	json   bool       // print JSON
	typed  typed      // what is being run, when that has failed
	// program is what run or exec is asked for; nil: something else is done. hinted is set when a hint about it was given.
	program *program
	hinted  bool
	quiet   bool // show no progress
}

// client returns a client of the daemon that was asked for.
func (a *app) client() *client.Client {
	c := client.New(a.socket)
	c.Owner, c.Token, c.TLS = a.owner, a.token, a.tls
	return c
}

// printJSON prints an answer for programs.
func (a *app) printJSON(v any) error {
	e := json.NewEncoder(a.stdout)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// call is the RunE of a command that asks boxd: do has a client, which is closed when it returns.
func (a *app) call(do func(cmd *cobra.Command, c *client.Client, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		a.typed.cmd = cmd // for what is said meanwhile
		c := a.client()
		defer c.Close()
		return do(cmd, c, args)
	}
}

// answer prints what boxd has answered, unless that is an error: v as JSON if that was asked for, or else what show prints.
func (a *app) answer(v any, err error, show func() error) error {
	switch {
	case err != nil:
		return err
	case a.json:
		return a.printJSON(v)
	}
	return show()
}

// forEach does something for every name, and returns what has failed of that.
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

// exitError ends boxctl with a code and no further words.
type exitError int

// Error names the code.
func (e exitError) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// usageError is a mistake on the command line.
type usageError struct {
	err     error
	command string // whose help says how it is done, "" is boxctl's own
	hint    string // what to type instead, "" is that help
}

// Error is that of the mistake.
func (e *usageError) Error() string { return e.err.Error() }

// Unwrap leads to the mistake.
func (e *usageError) Unwrap() error { return e.err }

// usage makes what a check of arguments finds a mistake on the command line: a wrong number of them is answered with how
// the command is called.
func usage(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error { return usageMistake(cmd, args, check(cmd, args)) }
}

// usageMistake is what a check of arguments has found, as a mistake on the command line. It is not part of usage, of which
// there is a copy for every command.
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

// wrongArguments says how a command is called that has too few arguments or too many.
type wrongArguments string

// Error is that line.
func (e wrongArguments) Error() string { return string(e) }

// group is a command that has others below it, and says which when it is called by itself.
func group(use, short, long string, below ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use: use, Short: short, Long: long, Args: usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(below...)
	return cmd
}
