// SPDX-License-Identifier: Apache-2.0

// This file is the part of boxd's client about roles that somebody has for a time. Only admins may ask.

package client

import (
	"context"
	"net/http"
	"net/url"
	"strings"

	"github.com/boxd-dev/boxd/relay/api"
)

// Grants asks a boxd about grants.
type Grants struct{ *Client }

// List lists them.
func (c Grants) List(ctx context.Context) ([]api.Grant, error) {
	var list api.GrantList
	_, err := c.Ask(ctx, http.MethodGet, "/v1/grants", nil, &list)
	return list.Grants, err
}

// Give gives a principal a role for a time.
func (c Grants) Give(ctx context.Context, req *api.GrantRequest) (g api.Grant, err error) {
	_, err = c.Ask(ctx, http.MethodPost, "/v1/grants", req, &g)
	return g, err
}

// Revoke ends the grant of a principal.
func (c Grants) Revoke(ctx context.Context, principal string) error {
	name := strings.ReplaceAll(url.PathEscape(principal), ".", "%2E")
	_, err := c.Ask(ctx, http.MethodDelete, "/v1/grants/"+name, nil, nil)
	return err
}
