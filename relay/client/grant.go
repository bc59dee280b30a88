// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"net/http"

	"github.com/boxd-dev/boxd/relay/api"
)

// Grants lists the roles that somebody has for a time. Only admins may.
func (c *Client) Grants(ctx context.Context) ([]api.Grant, error) {
	var list api.GrantList
	_, err := c.do(ctx, http.MethodGet, "/v1/grants", nil, &list)
	return list.Grants, err
}

// Grant gives a principal a role for a time. Only admins may.
func (c *Client) Grant(ctx context.Context, req *api.GrantRequest) (g api.Grant, err error) {
	_, err = c.do(ctx, http.MethodPost, "/v1/grants", req, &g)
	return g, err
}

// Revoke ends the grant of a principal. Only admins may.
func (c *Client) Revoke(ctx context.Context, principal string) error {
	_, err := c.do(ctx, http.MethodDelete, "/v1/grants/"+segment(principal), nil, nil)
	return err
}

// Ask makes a request of a path: in is sent as JSON, or as it is if it is an io.Reader; out is read, if not nil.
func (c *Client) Ask(ctx context.Context, method, path string, in, out any) (int, error) {
	return c.do(ctx, method, path, in, out)
}
