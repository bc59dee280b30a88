// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
	"github.com/boxd-dev/boxd/relay/render"
)

type snapshotCommands struct{ *app }

// snapshotCommand returns boxctl snapshots with its subcommands.
func (a *app) snapshotCommand() *cobra.Command {
	s := snapshotCommands{a}
	return group("snapshots", "Manage snapshots of what stopped boxes have on disk", `A snapshot has the workspace of a stopped box, its changes to the root filesystem and, with
--home-on-disk, its home. It shares its blocks with the box (reflink), so the state directory of
boxd has to be on xfs or btrfs. It counts in the quota of the box, and is removed with the box.`,
		s.ls(), s.create(), s.restore(), s.rm())
}

func (s snapshotCommands) ls() *cobra.Command {
	cmd := &cobra.Command{Use: "ls BOX", Short: "List the snapshots of a box, the oldest first", Args: usage(cobra.ExactArgs(1))}
	l := newListing(s.app, cmd, "names", func(k *api.Snapshot) string { return k.Name })
	cmd.RunE = s.call(func(cmd *cobra.Command, c *client.Client, args []string) error {
		list, err := c.Snapshots(cmd.Context(), args[0])
		return l.print(list, api.SnapshotList{Snapshots: list}, err, func() error {
			return table(s.stdout, "NAME\tCREATED\tSIZE\tFILES", list, func(k *api.Snapshot) string {
				return strings.Join([]string{render.Printable(k.Name), k.CreatedAt.Local().Format(time.DateTime), roundSize(int64(k.Size)).String(), strconv.FormatUint(k.Files, 10)}, "\t")
			})
		})
	})
	return cmd
}

func (s snapshotCommands) create() *cobra.Command {
	return &cobra.Command{
		Use: "create BOX NAME", Short: "Create a snapshot of a stopped box", Args: usage(cobra.ExactArgs(2)),
		Long: `create takes a snapshot of what a stopped box has on disk, and prints its name. Nothing is left of
one that fails. sessions.max_snapshots in box.toml limits the number per box.`,
		Example: `  boxctl stop work
  boxctl snapshots create work before-upgrade`,
		RunE: s.call(func(cmd *cobra.Command, c *client.Client, args []string) error {
			k, err := c.CreateSnapshot(cmd.Context(), args[0], args[1])
			return s.answer(k, err, func() error {
				fmt.Fprintln(s.stdout, render.Printable(k.Name))
				return nil
			})
		}),
	}
}

func (s snapshotCommands) restore() *cobra.Command {
	return &cobra.Command{
		Use: "restore BOX NAME", Short: "Restore a snapshot of a stopped box", Args: usage(cobra.ExactArgs(2)),
		Long: `restore replaces what a stopped box has on disk by a copy of a snapshot: all of it, or nothing. What
the box has now is lost, unless there is a snapshot of it. The snapshot stays.`,
		RunE: s.call(func(cmd *cobra.Command, c *client.Client, args []string) error {
			k, err := c.RestoreSnapshot(cmd.Context(), args[0], args[1])
			return s.answer(k, err, func() error { return nil })
		}),
	}
}

func (s snapshotCommands) rm() *cobra.Command {
	return &cobra.Command{
		Use: "rm BOX NAME...", Short: "Remove snapshots of a box, which may run", Args: usage(cobra.MinimumNArgs(2)),
		RunE: s.call(func(cmd *cobra.Command, c *client.Client, args []string) error {
			return forEach(args[1:], func(name string) error {
				if err := c.DeleteSnapshot(cmd.Context(), args[0], name); err != nil {
					return fmt.Errorf("%s: %w", render.Printable(name), err)
				}
				return nil
			})
		}),
	}
}
