// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
	"github.com/boxd-dev/boxd/relay/render"
)

// cordonReach is how long a cordon takes to reach all gateways, which read cordons every two seconds.
const cordonReach = 5 * time.Second

// drainPause is the interval of checks of a node that is being drained.
const drainPause = time.Second

type fleetCommands struct{ *app }

// fleetCommand returns boxctl fleet with its subcommands.
func (a *app) fleetCommand() *cobra.Command {
	f := fleetCommands{a}
	cmd := group("fleet", "Manage the hosts of a fleet", `fleet manages the nodes of a fleet: the hosts on which a gateway, boxfleet serve, places boxes.
--socket and --token select the gateway, as they select a boxd. All commands but nodes, and move,
snapshots and outputs of your own boxes, need the role operator at the gateway.`,
		fleetList(f, &cobra.Command{
			Use: "nodes", Short: "List nodes with their boxes and what they have left",
			Long: `nodes lists the nodes of the fleet. CPUS are reserved by boxes, of all. MEMORY and DISK are
available, of all. SEEN is when the gateway last heard from the node: after 15 seconds of silence it
is lost.`,
			Example: `  boxctl --socket http://127.0.0.1:5440 --token @/etc/boxd/token fleet nodes
  boxctl fleet nodes --format '{{.name}} {{.state}} {{.labels.zone}}'`,
		}, "names", func(n *api.FleetNodeState) string { return n.Name }, (*client.Client).FleetNodes,
			func(list []api.FleetNodeState) any { return api.FleetNodeList{Nodes: list} }, f.printNodes),
		fleetList(f, &cobra.Command{
			Use: "ls", Short: "List the boxes of all owners and their nodes",
			Long: `ls lists all boxes of the fleet, with the node of each. STATE is starting, live, or lost if the node
has been silent for 15 seconds. boxctl ls lists your own boxes with their limits.`,
			Example: `  boxctl fleet ls
  boxctl fleet ls --format '{{.node}} {{.owner}} {{.id}}'`,
		}, "ids", func(s *api.FleetClaim) string { return s.ID }, (*client.Client).FleetSessions,
			func(list []api.FleetClaim) any { return api.FleetClaimList{Sessions: list} }, f.printBoxes),
		fleetList(f, &cobra.Command{
			Use: "owners", Short: "List what each owner has on all nodes",
			Long: `owners adds up the boxes of each owner on all nodes, those with most boxes first. CPUS, MEMORY and
PIDS are the limits of these boxes together. LOST are boxes on nodes that are lost; their limits do
not count. Boxes that were created on a host itself count too.`,
			Example: `  boxctl fleet owners
  boxctl fleet owners --format '{{.owner}} {{.memory}}'`,
		}, "names", func(o *api.FleetOwner) string { return o.Owner }, (*client.Client).FleetOwners,
			func(list []api.FleetOwner) any { return api.FleetOwnerList{Owners: list} }, f.printOwners),
		fleetList(f, &cobra.Command{
			Use: "events", Short: "Show recent events of the fleet",
			Long: `events prints what this gateway has seen since it started, at most 1024 events: nodes that come, are
lost, come back or are cordoned, and boxes that are lost. Another gateway can have seen other
events. boxctl events shows the events of a boxd.`,
		}, "", nil, (*client.Client).FleetEvents,
			func(list []api.FleetEvent) any { return api.FleetEventList{Events: list} }, f.printEvents),
		f.move(), f.cordon(), f.uncordon(), f.drain(), f.forget(),
		f.snapshots(), f.snapshot(), f.restore(), f.removeSnapshot(),
		f.outputs(), f.output(), f.removeOutput())
	cmd.Example = `  export BOXD_SOCKET=http://127.0.0.1:5440 BOXD_TOKEN_FILE=/etc/boxd/token
  boxctl fleet nodes
  boxctl fleet drain web3 --reason 'new disks'
  boxctl fleet uncordon web3`
	return cmd
}

// fleetList makes a command that prints a list of the gateway.
func fleetList[T any](f fleetCommands, cmd *cobra.Command, what string, name func(*T) string, list func(*client.Client, context.Context) ([]T, error), whole func([]T) any, show func([]T) error) *cobra.Command {
	cmd.Args = usage(cobra.NoArgs)
	l := newListing(f.app, cmd, what, name)
	cmd.RunE = f.call(func(cmd *cobra.Command, c *client.Client, _ []string) error {
		got, err := list(c, cmd.Context())
		return l.print(got, whole(got), f.noGateway(err), func() error { return show(got) })
	})
	return cmd
}

