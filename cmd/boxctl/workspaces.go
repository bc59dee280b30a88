// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
	"github.com/boxd-dev/boxd/relay/render"
)

type workspaceCommands struct{ *app }

// workspaceCommand returns boxctl workspaces with its subcommands.
func (a *app) workspaceCommand() *cobra.Command {
	s := workspaceCommands{a}
	return group("workspaces", "Manage workspaces that outlive boxes", `A box has a workspace of its own, which is removed with it, or a named one: run and create take
--workspace NAME. A named workspace stays when the box ends, and several boxes can use it at the
same time.`,
		lsCommand(a, "List workspaces and the boxes that use them", (*client.Client).Workspaces, func(list []api.Workspace) any { return api.WorkspaceList{Workspaces: list} }, s.print, func(k *api.Workspace) string { return k.Name }),
		inspectOneCommand(a, "Show all details of a workspace as JSON", (*client.Client).Workspace),
		s.create(), s.set(), s.keep(),
		a.rmEachCommand("rm NAME...", "Remove workspaces that no box uses, with their files", func(c *client.Client, ctx context.Context, name string) error {
			if err := c.DeleteWorkspace(ctx, name); err != nil {
				return fmt.Errorf("%s: %w", render.Printable(name), err)
			}
			return nil
		}))
}

func (s workspaceCommands) print(list []api.Workspace) error {
	return table(s.stdout, "NAME\tUSED\tQUOTA\tENFORCED BY\tBOXES", list, func(k *api.Workspace) string {
		used, quota, by, users := "-", "none", "-", "-"
		if k.Usage != nil {
			used = fmt.Sprintf("%d MiB", k.Usage.Used/quantity.MiB)
		}
		if k.Quota > 0 {
			quota, by = k.Quota.String(), k.Enforcement
		}
		if len(k.Sessions) > 0 {
			users = render.Printable(strings.Join(k.Sessions, ","))
		}
		return strings.Join([]string{render.Printable(k.Name), used, quota, by, users}, "\t")
	})
}

// printOne prints a changed workspace.
func (s workspaceCommands) printOne(k api.Workspace, err error) error {
	return s.answer(k, err, func() error { return s.print([]api.Workspace{k}) })
}

// workspaceFlags are the flags of create and set.
type workspaceFlags struct {
	quota  string
	inodes int
}

func (f *workspaceFlags) add(cmd *cobra.Command, quota string) {
	cmd.Flags().StringVar(&f.quota, "quota", "", quota)
	cmd.Flags().IntVar(&f.inodes, "inodes", 0, "`N` maximum number of files and directories")
}

// limits returns the given quota and inode limit.
func (f *workspaceFlags) limits(cmd *cobra.Command) (quota *quantity.Size, inodes *int, err error) {
	var errs []error
	quota = parseFlag(&errs, cmd.Flags(), "quota", f.quota, quantity.ParseSize)
	if len(errs) > 0 {
		return nil, nil, &usageError{err: errs[0]}
	}
	if cmd.Flags().Changed("inodes") {
		inodes = &f.inodes
	}
	return quota, inodes, nil
}

func (s workspaceCommands) create() *cobra.Command {
	var f workspaceFlags
	cmd := &cobra.Command{
		Use: "create [flags] NAME", Short: "Create a workspace", Args: usage(cobra.ExactArgs(1)),
		Long: `create creates an empty workspace. Its quota applies to all boxes that use it together; without
--quota it is the quota of the default profile.`,
		RunE: s.call(func(cmd *cobra.Command, c *client.Client, args []string) error {
			quota, inodes, err := f.limits(cmd)
			if err != nil {
				return err
			}
			k, err := c.CreateWorkspace(cmd.Context(), &api.WorkspaceRequest{Name: args[0], Quota: quota, Inodes: inodes})
			if err == nil && k.Enforcement == "none" {
				fmt.Fprintf(s.stderr, "boxctl: this host cannot enforce the quota of %v: see boxctl doctor\n", k.Quota)
			}
			return s.answer(k, err, func() error {
				fmt.Fprintln(s.stdout, render.Printable(k.Name))
				return nil
			})
		}),
	}
	f.add(cmd, "`SIZE` disk space limit; 0: no limit")
	return cmd
}

func (s workspaceCommands) set() *cobra.Command {
	var f workspaceFlags
	cmd := &cobra.Command{
		Use: "set [flags] NAME", Short: "Change the quota of a workspace", Args: usage(cobra.ExactArgs(1)),
		Long: `set changes the quota of a workspace for all boxes that use it, at once. A workspace that was
created without a quota cannot get one.`,
		RunE: s.call(func(cmd *cobra.Command, c *client.Client, args []string) error {
			quota, inodes, err := f.limits(cmd)
			if err != nil {
				return err
			}
			return s.printOne(c.ChangeWorkspace(cmd.Context(), args[0], &api.WorkspaceChange{Quota: quota, Inodes: inodes}))
		}),
	}
	f.add(cmd, "`SIZE` disk space limit")
	return cmd
}

func (s workspaceCommands) keep() *cobra.Command {
	return &cobra.Command{
		Use: "keep BOX NAME", Short: "End a box and store its workspace under a name", Args: usage(cobra.ExactArgs(2)),
		Long: `keep ends a box like rm, and makes its workspace a named one, with its files and its quota. Nothing
is copied.`,
		RunE: s.call(func(cmd *cobra.Command, c *client.Client, args []string) error {
			return s.printOne(c.KeepWorkspace(cmd.Context(), args[0], args[1]))
		}),
	}
}

// workspaceInputs reads NAME[:TARGET].
func workspaceInputs(texts []string) (list []api.Input) {
	for _, text := range texts {
		name, target, _ := strings.Cut(text, ":")
		list = append(list, api.Input{Workspace: name, Target: target})
	}
	return list
}
