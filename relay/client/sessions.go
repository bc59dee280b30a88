// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"net/http"
	"net/url"
	"time"

	"github.com/boxd-dev/boxd/relay/api"
)

// CreateSession makes a session, or returns the one of that id if it matches the request; isNew tells which.
func (c *Client) CreateSession(ctx context.Context, req *api.SessionRequest) (s api.Session, isNew bool, err error) {
	return requestNew[api.Session](ctx, c, http.MethodPost, target{path: "/v1/sessions"}, req)
}

// PlanSession returns what CreateSession would make, and makes nothing.
func (c *Client) PlanSession(ctx context.Context, req *api.SessionRequest) (api.Plan, error) {
	dry := *req
	dry.DryRun = true
	return request[api.Plan](ctx, c, http.MethodPost, target{path: "/v1/sessions"}, &dry)
}

// Session describes a session.
func (c *Client) Session(ctx context.Context, id string) (api.Session, error) {
	return request[api.Session](ctx, c, http.MethodGet, c.session(id, "", nil), nil)
}

// Sessions lists the sessions of the caller, or of Owner if that is set; without Owner, all lists those of every owner.
func (c *Client) Sessions(ctx context.Context, all bool) ([]api.Session, error) {
	return c.FindSessions(ctx, &SessionFilter{All: all})
}

// SessionFilter selects the sessions of a list.
type SessionFilter struct {
	All          bool              // of every owner, unless Owner is set
	Labels       map[string]string // that each must have
	Metadata     map[string]string // that each must have
	WithMetadata bool              // include metadata
	WithUsage    bool              // include resource usage
}

// FindSessions lists the sessions of the caller, or of Owner if that is set, that match the filter.
func (c *Client) FindSessions(ctx context.Context, f *SessionFilter) ([]api.Session, error) {
	query := queryOf("all", yes(f.All && c.Owner == ""), "metadata", yes(f.WithMetadata), "usage", yes(f.WithUsage))
	for name, value := range f.Labels {
		query.Add("label", name+"="+value)
	}
	for name, value := range f.Metadata {
		query.Add("metadata", name+"="+value)
	}
	all := []api.Session{} // not null in JSON
	for {
		list, err := request[api.SessionList](ctx, c, http.MethodGet, c.owned(target{path: "/v1/sessions"}, query), nil)
		if all = append(all, list.Sessions...); err != nil || list.Next == "" {
			return all, err
		}
		query.Set("after", list.Next)
	}
}

// UsageHistory returns the recent resource usage of a session: the samples since a time, or all if that is zero.
func (c *Client) UsageHistory(ctx context.Context, id string, after time.Time) (api.UsageHistory, error) {
	query := url.Values{}
	if !after.IsZero() {
		query.Set("after", after.Format(time.RFC3339Nano))
	}
	return request[api.UsageHistory](ctx, c, http.MethodGet, c.session(id, "/usage/history", query), nil)
}

// ChangeSession changes limits or times of a living session, completely or not at all.
func (c *Client) ChangeSession(ctx context.Context, id string, change *api.SessionChange) (api.Session, error) {
	return request[api.Session](ctx, c, http.MethodPatch, c.session(id, "", nil), change)
}

// FreezeSession freezes all programs of a session, and returns when they are frozen.
func (c *Client) FreezeSession(ctx context.Context, id string) (api.Session, error) {
	return request[api.Session](ctx, c, http.MethodPost, c.session(id, "/freeze", nil), nil)
}

// ThawSession thaws the programs of a frozen session.
func (c *Client) ThawSession(ctx context.Context, id string) (api.Session, error) {
	return request[api.Session](ctx, c, http.MethodPost, c.session(id, "/thaw", nil), nil)
}

// StopSession ends all programs of a session and keeps its data on disk, until StartSession.
func (c *Client) StopSession(ctx context.Context, id string) (api.Session, error) {
	return request[api.Session](ctx, c, http.MethodPost, c.session(id, "/stop", nil), nil)
}

// StartSession starts a stopped session again, as soon as there is room for it. A running one is returned unchanged.
func (c *Client) StartSession(ctx context.Context, id string) (api.Session, error) {
	return request[api.Session](ctx, c, http.MethodPost, c.session(id, "/start", nil), nil)
}

// Definition returns what another session like this one is made from. With withWorkspace that has a workspace of its own where this one
// uses a named one.
func (c *Client) Definition(ctx context.Context, id string, withWorkspace bool) (api.SessionDefinition, error) {
	var query url.Values
	if withWorkspace {
		query = url.Values{"with_workspace": {"true"}}
	}
	return request[api.SessionDefinition](ctx, c, http.MethodGet, c.session(id, "/definition", query), nil)
}

// RenewSession restarts the idle time of a session.
func (c *Client) RenewSession(ctx context.Context, id string) (api.Session, error) {
	return request[api.Session](ctx, c, http.MethodPost, c.session(id, "/renew", nil), nil)
}

// DeleteSession ends a session and waits until nothing is left of it.
func (c *Client) DeleteSession(ctx context.Context, id string) error {
	_, err := c.do(ctx, http.MethodDelete, c.session(id, "", nil), nil, nil)
	return err
}

// Exec runs a program in a session and waits for it.
func (c *Client) Exec(ctx context.Context, id string, req *api.ExecRequest) (api.ExecResult, error) {
	return request[api.ExecResult](ctx, c, http.MethodPost, c.session(id, "/exec", nil), req)
}

// PlanExec returns what Exec would run, and runs nothing.
func (c *Client) PlanExec(ctx context.Context, id string, req *api.ExecRequest) (api.Plan, error) {
	dry := *req
	dry.DryRun = true
	return request[api.Plan](ctx, c, http.MethodPost, c.session(id, "/exec", nil), &dry)
}

// Run makes a session, runs a program in it, and removes it.
func (c *Client) Run(ctx context.Context, req *api.OneShotRequest) (api.ExecResult, error) {
	return request[api.ExecResult](ctx, c, http.MethodPost, target{path: "/v1/exec"}, req)
}

// PlanRun returns what Run would do, and does nothing.
func (c *Client) PlanRun(ctx context.Context, req *api.OneShotRequest) (api.Plan, error) {
	dry := *req
	dry.Exec.DryRun = true
	return request[api.Plan](ctx, c, http.MethodPost, target{path: "/v1/exec"}, &dry)
}

// Instructions returns a model's instructions for a session, or without an id for a new one of a profile.
func (c *Client) Instructions(ctx context.Context, id, profile string) (api.Instructions, error) {
	to := target{path: "/v1/instructions"}.with(queryOf("profile", profile))
	if id != "" {
		to = c.session(id, "/instructions", nil)
	}
	return request[api.Instructions](ctx, c, http.MethodGet, to, nil)
}