// noGateway replaces the error of a single boxd, which has no fleet routes, by a clear one.
func (f fleetCommands) noGateway(err error) error {
	e, ok := errors.AsType[*client.Error](err)
	if !ok || e.Type != client.NotFound.Type || !strings.HasPrefix(e.Detail, "no route ") {
		return err
	}
	return &client.Error{Problem: api.Problem{
		Type: e.Type, Title: e.Title, Status: e.Status, Detail: render.Printable(f.socket) + " is a single boxd, not the gateway of a fleet",
		Hint: "give the address of a gateway (boxfleet serve): --socket http://127.0.0.1:PORT --token @FILE",
	}}
}

func (f fleetCommands) printNodes(list []api.FleetNodeState) error {
	return table(f.stdout, "NAME\tSTATE\tBOXES\tCPUS\tMEMORY\tDISK\tSEEN\tVERSION\tLABELS\tREASON", list, func(n *api.FleetNodeState) string {
		state, reason := n.State, n.Reason
		if n.Cordon != nil {
			state += ",cordoned"
			why := "cordoned by " + n.Cordon.By
			if n.Cordon.Reason != "" {
				why += ": " + n.Cordon.Reason
			}
			reason = strings.TrimPrefix(reason+"; "+why, "; ")
		}
		var labels []string
		for _, name := range slices.Sorted(maps.Keys(n.Labels)) {
			labels = append(labels, name+"="+n.Labels[name])
		}
		return strings.Join([]string{
			render.Printable(n.Name), visible(state), fmt.Sprintf("%d/%d", n.Sessions, n.MaxSessions), fmt.Sprintf("%.3g/%d", n.CPUsReserved, n.CPUs),
			availableOf(n.MemoryAvailable, n.Memory), availableOf(n.DiskAvailable, n.Disk),
			render.Roughly(time.Duration(n.SeenSeconds*float64(time.Second))) + " ago", orElse(n.Version, "-"), orElse(strings.Join(labels, ","), "-"), orElse(reason, "-"),
		}, "\t")
	})
}

// availableOf formats what is left of a resource, "-" if unknown.
func availableOf(available, all uint64) string {
	if all == 0 {
		return "-"
	}
	return fmt.Sprintf("%v/%v", roundSize(int64(available)), roundSize(int64(all)))
}

func (f fleetCommands) printBoxes(list []api.FleetClaim) error {
	return table(f.stdout, "ID\tOWNER\tNODE\tSTATE\tSINCE\tREASON", list, func(s *api.FleetClaim) string {
		return strings.Join([]string{render.Printable(s.ID), render.Printable(s.Owner), render.Printable(s.Node), visible(s.State), s.Since.Local().Format(timeLayout), orElse(s.Reason, "-")}, "\t")
	})
}

func (f fleetCommands) printOwners(list []api.FleetOwner) error {
	return table(f.stdout, "OWNER\tBOXES\tLOST\tCPUS\tMEMORY\tPIDS", list, func(o *api.FleetOwner) string {
		return fmt.Sprintf("%s\t%d\t%d\t%.3g\t%v\t%d", render.Printable(o.Owner), o.Sessions, o.Lost, o.CPUs, roundSize(int64(o.Memory)), o.Pids)
	})
}

func (f fleetCommands) printEvents(list []api.FleetEvent) error {
	return table(f.stdout, "TIME\tTYPE\tNODE\tBOX\tDETAIL", list, func(e *api.FleetEvent) string {
		return strings.Join([]string{e.Time.Local().Format(timeLayout), visible(e.Type), orElse(e.Node, "-"), orElse(e.Session, "-"), orElse(e.Detail, "-")}, "\t")
	})
}

// node finds a node of the fleet. The gateway would cordon any name, so a mistyped name is detected here.
func (f fleetCommands) node(ctx context.Context, c *client.Client, name string) (*api.FleetNodeState, error) {
	if name == "" {
		return nil, &usageError{err: errors.New("the name of the node is empty"), hint: "boxctl fleet nodes"}
	}
	list, err := c.FleetNodes(ctx)
	if err != nil {
		return nil, f.noGateway(err)
	}
	i := slices.IndexFunc(list, func(n api.FleetNodeState) bool { return n.Name == name })
	if i < 0 {
		return nil, &client.Error{Problem: api.Problem{Type: client.NotFound.Type, Detail: fmt.Sprintf("the gateway does not know a node %q", name), Hint: "boxctl fleet nodes"}}
	}
	return &list[i], nil
}

