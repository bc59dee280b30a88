// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"net/http"

	"github.com/boxd-dev/boxd/relay/api"
)

func (c *Client) workspace(name string) target {
	return c.owned(about("/v1/workspaces", name, ""), nil)
}

func (c *Client) workspaces() target { return c.owned(target{path: "/v1/workspaces"}, nil) }

// Workspaces lists the caller's named workspaces, by name.
func (c *Client) Workspaces(ctx context.Context) ([]api.Workspace, error) {
	list, err := request[api.WorkspaceList](ctx, c, http.MethodGet, c.workspaces(), nil)
	return list.Workspaces, err
}

// CreateWorkspace makes a workspace.
func (c *Client) CreateWorkspace(ctx context.Context, req *api.WorkspaceRequest) (api.Workspace, error) {
	return request[api.Workspace](ctx, c, http.MethodPost, c.workspaces(), req)
}

// Workspace describes a workspace, with the sessions that use it.
func (c *Client) Workspace(ctx context.Context, name string) (api.Workspace, error) {
	return request[api.Workspace](ctx, c, http.MethodGet, c.workspace(name), nil)
}

// ChangeWorkspace changes the quota of a workspace, for all sessions that use it.
func (c *Client) ChangeWorkspace(ctx context.Context, name string, req *api.WorkspaceChange) (api.Workspace, error) {
	return request[api.Workspace](ctx, c, http.MethodPatch, c.workspace(name), req)
}

// KeepWorkspace ends a session, and turns its own workspace into a named one, with the same quota.
func (c *Client) KeepWorkspace(ctx context.Context, session, name string) (api.Workspace, error) {
	return request[api.Workspace](ctx, c, http.MethodPost, c.session(session, "/keep", nil), &api.WorkspaceKept{Workspace: name})
}

// DeleteWorkspace removes a workspace that no session uses, with all its content.
func (c *Client) DeleteWorkspace(ctx context.Context, name string) error {
	_, err := c.do(ctx, http.MethodDelete, c.workspace(name), nil, nil)
	return err
}
