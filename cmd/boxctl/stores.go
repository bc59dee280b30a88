// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/boxd-dev/boxd/relay/client"
	"github.com/boxd-dev/boxd/relay/render"
)

// Images, workspaces, skills and drives are stores: boxd keeps objects by name, and boxctl lists, shows, makes and
// removes them. This file has what the commands of all stores share.

// lsCommand lists a store: list asks boxd, whole is the answer as JSON, show prints it as text, and name returns the
// name of an element.
func lsCommand[T any](a *app, short string, list func(*client.Client, context.Context) ([]T, error), whole func([]T) any, show func([]T) error, name func(*T) string) *cobra.Command {
	cmd := &cobra.Command{Use: "ls", Short: short, Args: usage(cobra.NoArgs)}
	l := newListing(a, cmd, "names", name)
	cmd.RunE = a.call(func(cmd *cobra.Command, c *client.Client, _ []string) error {
		got, err := list(c, cmd.Context())
		return l.print(got, whole(got), err, func() error { return show(got) })
	})
	return cmd
}

// inspectOneCommand prints all details of an object of a store, as JSON.
func inspectOneCommand[T any](a *app, short string, get func(*client.Client, context.Context, string) (T, error)) *cobra.Command {
	cmd := &cobra.Command{Use: "inspect NAME", Short: short, Args: usage(cobra.ExactArgs(1))}
	return inspecting(a, cmd, func(ctx context.Context, c *client.Client, name string) (T, error) { return get(c, ctx, name) })
}

// rmEachCommand removes objects of a store by name: as many as possible, and reports the others.
func (a *app) rmEachCommand(use, short string, remove func(c *client.Client, ctx context.Context, name string) error) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Args: usage(cobra.MinimumNArgs(1)),
		RunE: a.call(func(cmd *cobra.Command, c *client.Client, args []string) error {
			return forEach(args, func(name string) error { return remove(c, cmd.Context(), name) })
		}),
	}
}

// takeCommand removes objects of a store from a living session.
func (a *app) takeCommand(use, short, long string, take func(c *client.Client, ctx context.Context, session, name string, force bool) error) *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use: use, Short: short, Long: long, Args: usage(cobra.MinimumNArgs(2)),
		RunE: a.call(func(cmd *cobra.Command, c *client.Client, args []string) error {
			return forEach(args[1:], func(name string) error { return take(c, cmd.Context(), args[0], name, force) })
		}),
	}
	addForce(cmd, &force)
	return cmd
}

func addForce(cmd *cobra.Command, force *bool) {
	cmd.Flags().BoolVarP(force, "force", "f", false, "detach even if it is in use")
}

// entry is a file or directory of a skill or of a drive.
type entry struct {
	kind       string
	executable bool
	size       int64
	path       string
}

// printEntries prints the entries of a directory of a store.
func (a *app) printEntries(list []entry) error {
	w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, e := range list {
		if e.executable {
			e.kind = "program"
		}
		fmt.Fprintf(w, "%s\t%d\t %s\n", e.kind, e.size, render.Printable(e.path))
	}
	return w.Flush()
}