func (f fleetCommands) move() *cobra.Command {
	var req api.FleetMove
	cmd := &cobra.Command{
		Use: "move [flags] BOX", Short: "Move a box to another node", Args: usage(cobra.ExactArgs(1)),
		Long: `move takes a box to another node of the fleet: its settings and environment, its workspace, its
home directory if that is on disk, and the processes whose restart policy is always. The id stays as
it is. Its programs are ended, as by boxctl stop, and it loses what a stopped box loses: /tmp, any
other home directory and the output of its processes. A stopped box is stopped afterwards.

The other node decides as it does about any new box, and must have its profile, image, mounts,
drives and secrets. If it refuses, the box goes on undisturbed. If the move breaks off later, the
box stays on its node, and is started again if it ran.

A box with changes to its root filesystem, or snapshots, is refused unless --leave-out is given, and
so is one that would lose a skill or have lower limits on the other node. Boxes that use a named
workspace, and sandboxes of programs written for E2B, cannot be moved.`,
		Example: `  boxctl fleet move build
  boxctl fleet move --node web4 build
  boxctl fleet move --owner ci --leave-out build`,
		RunE: f.call(func(cmd *cobra.Command, c *client.Client, args []string) error {
			got, err := c.MoveSession(cmd.Context(), args[0], &req)
			return f.answer(got, f.noGateway(err), func() error {
				f.printMessage("boxctl", f.movedText(&got))
				return nil
			})
		}),
	}
	cmd.Flags().StringVar(&req.Node, "node", "", "`NAME` of the node; default the best that can take it")
	cmd.Flags().BoolVar(&req.LeaveOut, "leave-out", false, "move it without what cannot be moved")
	return cmd
}

func (f fleetCommands) movedText(m *api.FleetMoved) string {
	text := fmt.Sprintf("box %s is on node %s now", render.Printable(m.ID), render.Printable(m.Node))
	if len(m.LeftOut) > 0 {
		text += ", without " + render.Printable(strings.Join(m.LeftOut, "; "))
	}
	return text
}

func (f fleetCommands) cordon() *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use: "cordon [flags] NODE", Short: "Stop placing new boxes on a node", Args: usage(cobra.ExactArgs(1)),
		Long: `cordon keeps new boxes of the fleet away from a node, until boxctl fleet uncordon. The boxes it has
continue. Programs on the host itself can still create boxes there: see boxctl drain.`,
		Example: "  boxctl fleet cordon web3 --reason 'new disks'",
		RunE: f.call(func(cmd *cobra.Command, c *client.Client, args []string) error {
			if _, err := f.node(cmd.Context(), c, args[0]); err != nil {
				return err
			}
			got, err := c.Cordon(cmd.Context(), args[0], &api.FleetCordonRequest{Reason: reason})
			return f.answer(got, err, func() error { return nil })
		}),
	}
	cmd.Flags().StringVar(&reason, "reason", "", "`TEXT` reason, shown to users")
	return cmd
}

func (f fleetCommands) uncordon() *cobra.Command {
	return &cobra.Command{
		Use: "uncordon NODE", Short: "Accept new boxes on a node again", Args: usage(cobra.ExactArgs(1)),
		Long: "uncordon ends boxctl fleet cordon and boxctl fleet drain: the node gets new boxes again.",
		RunE: f.call(func(cmd *cobra.Command, c *client.Client, args []string) error {
			_, unknown := f.node(cmd.Context(), c, args[0])
			if unknown != nil && !errors.Is(unknown, client.NotFound) {
				return unknown
			}
			// A lost node may have a cordon, which would apply again when it returns.
			if err := c.Uncordon(cmd.Context(), args[0]); err != nil {
				return f.noGateway(err)
			}
			return unknown
		}),
	}
}

func (f fleetCommands) forget() *cobra.Command {
	return &cobra.Command{
		Use: "forget NODE", Short: "Remove a node that is gone for good", Args: usage(cobra.ExactArgs(1)),
		Long: `forget removes a lost node from the fleet, which otherwise expects it to come back. Boxes that are
lost with it stay in the list until boxctl rm removes them. A node that comes back after all is a
node of the fleet again.`,
		Example: "  boxctl fleet forget web3",
		RunE: f.call(func(cmd *cobra.Command, c *client.Client, args []string) error {
			if _, err := f.node(cmd.Context(), c, args[0]); err != nil {
				return err
			}
			return c.ForgetNode(cmd.Context(), args[0])
		}),
	}
}

