// SPDX-License-Identifier: Apache-2.0

package mcp

import (
	"context"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/boxd-dev/boxd/relay/api"
)

type createArgs struct {
	ID      string `json:"id,omitempty" jsonschema:"id of the new box; left out: boxd makes one up"`
	Profile string `json:"profile,omitempty" jsonschema:"profile of boxd's configuration; left out: the default one"`
	Network string `json:"network,omitempty" jsonschema:"off, egress or host, if the profile allows it"`
}

type noArgs struct{}

func (t *tools) addSessions() {
	mcp.AddTool(t.server, &mcp.Tool{
		Name:        "box_create",
		Description: "Make another box. Its id is the argument session of other tools. It ends with this connection.",
		Annotations: changes("Make a box", false, true, false),
	}, t.create)
	mcp.AddTool(t.server, &mcp.Tool{
		Name:        "box_delete",
		Description: "End a box with all that runs and is in it. Without session it is the connection's own; the next call makes a new, empty one.",
		Annotations: changes("End a box", true, true, false),
	}, t.remove)
	mcp.AddTool(t.server, &mcp.Tool{
		Name:        "box_status",
		Description: "Describe the boxes of this connection: limits, mounts, network, what they use, when they end.",
		Annotations: reads("Describe boxes"),
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
	return text("box %s has ended", id), nil, nil
}

func (t *tools) status(ctx context.Context, _ *mcp.CallToolRequest, _ noArgs) (*mcp.CallToolResult, any, error) {
	list, err := t.sessions.list(ctx)
	if err != nil {
		return nil, nil, withHint(err)
	}
	if len(list) == 0 {
		return text("there is no box yet: the first call that needs one makes it"), nil, nil
	}
	result, err := asJSON(api.SessionList{Sessions: list})
	return result, nil, withHint(err)
}
