// SPDX-License-Identifier: Apache-2.0

// Package mounts is the part of boxd's client that is about mounts of living sessions.
package mounts

import (
	"context"
	"errors"
	"net/http"
	"net/url"

	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

// Add gives a living session a mount; isNew is false if it had that one, or another was replaced.
func Add(ctx context.Context, c *client.Client, session string, req *api.MountRequest) (m api.SessionMount, isNew bool, err error) {
	status, err := c.About(ctx, http.MethodPut, session, "/mounts", req, &m)
	return m, status == http.StatusCreated, err
}

// List lists the mounts of a session: those it was made with, and those it was given.
func List(ctx context.Context, c *client.Client, session string) ([]api.SessionMount, error) {
	var list api.MountList
	_, err := c.About(ctx, http.MethodGet, session, "/mounts", nil, &list)
	return list.Mounts, err
}

// Remove takes a mount from a session that it was given. One in use is refused, and UsersOf tells who uses it;
// with force, what is open of it stays open.
func Remove(ctx context.Context, c *client.Client, session, target string, force bool) error {
	query := url.Values{"target": {target}}
	if force {
		query.Set("force", "true")
	}
	_, err := c.About(ctx, http.MethodDelete, session, "/mounts?"+query.Encode(), nil, nil)
	return err
}

// UsersOf lists who uses the mount that could not be removed for that.
func UsersOf(err error) []api.MountUser {
	if e, ok := errors.AsType[*client.Error](err); ok {
		return e.Users
	}
	return nil
}
