// SPDX-License-Identifier: Apache-2.0

// Package serve puts the MCP server of one client together: what it is told, its boxes and its tools.
package serve

import (
	"context"
	"errors"
	"fmt"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/boxd-dev/boxd/relay/client"
	"github.com/boxd-dev/boxd/relay/mcp/boxes"
	"github.com/boxd-dev/boxd/relay/mcp/brief"
	"github.com/boxd-dev/boxd/relay/mcp/kept"
	"github.com/boxd-dev/boxd/relay/mcp/tools"
)

// Options say what a server is.
type Options struct {
	Version string
	Boxes   boxes.Options
	Kept    kept.Limits
	ID      func() string // of its sessions; nil: the transport has none, or makes them up
}

// Server is that of one client. Boxes has to be closed when the client is gone.
type Server struct {
	*mcp.Server
	Boxes *boxes.Boxes
}

// New asks boxd what a box would be, and makes none yet. What boxd refuses is the error.
func New(ctx context.Context, c *client.Client, o *Options) (*Server, error) {
	facts, err := learn(ctx, c, &o.Boxes)
	if err != nil {
		return nil, err
	}
	s := &Server{Boxes: boxes.New(c, o.Boxes)}
	s.Server = mcp.NewServer(&mcp.Implementation{Name: "boxd", Title: "boxd sandbox", Version: o.Version}, &mcp.ServerOptions{
		Instructions: brief.Write(facts), Capabilities: &mcp.ServerCapabilities{}, GetSessionID: o.ID,
	})
	t := &tools.Tools{Server: s.Server, Client: c, Boxes: s.Boxes, Kept: kept.New(o.Kept)}
	t.Add(facts.Box.Network != "off")
	return s, nil
}

// learn asks boxd what a box would be.
func learn(ctx context.Context, c *client.Client, o *boxes.Options) (*brief.Facts, error) {
	plan, err := c.PlanSession(ctx, &o.Ask)
	if err != nil {
		return nil, err
	}
	f := &brief.Facts{Kept: plan.Enforcement, Refused: plan.Refused, Named: o.Ask.ID, Any: o.Any}
	if plan.Session == nil {
		if plan.Refused != nil {
			return nil, fmt.Errorf("boxd would refuse a box: %w", &client.Error{Problem: *plan.Refused})
		}
		return nil, errors.New("boxd does not say what a box would be")
	}
	f.Box = *plan.Session
	if o.Ask.Template != "" {
		f.Named = plan.Session.ID
	}
	profiles, err := c.Profiles(ctx)
	if err != nil {
		return nil, err
	}
	f.Profile = profiles.Profiles[plan.Session.Profile]
	return f, nil
}
