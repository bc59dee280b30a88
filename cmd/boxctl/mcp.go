// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"io"
	"os/signal"

	"github.com/spf13/cobra"

	"github.com/boxd-dev/boxd/relay/mcp"
)

// mcpCommand returns boxctl mcp.
func (a *app) mcpCommand() *cobra.Command {
	var f sessionFlags
	var session string
	var any bool
	cmd := &cobra.Command{
		Use:   "mcp [flags]",
		Short: "Run an MCP server on stdin/stdout for an AI agent",
		Long: `mcp serves the Model Context Protocol on standard input and output. It gives an AI agent tools to
run commands, to read, write and search files, and to manage processes, all in a box. The box is
created on first use, with the flags of create, and removed with its files when the client
disconnects. With --session or --template the agent uses the box of that name, which stays.

The agent receives a short text about what the box allows and forbids. It can create more boxes and
use those, but none of your other boxes unless --any-session is given.`,
		Example: `  boxctl mcp                                     a box for this conversation
  boxctl mcp --here                              with this directory as its workspace
  boxctl mcp --session work --profile offline    a box that stays`,
		Args: usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			req, err := f.request(session)
			if err != nil {
				return err
			}
			if dry, err := a.planned(cmd, req); dry || err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), signals()...)
			defer stop()
			return a.serveMCP(ctx, mcp.SessionsOptions{Ask: *req, Any: any})
		},
	}
	f.add(cmd)
	cmd.Flags().StringVar(&session, "session", "", "`BOX` use this box, which stays; created if missing")
	cmd.Flags().BoolVar(&any, "any-session", false, "let the agent use all your boxes, not only those it created")
	cmd.AddCommand(a.mcpRunCommand(), a.mcpStatusCommand(), a.mcpInstructionsCommand())
	return cmd
}

// serveMCP serves one client until it goes or ctx ends.
func (a *app) serveMCP(ctx context.Context, o mcp.SessionsOptions) error {
	c := a.client()
	defer c.Close()
	server, err := mcp.NewServer(ctx, c, &mcp.Options{Version: version, Sessions: o, Outputs: mcp.DefaultOutputLimits()})
	if err != nil {
		return err
	}
	err = server.Run(ctx, &mcp.Stdio{In: a.stdin, Out: a.stdout})
	if errors.Is(err, io.EOF) || ctx.Err() != nil { // the client has gone, or has asked boxctl to end
		err = nil
	}
	return errors.Join(err, server.Boxes.Close(ctx))
}
