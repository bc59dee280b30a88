// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"net/http"
	"net/url"
	"time"

	"github.com/boxd-dev/boxd/relay/api"
)

// CreateSession makes a session, or returns the one of that id if it does not differ in what req asks for;
// isNew tells which.
func (c *Client) CreateSession(ctx context.Context, req *api.SessionRequest) (s api.Session, isNew bool, err error) {
	return askNew[api.Session](ctx, c, http.MethodPost, target{path: "/v1/sessions"}, req)
}

// PlanSession says what CreateSession would make, and makes nothing.
func (c *Client) PlanSession(ctx context.Context, req *api.SessionRequest) (api.Plan, error) {
	dry := *req
	dry.DryRun = true
	return ask[api.Plan](ctx, c, http.MethodPost, target{path: "/v1/sessions"}, &dry)
}

// Session describes a session.
func (c *Client) Session(ctx context.Context, id string) (api.Session, error) {
	return ask[api.Session](ctx, c, http.MethodGet, c.session(id, "", nil), nil)
}

// Sessions lists the sessions of the caller, or of Owner if that is set; without Owner, all lists those of every owner.
func (c *Client) Sessions(ctx context.Context, all bool) ([]api.Session, error) {
	return c.FindSessions(ctx, &SessionFilter{All: all})
}

// SessionFilter says which sessions a list is to have.
type SessionFilter struct {
	All          bool              // of every owner, unless Owner is set
	Labels       map[string]string // that each has
	Metadata     map[string]string // that each has
	WithMetadata bool              // tell it
	WithUsage    bool              // tell what each uses
}

// FindSessions lists the sessions of the caller, or of Owner if that is set, that have what is asked for.
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
		list, err := ask[api.SessionList](ctx, c, http.MethodGet, c.owned(target{path: "/v1/sessions"}, query), nil)
		if all = append(all, list.Sessions...); err != nil || list.Next == "" {
			return all, err
		}
		query.Set("after", list.Next)
	}
}

// UsageHistory tells what a session has used lately: the samples taken after a time, or with a zero time all there are.
func (c *Client) UsageHistory(ctx context.Context, id string, after time.Time) (api.UsageHistory, error) {
	query := url.Values{}
	if !after.IsZero() {
		query.Set("after", after.Format(time.RFC3339Nano))
	}
	return ask[api.UsageHistory](ctx, c, http.MethodGet, c.session(id, "/usage/history", query), nil)
}

// ChangeSession gives a living session other limits or times, all that change asks for or nothing.
func (c *Client) ChangeSession(ctx context.Context, id string, change *api.SessionChange) (api.Session, error) {
	return ask[api.Session](ctx, c, http.MethodPatch, c.session(id, "", nil), change)
}

// FreezeSession stops all programs of a session where they are, and returns when that is true.
func (c *Client) FreezeSession(ctx context.Context, id string) (api.Session, error) {
	return ask[api.Session](ctx, c, http.MethodPost, c.session(id, "/freeze", nil), nil)
}

// ThawSession lets the programs of a frozen session go on.
func (c *Client) ThawSession(ctx context.Context, id string) (api.Session, error) {
	return ask[api.Session](ctx, c, http.MethodPost, c.session(id, "/thaw", nil), nil)
}

// StopSession ends all programs of a session and keeps what it has on disk, until StartSession.
func (c *Client) StopSession(ctx context.Context, id string) (api.Session, error) {
	return ask[api.Session](ctx, c, http.MethodPost, c.session(id, "/stop", nil), nil)
}

// StartSession starts a stopped session again, as soon as there is room for it. One that runs is returned as it is.
func (c *Client) StartSession(ctx context.Context, id string) (api.Session, error) {
	return ask[api.Session](ctx, c, http.MethodPost, c.session(id, "/start", nil), nil)
}

// RenewSession begins the idle time of a session anew.
func (c *Client) RenewSession(ctx context.Context, id string) (api.Session, error) {
	return ask[api.Session](ctx, c, http.MethodPost, c.session(id, "/renew", nil), nil)
}

// DeleteSession ends a session and waits until nothing is left of it.
func (c *Client) DeleteSession(ctx context.Context, id string) error {
	_, err := c.do(ctx, http.MethodDelete, c.session(id, "", nil), nil, nil)
	return err
}

// Exec runs a program in a session and waits for it.
func (c *Client) Exec(ctx context.Context, id string, req *api.ExecRequest) (api.ExecResult, error) {
	return ask[api.ExecResult](ctx, c, http.MethodPost, c.session(id, "/exec", nil), req)
}

// PlanExec says what Exec would run, and runs nothing.
func (c *Client) PlanExec(ctx context.Context, id string, req *api.ExecRequest) (api.Plan, error) {
	dry := *req
	dry.DryRun = true
	return ask[api.Plan](ctx, c, http.MethodPost, c.session(id, "/exec", nil), &dry)
}

// Run makes a session, runs a program in it, and removes it.
func (c *Client) Run(ctx context.Context, req *api.OneShotRequest) (api.ExecResult, error) {
	return ask[api.ExecResult](ctx, c, http.MethodPost, target{path: "/v1/exec"}, req)
}

// PlanRun says what Run would do, and does nothing.
func (c *Client) PlanRun(ctx context.Context, req *api.OneShotRequest) (api.Plan, error) {
	dry := *req
	dry.Exec.DryRun = true
	return ask[api.Plan](ctx, c, http.MethodPost, target{path: "/v1/exec"}, &dry)
}

// Instructions are what a model is told of a session, or without an id of one of a profile that would be made.
func (c *Client) Instructions(ctx context.Context, id, profile string) (api.Instructions, error) {
	to := target{path: "/v1/instructions"}.with(queryOf("profile", profile))
	if id != "" {
		to = c.session(id, "/instructions", nil)
	}
	return ask[api.Instructions](ctx, c, http.MethodGet, to, nil)
}
