// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"net/http"

	"github.com/boxd-dev/boxd/relay/api"
)

// Ready reports whether boxd can start sessions.
func (c *Client) Ready(ctx context.Context) error {
	_, err := c.do(ctx, http.MethodGet, target{path: "/readyz"}, nil, &api.Health{})
	return err
}

// Status describes the daemon.
func (c *Client) Status(ctx context.Context) (api.Status, error) {
	return request[api.Status](ctx, c, http.MethodGet, target{path: "/v1/status"}, nil)
}

// Configuration returns the effective settings of box.toml. It is for operators.
func (c *Client) Configuration(ctx context.Context) (api.Configuration, error) {
	return request[api.Configuration](ctx, c, http.MethodGet, target{path: "/v1/config"}, nil)
}

// Doctor examines the host.
func (c *Client) Doctor(ctx context.Context) (api.Doctor, error) {
	return request[api.Doctor](ctx, c, http.MethodGet, target{path: "/v1/doctor"}, nil)
}

// Profiles lists the configured profiles.
func (c *Client) Profiles(ctx context.Context) (api.ProfileList, error) {
	return request[api.ProfileList](ctx, c, http.MethodGet, target{path: "/v1/profiles"}, nil)
}

// Drain makes boxd refuse new sessions, until Undrain; only root may.
func (c *Client) Drain(ctx context.Context, req *api.DrainRequest) (api.Drain, error) {
	return request[api.Drain](ctx, c, http.MethodPost, target{path: "/v1/drain"}, req)
}

// Undrain makes boxd accept new sessions again; only root may.
func (c *Client) Undrain(ctx context.Context) error {
	_, err := c.do(ctx, http.MethodDelete, target{path: "/v1/drain"}, nil, nil)
	return err
}

// Usage returns the usage of the caller, or of Owner, over the last days, or with all that of every owner; 0 days means
// boxd's default.
func (c *Client) Usage(ctx context.Context, days int, all bool) (api.UsageList, error) {
	to := c.owned(target{path: "/v1/usage"}, queryOf("days", positive(days), "all", yes(all)))
	return request[api.UsageList](ctx, c, http.MethodGet, to, nil)
}

// Grants lists the temporary roles of principals. Only admins may use grants.
func (c *Client) Grants(ctx context.Context) ([]api.Grant, error) {
	list, err := request[api.GrantList](ctx, c, http.MethodGet, target{path: "/v1/grants"}, nil)
	return list.Grants, err
}

// Grant gives a principal a temporary role.
func (c *Client) Grant(ctx context.Context, req *api.GrantRequest) (api.Grant, error) {
	return request[api.Grant](ctx, c, http.MethodPost, target{path: "/v1/grants"}, req)
}

// RevokeGrant ends the grant of a principal.
func (c *Client) RevokeGrant(ctx context.Context, principal string) error {
	_, err := c.do(ctx, http.MethodDelete, about("/v1/grants", principal, ""), nil, nil)
	return err
}
