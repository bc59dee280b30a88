// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"

	"github.com/spf13/cobra"

	"github.com/boxd-dev/boxd/relay/client"
	"github.com/boxd-dev/boxd/relay/render"
)

// formatFlag is the value of --format: a template for output of some type. An invalid template is a usage mistake, so
// boxd is not called.
type formatFlag struct {
	typ    reflect.Type
	text   string
	parsed *render.Format
}

// String returns the template.
func (f *formatFlag) String() string { return f.text }

// Type is the placeholder in help.
func (*formatFlag) Type() string { return "TEMPLATE" }

// Set parses the template.
func (f *formatFlag) Set(text string) (err error) {
	f.text = text
	f.parsed, err = render.ParseFormat(text, f.typ)
	return err
}

// add adds the flag to a command.
func (f *formatFlag) add(cmd *cobra.Command, shorthand string) {
	cmd.Flags().VarP(f, "format", shorthand, "`TEMPLATE` format with a Go template over the fields of --json")
}

// print prints rows, without control characters on a terminal.
func (f *formatFlag) print(a *app, rows ...any) error {
	var text bytes.Buffer
	if err := f.parsed.Print(&text, rows...); err != nil {
		return &usageError{err: fmt.Errorf("--format: %w", err)}
	}
	if render.IsTerminal(a.stdout) {
		_, err := io.WriteString(a.stdout, render.Plain(text.String()))
		return err
	}
	_, err := a.stdout.Write(text.Bytes())
	return err
}

// listing prints a list: as a table, or as --format, --json or --quiet say.
type listing[T any] struct {
	listFlags
	name func(*T) string // of an element, for --quiet
}

// listFlags is the part of listing that does not depend on its type, so that there is one copy of it in the program.
type listFlags struct {
	app    *app
	format formatFlag
	quiet  bool
}

// newListing adds the flags of a list to a command. name returns what --quiet prints of an element, and what is its
// plural, such as "ids"; without a name there is no such flag.
func newListing[T any](a *app, cmd *cobra.Command, what string, name func(*T) string) *listing[T] {
	l := &listing[T]{name: name, listFlags: listFlags{app: a, format: formatFlag{typ: reflect.TypeFor[T]()}}}
	if name == nil {
		what = ""
	}
	l.add(cmd, what)
	return l
}

func (l *listFlags) add(cmd *cobra.Command, what string) {
	l.format.add(cmd, "")
	if what != "" {
		cmd.Flags().BoolVarP(&l.quiet, "quiet", "q", false, "print only the "+what)
	}
	cmd.PreRunE = func(*cobra.Command, []string) error { return l.app.oneForm(l.format.parsed != nil, l.quiet) }
}

// oneForm refuses more than one output format.
func (a *app) oneForm(format, quiet bool) error {
	given := 0
	for _, is := range []bool{format, quiet, a.json} {
		if is {
			given++
		}
	}
	if given > 1 {
		return &usageError{err: errors.New("--format, --quiet and --json: give only one of them")}
	}
	return nil
}

// print prints boxd's list, unless err is set: whole is it as JSON, and show prints the table.
func (l *listing[T]) print(list []T, whole any, err error, show func() error) error {
	switch {
	case err != nil:
		return err
	case l.format.parsed != nil:
		rows := make([]any, len(list))
		for i := range list {
			rows[i] = &list[i]
		}
		return l.format.print(l.app, rows...)
	case l.quiet:
		return l.printNames(len(list), func(i int) string { return l.name(&list[i]) })
	}
	return l.app.answer(whole, nil, show)
}

// printNames prints n names, one a line.
func (l *listFlags) printNames(n int, name func(int) string) error {
	for i := range n {
		text := name(i)
		if render.IsTerminal(l.app.stdout) {
			text = render.Printable(text)
		}
		if _, err := fmt.Fprintln(l.app.stdout, text); err != nil {
			return err
		}
	}
	return nil
}

// inspecting makes cmd print an object, as JSON or with --format.
func inspecting[T any](a *app, cmd *cobra.Command, get func(context.Context, *client.Client, string) (T, error)) *cobra.Command {
	f := formatFlag{typ: reflect.TypeFor[T]()}
	f.add(cmd, "f")
	cmd.PreRunE = func(*cobra.Command, []string) error { return a.oneForm(f.parsed != nil, false) }
	cmd.RunE = a.call(func(cmd *cobra.Command, c *client.Client, args []string) error {
		got, err := get(cmd.Context(), c, args[0])
		switch {
		case err != nil:
			return err
		case f.parsed != nil:
			return f.print(a, &got)
		}
		return a.printJSON(got)
	})
	return cmd
}
