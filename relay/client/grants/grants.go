// SPDX-License-Identifier: Apache-2.0

// Package grants is the part of boxd's client about roles that somebody has for a time. Only admins may ask.
package grants

import (
	"context"
	"net/http"
	"net/url"
	"strings"

	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

// Client asks a boxd about grants.
type Client struct{ *client.Client }

// List lists them.
func (c Client) List(ctx context.Context) ([]api.Grant, error) {
	var list api.GrantList
	_, err := c.Ask(ctx, http.MethodGet, "/v1/grants", nil, &list)
	return list.Grants, err
}

// Give gives a principal a role for a time.
func (c Client) Give(ctx context.Context, req *api.GrantRequest) (g api.Grant, err error) {
	_, err = c.Ask(ctx, http.MethodPost, "/v1/grants", req, &g)
	return g, err
}

// Revoke ends the grant of a principal.
func (c Client) Revoke(ctx context.Context, principal string) error {
	name := strings.ReplaceAll(url.PathEscape(principal), ".", "%2E")
	_, err := c.Ask(ctx, http.MethodDelete, "/v1/grants/"+name, nil, nil)
	return err
}
