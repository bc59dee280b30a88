// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
	"github.com/boxd-dev/boxd/relay/render"
)

func (f fleetCommands) snapshots() *cobra.Command {
	return fleetList(f, &cobra.Command{
		Use: "snapshots", Short: "List the snapshots that the fleet keeps, the oldest first",
		Long: `snapshots lists your snapshots that boxctl fleet snapshot has stored. Those that a box has on its
own host are listed by boxctl snapshots.`,
		Example: `  boxctl fleet snapshots
  boxctl fleet snapshots --owner ci --format '{{.name}} {{.digest}}'`,
	}, "names", func(k *api.FleetSnapshot) string { return k.Name }, (*client.Client).FleetSnapshots,
		func(list []api.FleetSnapshot) any { return api.FleetSnapshotList{Snapshots: list} }, f.printSnapshots)
}

func (f fleetCommands) printSnapshots(list []api.FleetSnapshot) error {
	return table(f.stdout, "NAME\tBOX\tNODE\tCREATED\tSIZE\tLEFT OUT", list, func(k *api.FleetSnapshot) string {
		return strings.Join([]string{
			render.Printable(k.Name), render.Printable(k.Session), render.Printable(k.Node), k.CreatedAt.Local().Format(time.DateTime), roundSize(k.Size).String(), orElse(render.Printable(strings.Join(k.LeftOut, "; ")), "-"),
		}, "\t")
	})
}

func (f fleetCommands) snapshot() *cobra.Command {
	var req api.FleetSnapshotRequest
	cmd := &cobra.Command{
		Use: "snapshot [flags] BOX", Short: "Create a snapshot of a box in the fleet", Args: usage(cobra.ExactArgs(1)),
		Long: `snapshot stores what boxctl export writes of a box in NATS, and prints its name: settings and
environment, workspace, its home directory if that is on disk, and the processes whose restart
policy is always. It does not need the node of the box any more: boxctl fleet restore makes a new
box of it on any node.

Stop the box first (boxctl stop), or its programs can change files while they are read. A box with
changes to its root filesystem, files that its user cannot read, or the like is refused unless
--leave-out is given. A box that uses a named workspace needs --with-workspace: the new box then has
a copy of it, which boxctl workspaces keep can give a name. The gateway must have a size in
[snapshots] of its configuration.`,
		Example: `  boxctl stop build
  boxctl fleet snapshot build
  boxctl fleet snapshot --name before-upgrade build`,
		RunE: f.call(func(cmd *cobra.Command, c *client.Client, args []string) error {
			req.Session = args[0]
			k, err := c.CreateFleetSnapshot(cmd.Context(), &req)
			return f.answer(k, f.noGateway(err), func() error {
				for _, what := range k.LeftOut {
					f.printMessage("boxctl", "left out: "+render.Printable(what))
				}
				fmt.Fprintln(f.stdout, render.Printable(k.Name))
				return nil
			})
		}),
	}
	cmd.Flags().StringVar(&req.Name, "name", "", "`NAME` of the snapshot; default the id of the box with the time")
	cmd.Flags().BoolVar(&req.LeaveOut, "leave-out", false, "make it without what cannot be part of it")
	cmd.Flags().BoolVar(&req.WithWorkspace, "with-workspace", false, "copy the named workspace, as the new box's own")
	return cmd
}

func (f fleetCommands) restore() *cobra.Command {
	var req api.FleetRestore
	var node string
	cmd := &cobra.Command{
		Use: "restore [flags] SNAPSHOT", Short: "Create a box from a snapshot of the fleet, and start it", Args: usage(cobra.ExactArgs(1)),
		Long: `restore makes a new box of a snapshot that boxctl fleet snapshot has stored, and prints its id: all
of it, or nothing. Its node decides as it does about any new box, and must have its profile, image,
mounts, drives and secrets. The snapshot stays.

If the box still exists, give another --id. To restore one whose node is lost under its own id, give
that up first (boxctl rm).`,
		Example: `  boxctl fleet restore before-upgrade
  boxctl fleet restore --id build2 --node web4 before-upgrade`,
		RunE: f.call(func(cmd *cobra.Command, c *client.Client, args []string) error {
			if node != "" {
				at, err := json.Marshal(map[string]string{"node": node})
				if err != nil {
					return err
				}
				req.Placement = at
			}
			r, err := c.RestoreFleetSnapshot(cmd.Context(), args[0], &req)
			return f.answer(r, f.noGateway(err), func() error {
				f.showLess(&r.Session)
				fmt.Fprintln(f.stdout, render.Printable(r.Session.ID))
				return nil
			})
		}),
	}
	cmd.Flags().StringVar(&req.ID, "id", "", "`ID` of the new box; default the one it had")
	cmd.Flags().StringVar(&node, "node", "", "`NAME` of the node; default the best that can take it")
	return cmd
}

func (f fleetCommands) removeSnapshot() *cobra.Command {
	return &cobra.Command{
		Use: "rm-snapshot SNAPSHOT...", Short: "Remove snapshots of the fleet", Args: usage(cobra.MinimumNArgs(1)),
		RunE: f.call(func(cmd *cobra.Command, c *client.Client, args []string) error {
			return forEach(args, func(name string) error {
				if err := c.DeleteFleetSnapshot(cmd.Context(), name); err != nil {
					return fmt.Errorf("%s: %w", render.Printable(name), f.noGateway(err))
				}
				return nil
			})
		}),
	}
}
