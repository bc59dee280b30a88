// SPDX-License-Identifier: Apache-2.0

// This file is the part of boxd's client about workspaces that have a name.

package client

import (
	"context"
	"net/http"
	"net/url"
	"strings"

	"github.com/boxd-dev/boxd/relay/api"
)

// Workspaces asks a boxd about workspaces: those of the caller, or of the owner that the client names.
type Workspaces struct{ *Client }

func (c Workspaces) path(name string) string {
	p := "/v1/workspaces"
	if name != "" {
		p += "/" + strings.ReplaceAll(url.PathEscape(name), ".", "%2E")
	}
	if c.Owner != "" {
		p += "?" + url.Values{"owner": {c.Owner}}.Encode()
	}
	return p
}

// List lists all, by name.
func (c Workspaces) List(ctx context.Context) ([]api.Workspace, error) {
	var list api.WorkspaceList
	_, err := c.Ask(ctx, http.MethodGet, c.path(""), nil, &list)
	return list.Workspaces, err
}

// Create makes a workspace.
func (c Workspaces) Create(ctx context.Context, req *api.WorkspaceRequest) (w api.Workspace, err error) {
	_, err = c.Ask(ctx, http.MethodPost, c.path(""), req, &w)
	return w, err
}

// Get describes a workspace, with the sessions that have it.
func (c Workspaces) Get(ctx context.Context, name string) (w api.Workspace, err error) {
	if name == "" {
		return w, ErrNoID
	}
	_, err = c.Ask(ctx, http.MethodGet, c.path(name), nil, &w)
	return w, err
}

// Change gives a workspace another quota, for all sessions that have it.
func (c Workspaces) Change(ctx context.Context, name string, req *api.WorkspaceChange) (w api.Workspace, err error) {
	if name == "" {
		return w, ErrNoID
	}
	_, err = c.Ask(ctx, http.MethodPatch, c.path(name), req, &w)
	return w, err
}

// Keep ends a session, and makes its own workspace one with a name, with the quota it has.
func (c Workspaces) Keep(ctx context.Context, session, name string) (w api.Workspace, err error) {
	_, err = c.About(ctx, http.MethodPost, session, "/keep", &api.WorkspaceKept{Workspace: name}, &w)
	return w, err
}

// Remove removes a workspace that no session has, with all that is in it.
func (c Workspaces) Remove(ctx context.Context, name string) error {
	if name == "" {
		return ErrNoID
	}
	_, err := c.Ask(ctx, http.MethodDelete, c.path(name), nil, nil)
	return err
}
