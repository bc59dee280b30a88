// SPDX-License-Identifier: Apache-2.0

// This file has the commands of boxctl about workspaces that have a name.

package main

import (
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/boxd-dev/boxd/internal/quantity"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
	"github.com/boxd-dev/boxd/relay/render"
)

// workspaceCommands have what boxctl has.
type workspaceCommands struct{ *App }

func (s workspaceCommands) client() *client.Client { return s.Client() }

// workspaceCommand is that with all others below it.
func workspaceCommand(app *App) *cobra.Command {
	s := workspaceCommands{app}
	return Group("workspaces", "Keep workspaces that outlive boxes", `A box has a workspace of its own, which goes with it, or one that has a name: run and create take it with
--workspace NAME. That stays when the box ends, and several boxes can have it at a time.`, s.list(), s.show(), s.create(), s.set(), s.keep(), s.remove())
}

func (s workspaceCommands) list() *cobra.Command {
	return &cobra.Command{
		Use: "ls", Short: "List workspaces, and who uses them", Args: Usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c := s.client()
			defer c.Close()
			list, err := c.Workspaces(cmd.Context())
			if err != nil {
				return err
			}
			if s.JSON {
				return s.PrintJSON(api.WorkspaceList{Workspaces: list})
			}
			return s.print(list)
		},
	}
}

func (s workspaceCommands) print(list []api.Workspace) error {
	w := tabwriter.NewWriter(s.Stdout, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "NAME\tUSED\tQUOTA\tKEPT BY\tIN USE BY")
	for i := range list {
		k := &list[i]
		used, quota, by := "-", "none", "-"
		if k.Usage != nil {
			used = fmt.Sprintf("%d MiB", k.Usage.Used/quantity.MiB)
		}
		if k.Quota > 0 {
			quota, by = k.Quota.String(), k.Enforcement
		}
		users := "-"
		if len(k.Sessions) > 0 {
			users = render.Printable(strings.Join(k.Sessions, ","))
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", render.Printable(k.Name), used, quota, by, users)
	}
	return w.Flush()
}

func (s workspaceCommands) show() *cobra.Command {
	return &cobra.Command{
		Use: "inspect NAME", Short: "Describe a workspace as JSON", Args: Usage(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			c := s.client()
			defer c.Close()
			k, err := c.Workspace(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return s.PrintJSON(k)
		},
	}
}

func (s workspaceCommands) create() *cobra.Command {
	var quota string
	var inodes int
	cmd := &cobra.Command{
		Use: "create [flags] NAME", Short: "Make a workspace", Args: Usage(cobra.ExactArgs(1)),
		Long: `create makes an empty workspace. Its quota is its own, and counts for all boxes together that have it; without --quota it
is that of boxes of the default profile.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			req := api.WorkspaceRequest{Name: args[0]}
			if cmd.Flags().Changed("quota") {
				size, err := quantity.ParseSize(quota)
				if err != nil {
					return &UsageError{Err: fmt.Errorf("--quota %q: %w", quota, err)}
				}
				req.Quota = &size
			}
			if cmd.Flags().Changed("inodes") {
				req.Inodes = &inodes
			}
			c := s.client()
			defer c.Close()
			k, err := c.CreateWorkspace(cmd.Context(), &req)
			if err != nil {
				return err
			}
			if k.Enforcement == "none" {
				fmt.Fprintf(s.Stderr, "boxctl: nothing keeps the quota of %v on this host: boxctl doctor says why\n", k.Quota)
			}
			if s.JSON {
				return s.PrintJSON(k)
			}
			fmt.Fprintln(s.Stdout, render.Printable(k.Name))
			return nil
		},
	}
	cmd.Flags().StringVar(&quota, "quota", "", "`SIZE` that it may hold; 0 is no quota")
	cmd.Flags().IntVar(&inodes, "inodes", 0, "`NUMBER` of files and directories that it may hold")
	return cmd
}

func (s workspaceCommands) set() *cobra.Command {
	var quota string
	var inodes int
	cmd := &cobra.Command{
		Use: "set [flags] NAME", Short: "Give a workspace another quota", Args: Usage(cobra.ExactArgs(1)),
		Long: `set changes the quota of a workspace for all boxes that have it, at once. One that was made without has none.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			var req api.WorkspaceChange
			if cmd.Flags().Changed("quota") {
				size, err := quantity.ParseSize(quota)
				if err != nil {
					return &UsageError{Err: fmt.Errorf("--quota %q: %w", quota, err)}
				}
				req.Quota = &size
			}
			if cmd.Flags().Changed("inodes") {
				req.Inodes = &inodes
			}
			c := s.client()
			defer c.Close()
			k, err := c.ChangeWorkspace(cmd.Context(), args[0], &req)
			switch {
			case err != nil:
				return err
			case s.JSON:
				return s.PrintJSON(k)
			}
			return s.print([]api.Workspace{k})
		},
	}
	cmd.Flags().StringVar(&quota, "quota", "", "`SIZE` that it may hold")
	cmd.Flags().IntVar(&inodes, "inodes", 0, "`NUMBER` of files and directories that it may hold")
	return cmd
}

func (s workspaceCommands) keep() *cobra.Command {
	return &cobra.Command{
		Use: "keep SESSION NAME", Short: "End a box, and keep its workspace under a name", Args: Usage(cobra.ExactArgs(2)),
		Long: `keep ends a box as rm does, and makes its own workspace one that has a name, with all that is in it and its quota.
Nothing is copied.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			c := s.client()
			defer c.Close()
			k, err := c.KeepWorkspace(cmd.Context(), args[0], args[1])
			switch {
			case err != nil:
				return err
			case s.JSON:
				return s.PrintJSON(k)
			}
			return s.print([]api.Workspace{k})
		},
	}
}

func (s workspaceCommands) remove() *cobra.Command {
	return &cobra.Command{
		Use: "rm NAME...", Short: "Remove workspaces that no box has, with all that is in them", Args: Usage(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			c := s.client()
			defer c.Close()
			var errs []error
			for _, name := range args {
				if err := c.DeleteWorkspace(cmd.Context(), name); err != nil {
					errs = append(errs, fmt.Errorf("%s: %w", render.Printable(name), err))
				}
			}
			return errors.Join(errs...)
		},
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
