// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/boxd-dev/boxd/cmd/boxctl/mcphost"

	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
	"github.com/boxd-dev/boxd/relay/render"
)

// mcpServer is a server that boxctl mcp run runs in a box, or ran until it failed, as in status --json.
type mcpServer struct {
	Name    string `json:"name"`
	Session string `json:"session"`
	Phase   string `json:"phase"`
	Attempt string `json:"attempt"`
	Since   string `json:"since"`            // RFC 3339
	Health  string `json:"health,omitempty"` // since the handshake
	Stderr  string `json:"stderr,omitempty"` // its last line
	Failed  string `json:"failed,omitempty"` // boxctl's message about its end
	Ended   string `json:"ended,omitempty"`  // time of its end, RFC 3339
}

// mcpStatusCommand returns boxctl mcp status.
func (a *app) mcpStatusCommand() *cobra.Command {
	var l *listing[mcpServer]
	cmd := &cobra.Command{
		Use:   "status",
		Short: "List MCP servers in boxes and their state",
		Long: `status lists the servers that boxctl mcp run runs in your boxes: the phase (dependencies, process,
handshake, run time), the attempt, whether the server answers pings, and its last line on standard
error. The labels of the box contain the same, see boxctl inspect.

The box of a server that failed is removed. The last failure of each server is listed after the
running servers, until a server of that name ends well. boxctl stores these failures, for 32 names,
below $XDG_STATE_HOME/boxctl/mcp (~/.local/state/boxctl/mcp). It stores nothing about a server that
was killed together with boxctl.`,
		Args: usage(cobra.NoArgs),
		RunE: a.call(func(cmd *cobra.Command, c *client.Client, _ []string) error {
			list, err := c.Sessions(cmd.Context(), false)
			if err != nil {
				return err
			}
			servers := []mcpServer{}
			for i := range list {
				if s := &list[i]; s.Labels[mcphost.LabelServer] != "" {
					servers = append(servers, serverIn(cmd.Context(), c, s))
				}
			}
			failed, err := mcphost.Failures(mcphost.HistoryDir(os.Getenv), a.socket)
			if err != nil {
				fmt.Fprintf(a.stderr, "boxctl: cannot list all failed servers: %v\n", err)
			}
			for i := range failed {
				f := &failed[i]
				servers = append(servers, mcpServer{
					Name: f.Name, Session: f.Session, Phase: f.Phase, Attempt: f.Attempt, Since: f.Since, Stderr: f.Stderr, Failed: f.Words, Ended: f.Ended.Format(time.RFC3339),
				})
			}
			return l.print(servers, map[string]any{"servers": servers}, nil, func() error { return a.printServers(servers) })
		}),
	}
	l = newListing(a, cmd, "names", func(s *mcpServer) string { return s.Name })
	return cmd
}

// serverIn returns a server from the labels of its session and its process.
func serverIn(ctx context.Context, c *client.Client, s *api.Session) mcpServer {
	l := s.Labels
	server := mcpServer{
		Name: l[mcphost.LabelServer], Session: s.ID, Phase: l[mcphost.LabelPhase], Attempt: l[mcphost.LabelAttempt], Since: l[mcphost.LabelSince],
		Health: l[mcphost.LabelHealth], Stderr: l[mcphost.LabelStderr],
	}
	if server.Stderr == "" {
		var last strings.Builder
		_ = c.LogLines(ctx, s.ID, server.Name, client.LogOptions{Stream: "stderr", Lines: new(1)}, func(line *api.LogLine) error { // it may not run yet
			if !line.Base64 {
				last.WriteString(line.Data)
			}
			return nil
		})
		server.Stderr = mcphost.LastLine(last.String())
	}
	return server
}

func (a *app) printServers(servers []mcpServer) error {
	w := tabwriter.NewWriter(a.stdout, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "SERVER\tBOX\tPHASE\tATTEMPT\tFOR\tHEALTH\tLAST STDERR")
	for i := range servers {
		s := &servers[i]
		since := "-"
		if t, err := time.Parse(time.RFC3339, s.Since); err == nil {
			since = render.Roughly(time.Since(t))
		}
		if t, err := time.Parse(time.RFC3339, s.Ended); err == nil {
			since = render.Roughly(time.Since(t)) + " ago"
		}
		row := []string{s.Name, s.Session, s.Phase, s.Attempt, since, s.Health, s.Stderr}
		if s.Failed != "" {
			row[2] = "failed: " + s.Phase
		}
		for i, cell := range row {
			if row[i] = render.Printable(cell); cell == "" {
				row[i] = "-"
			}
		}
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	return w.Flush()
}
