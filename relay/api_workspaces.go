// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"time"

	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"

	"github.com/boxd-dev/boxd/supervisor/policy"
	"github.com/boxd-dev/boxd/supervisor/session"
	"github.com/boxd-dev/boxd/supervisor/volumes"
)

// listWorkspaces lists the caller's workspaces.
func listWorkspaces(c *Call) (any, error) {
	owner, err := c.Owner()
	if err != nil {
		return nil, err
	}
	list := api.WorkspaceList{Workspaces: []api.Workspace{}}
	for _, i := range c.Sup.Spaces.List(owner.Name) {
		list.Workspaces = append(list.Workspaces, wireWorkspace(&i))
	}
	return list, nil
}

// createWorkspace makes a workspace.
func createWorkspace(c *Call) (any, error) {
	owner, err := c.Owner()
	if err != nil {
		return nil, err
	}
	var in api.WorkspaceRequest
	if err := c.decodeBody(&in, maxSessionBody); err != nil {
		return nil, err
	}
	i, err := c.Sup.CreateSpace(c.Context(), owner, volumes.WorkspaceRequest{Name: in.Name, Quota: in.Quota, Inodes: in.Inodes})
	if err != nil {
		return nil, err
	}
	return Created{Body: wireWorkspace(&i)}, nil
}

// keepTimeout limits the end of a session whose workspace is kept; it continues when its caller has gone.
const keepTimeout = 10 * time.Minute

// keepWorkspace ends a session and turns its own workspace into a named one.
func keepWorkspace(c *Call) (any, error) {
	s, err := c.session()
	if err != nil {
		return nil, err
	}
	var in api.WorkspaceKept
	if err := c.decodeBody(&in, maxSessionBody); err != nil {
		return nil, err
	}
	select {
	case <-s.Started():
	case <-c.Context().Done():
		return nil, c.Context().Err()
	}
	settings := s.Current()
	if err := c.Sup.Spaces.Keep(s.Owner.Name, in.Workspace, s.BoxKey(), &settings, s.Enforced()[policy.LimitWorkspace]); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.Context()), keepTimeout)
	defer cancel()
	if err := c.Sup.End(ctx, s, session.EndDeleted); err != nil {
		return nil, err
	}
	i, err := c.Sup.Spaces.Snapshot(s.Owner.Name, in.Workspace)
	if err != nil {
		return nil, err
	}
	return Created{Body: wireWorkspace(&i)}, nil
}

// getWorkspace describes a workspace.
func getWorkspace(c *Call) (any, error) {
	owner, err := c.Owner()
	if err != nil {
		return nil, err
	}
	i, err := c.Sup.Spaces.Get(owner.Name, c.Path.Workspace)
	if err != nil {
		return nil, err
	}
	return wireWorkspace(&i), nil
}

// changeWorkspace changes the quota of a workspace.
func changeWorkspace(c *Call) (any, error) {
	owner, err := c.Owner()
	if err != nil {
		return nil, err
	}
	var in api.WorkspaceChange
	if err := c.decodeBody(&in, maxSessionBody); err != nil {
		return nil, err
	}
	effective := c.Sup.Spaces.Config().PolicyOf(owner)
	i, err := c.Sup.Spaces.Change(c.Context(), owner.Name, c.Path.Workspace, &effective, in.Quota, in.Inodes)
	if err != nil {
		return nil, err
	}
	return wireWorkspace(&i), nil
}

// deleteWorkspace removes a workspace that no session uses.
func deleteWorkspace(c *Call) (any, error) {
	owner, err := c.Owner()
	if err == nil {
		err = c.Sup.Spaces.Remove(c.Context(), owner.Name, c.Path.Workspace)
	}
	if err != nil {
		return nil, err
	}
	return noContent{}, nil
}

func wireWorkspace(i *volumes.Workspace) api.Workspace {
	w := api.Workspace{
		Name: i.Name, Owner: i.Owner, CreatedAt: i.Created.UTC(), Quota: i.Quota, Inodes: i.Inodes, Enforcement: string(i.KeptBy), Sessions: append([]string{}, i.Sessions...),
	}
	if u := i.Used; u != nil {
		w.Usage = &api.Quota{Kind: "workspace", Used: quantity.Size(u.Used), Limit: quantity.Size(u.Limit), Files: u.Files, FilesLimit: u.FilesLimit, Hit: session.IsFull(*u)}
	}
	return w
}
