// SPDX-License-Identifier: Apache-2.0

// This file has the commands about the Model Context Protocol: boxd as a server of tools for agents, and servers of
// others in boxes.

package main

import (
	"context"
	"errors"
	"io"
	"os/signal"

	"github.com/spf13/cobra"

	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/mcp"
)

// MCPAsking is how the flags of a session become a request for one.
type MCPAsking struct {
	Flags   func(*cobra.Command)
	Request func(id string) (*api.SessionRequest, error)
}

// mcpCommand returns boxctl mcp.
func mcpCommand(a *App, version string, asking func() MCPAsking) *cobra.Command {
	ask := asking()
	var session string
	var any bool
	cmd := &cobra.Command{
		Use:   "mcp [flags]",
		Short: "Be an MCP server on standard input and output, for agents",
		Long: `mcp serves the Model Context Protocol on standard input and output: an agent's tools to run commands, to read,
write and search files and to keep processes, all of it in a box. The box is made when it is needed first and
removed with what is in it when the client goes; its flags are those of create. With --session, or a
--template, it is the session of that id, which stays.

The agent is told in a few lines what the box offers and forbids. It can make further boxes, and name those
it has made, but no other of yours unless --any-session says so.`,
		Example: `  boxctl mcp                                     a box for this conversation
  boxctl mcp --here                              with this directory as its workspace
  boxctl mcp --session work --profile offline    a box that stays`,
		Args: Usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			req, err := ask.Request(session)
			if err != nil {
				return err
			}
			if dry, err := planned(cmd.Context(), cmd, a, req); dry || err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), signals()...)
			defer stop()
			return serve(ctx, a, version, mcp.BoxesOptions{Ask: *req, Any: any})
		},
	}
	ask.Flags(cmd)
	cmd.Flags().StringVar(&session, "session", "", "serve the session of this `ID`, which stays; it is made if it is not there")
	cmd.Flags().BoolVar(&any, "any-session", false, "let the agent name every session of yours, not only those it has made")
	cmd.AddCommand(run(a, asking()), status(a), instructions(a))
	return cmd
}

// serve serves one client until it goes or ctx ends.
func serve(ctx context.Context, a *App, version string, o mcp.BoxesOptions) error {
	c := a.Client()
	defer c.Close()
	server, err := mcp.NewServer(ctx, c, &mcp.Options{Version: version, Boxes: o, Kept: mcp.DefaultOutputLimits()})
	if err != nil {
		return err
	}
	err = server.Run(ctx, &mcp.Stdio{In: a.Stdin, Out: a.Stdout})
	if errors.Is(err, io.EOF) || ctx.Err() != nil { // the client has gone, or told us to
		err = nil
	}
	return errors.Join(err, server.Boxes.Close(ctx))
}
