// SPDX-License-Identifier: Apache-2.0

// Package mcp is the MCP server of boxd: its tools, the sessions of a client, their stored output.
package mcp

import (
	"context"
	"errors"
	"fmt"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/boxd-dev/boxd/relay/client"
)

// Options configure a server.
type Options struct {
	Version  string
	Sessions SessionsOptions
	Outputs  OutputLimits
	ID       func() string // session ids; nil: the transport has none, or makes them
}

// Server is the MCP server of one client. Boxes has the client's sessions of boxd, and must be closed when the client has gone.
type Server struct {
	*mcp.Server
	Boxes *Sessions
}

// NewServer asks boxd what a box would be, and makes none yet. The error is boxd's refusal.
func NewServer(ctx context.Context, c *client.Client, o *Options) (*Server, error) {
	facts, err := fetchFacts(ctx, c, &o.Sessions)
	if err != nil {
		return nil, err
	}
	s := &Server{Boxes: NewSessions(c, o.Sessions)}
	s.Server = mcp.NewServer(&mcp.Implementation{Name: "boxd", Title: "boxd sandbox", Version: o.Version}, &mcp.ServerOptions{
		Instructions: WriteInstructions(facts), Capabilities: &mcp.ServerCapabilities{}, GetSessionID: o.ID,
	})
	t := &tools{server: s.Server, client: c, sessions: s.Boxes, outputs: newOutputs(o.Outputs)}
	t.register(facts.Box.Network != "off")
	return s, nil
}

// fetchFacts asks boxd what a box would be.
func fetchFacts(ctx context.Context, c *client.Client, o *SessionsOptions) (*Facts, error) {
	plan, err := c.PlanSession(ctx, &o.Ask)
	if err != nil {
		return nil, err
	}
	f := &Facts{Enforcement: plan.Enforcement, Refused: plan.Refused, Named: o.Ask.ID, Any: o.Any}
	if plan.Session == nil {
		if plan.Refused != nil {
			return nil, fmt.Errorf("boxd refuses to create a box: %w", &client.Error{Problem: *plan.Refused})
		}
		return nil, errors.New("boxd has not answered with the settings of a box")
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
