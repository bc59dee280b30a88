// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"

	"github.com/boxd-dev/boxd/relay/api"
)

// PlanSession says what Create would make, and makes nothing.
func (c *Client) PlanSession(ctx context.Context, req *api.SessionRequest) (p api.Plan, err error) {
	dry := *req
	dry.DryRun = true
	_, err = c.do(ctx, http.MethodPost, "/v1/sessions", &dry, &p)
	return p, err
}

// PlanExec says what Exec would run, and runs nothing.
func (c *Client) PlanExec(ctx context.Context, id string, req *api.ExecRequest) (p api.Plan, err error) {
	path, err := c.path(id, "/exec")
	if err == nil {
		dry := *req
		dry.DryRun = true
		_, err = c.do(ctx, http.MethodPost, path, &dry, &p)
	}
	return p, err
}

// PlanRun says what Run would do, and does nothing.
func (c *Client) PlanRun(ctx context.Context, req *api.OneShotRequest) (p api.Plan, err error) {
	dry := *req
	dry.Exec.DryRun = true
	_, err = c.do(ctx, http.MethodPost, "/v1/exec", &dry, &p)
	return p, err
}

// Instructions are what a model is told of a session, or without an id of one of a profile that would be made.
func (c *Client) Instructions(ctx context.Context, id, profile string) (i api.Instructions, err error) {
	path := "/v1/instructions"
	if profile != "" {
		path += "?" + url.Values{"profile": {profile}}.Encode()
	}
	if id != "" {
		path, err = c.path(id, "/instructions")
	}
	if err == nil {
		_, err = c.do(ctx, http.MethodGet, path, nil, &i)
	}
	return i, err
}

// Usage tells what the caller, or the owner that it names, has used on the last days, or everybody; 0 days are as many as boxd finds usual.
func (c *Client) Usage(ctx context.Context, days int, all bool) (list api.UsageList, err error) {
	query := url.Values{}
	if days > 0 {
		query.Set("days", strconv.Itoa(days))
	}
	if all {
		query.Set("all", "true")
	}
	if c.Owner != "" {
		query.Set("owner", c.Owner)
	}
	_, err = c.do(ctx, http.MethodGet, "/v1/usage?"+query.Encode(), nil, &list)
	return list, err
}