func (f fleetCommands) drain() *cobra.Command {
	var reason string
	var moves bool
	cmd := &cobra.Command{
		Use: "drain [flags] NODE", Short: "Stop placing new boxes on a node, and wait until it is empty", Args: usage(cobra.ExactArgs(1)),
		Long: `drain cordons a node, then waits until it has no boxes, and prints how many are left. It does not
end boxes: they end by themselves, by their limits of time, or by boxctl rm. Boxes that were created
on the host itself count too. Ctrl-C ends the waiting, and leaves the node cordoned.

With --move, boxes are moved to other nodes, one after another, as by boxctl fleet move. Those that
cannot be moved are named, and waited for.

If the node is lost meanwhile, drain fails: its boxes can still be running.`,
		Example: `  boxctl fleet drain web3 --reason 'new disks'
  boxctl fleet drain --move web3
  timeout 1h boxctl fleet drain web3`,
		RunE: f.call(func(cmd *cobra.Command, c *client.Client, args []string) error {
			name := args[0]
			n, err := f.node(cmd.Context(), c, name)
			if err != nil {
				return err
			}
			if n.Cordon == nil || reason != "" { // otherwise it keeps its reason
				if _, err := c.Cordon(cmd.Context(), name, &api.FleetCordonRequest{Reason: reason}); err != nil {
					return err
				}
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt)
			defer stop()
			if moves {
				err = f.moveAll(ctx, c, name)
			}
			if err == nil {
				err = f.untilEmpty(ctx, c, name)
			}
			if ctx.Err() != nil {
				f.printMessage("boxctl", "node "+render.Printable(name)+" stays cordoned")
				f.printMessage("hint", "boxctl fleet uncordon "+render.ShellWord(name))
				return exitError(exitSignalBase + int(syscall.SIGINT))
			}
			if err != nil {
				return fmt.Errorf("node %s is not drained and stays cordoned: %w", render.Printable(name), err)
			}
			if f.json {
				n, err = f.node(cmd.Context(), c, name)
				return f.answer(n, err, nil)
			}
			f.printMessage("boxctl", "node "+render.Printable(name)+" is cordoned and has no boxes")
			return nil
		}),
	}
	cmd.Flags().StringVar(&reason, "reason", "", "`TEXT` reason, shown to users")
	cmd.Flags().BoolVar(&moves, "move", false, "move its boxes to other nodes")
	return cmd
}

// moveAll moves the boxes of a node elsewhere, and names those that it cannot move.
func (f fleetCommands) moveAll(ctx context.Context, c *client.Client, name string) error {
	placed, err := c.FleetSessions(ctx)
	if err != nil {
		return err
	}
	of := *c
	for i := range placed {
		if placed[i].Node != name {
			continue
		}
		of.Owner = placed[i].Owner
		got, err := of.MoveSession(ctx, placed[i].ID, &api.FleetMove{})
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			f.printMessage("boxctl", fmt.Sprintf("box %s of %s is not moved: %v", render.Printable(placed[i].ID), render.Printable(placed[i].Owner), err))
		default:
			f.printMessage("boxctl", f.movedText(&got))
		}
	}
	return nil
}

// untilEmpty waits until a newly cordoned node has no boxes, and prints their number when it changes.
func (f fleetCommands) untilEmpty(ctx context.Context, c *client.Client, name string) error {
	for start, printed := time.Now(), 0; ; {
		remaining, n, err := f.remaining(ctx, c, name)
		passed := time.Since(start)
		switch {
		case err != nil:
			return err
		case n.State == "lost":
			return fmt.Errorf("it is lost, and its boxes can still be running: %s", n.Reason)
		case passed > cordonReach && n.Cordon == nil:
			return errors.New("it was uncordoned meanwhile")
		case remaining != printed:
			f.printMessage("boxctl", fmt.Sprintf("boxes left on node %s: %d", render.Printable(name), remaining))
			printed = remaining
		// Another gateway may have placed a box until it knew the cordon, so the node's report must be newer than that.
		case remaining == 0 && passed-time.Duration(n.SeenSeconds*float64(time.Second)) > cordonReach:
			return nil
		}
		select {
		case <-time.After(drainPause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// remaining counts the boxes of a node: those that the fleet has placed there, or all of its boxd if that is more.
func (f fleetCommands) remaining(ctx context.Context, c *client.Client, name string) (int, *api.FleetNodeState, error) {
	n, err := f.node(ctx, c, name)
	if err != nil {
		return 0, nil, err
	}
	placed, err := c.FleetSessions(ctx)
	if err != nil {
		return 0, nil, err
	}
	claimed := 0
	for i := range placed {
		if placed[i].Node == name {
			claimed++
		}
	}
	return max(claimed, n.Sessions), n, nil
}
