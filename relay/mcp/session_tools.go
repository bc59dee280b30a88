// SPDX-License-Identifier: Apache-2.0

package mcp

import (
	"context"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/boxd-dev/boxd/relay/api"
)

type createArgs struct {
	ID      string `json:"id,omitempty" jsonschema:"id of the new box (default: generated)"`
	Profile string `json:"profile,omitempty" jsonschema:"name of a boxd profile (default: the default profile)"`
	Network string `json:"network,omitempty" jsonschema:"off, egress (outgoing connections) or host, as the profile allows"`
}

type noArgs struct{}

func (t *tools) addSessions() {
	mcp.AddTool(t.server, &mcp.Tool{
		Name:        "box_create",
		Description: "Create another box. Pass its id as session to other tools. It is removed when this connection ends.",
		Annotations: changes("Create a box", false, true, false),
	}, t.create)
	mcp.AddTool(t.server, &mcp.Tool{
		Name:        "box_delete",
		Description: "Delete a box with all its processes and files. Without session: the default box of this connection; the next call creates a new, empty one.",
		Annotations: changes("Delete a box", true, true, false),
	}, t.remove)
	mcp.AddTool(t.server, &mcp.Tool{
		Name:        "box_status",
		Description: "Show the boxes of this connection: limits, mounts, network, resource usage and expiry.",
		Annotations: reads("Show boxes"),
	}, t.status)
}

func (t *tools) create(ctx context.Context, _ *mcp.CallToolRequest, in createArgs) (*mcp.CallToolResult, any, error) {
	req := &api.SessionRequest{ID: in.ID, Profile: in.Profile}
	if in.Network != "" {
		req.Network = &in.Network
	}
	s, err := t.sessions.createOther(ctx, req)
	if err != nil {
		return nil, nil, withHint(err)
	}
	if s.Network != "off" {
		t.announceNetwork()
	}
	result, err := asJSON(s)
	return result, nil, withHint(err)
}

func (t *tools) remove(ctx context.Context, _ *mcp.CallToolRequest, in sessionArg) (*mcp.CallToolResult, any, error) {
	id, err := t.sessions.remove(ctx, in.Session)
	if err != nil {
		return nil, nil, withHint(err)
	}
	return text("box %s deleted", id), nil, nil
}

func (t *tools) status(ctx context.Context, _ *mcp.CallToolRequest, _ noArgs) (*mcp.CallToolResult, any, error) {
	list, err := t.sessions.list(ctx)
	if err != nil {
		return nil, nil, withHint(err)
	}
	if len(list) == 0 {
		return text("no box yet; the first call that needs one creates it"), nil, nil
	}
	result, err := asJSON(api.SessionList{Sessions: list})
	return result, nil, withHint(err)
}
