// SPDX-License-Identifier: Apache-2.0

// This file is the part of boxd's client that is about mounts of living sessions.

package client

import (
	"context"
	"errors"
	"net/http"
	"net/url"

	"github.com/boxd-dev/boxd/relay/api"
)

// AddMount gives a living session a mount; isNew is false if it had that one, or another was replaced.
func AddMount(ctx context.Context, c *Client, session string, req *api.MountRequest) (m api.SessionMount, isNew bool, err error) {
	status, err := c.About(ctx, http.MethodPut, session, "/mounts", req, &m)
	return m, status == http.StatusCreated, err
}

// ListMounts lists the mounts of a session: those it was made with, and those it was given.
func ListMounts(ctx context.Context, c *Client, session string) ([]api.SessionMount, error) {
	var list api.MountList
	_, err := c.About(ctx, http.MethodGet, session, "/mounts", nil, &list)
	return list.Mounts, err
}

// RemoveMount takes a mount from a session that it was given. One in use is refused, and UsersOf tells who uses it;
// with force, what is open of it stays open.
func RemoveMount(ctx context.Context, c *Client, session, target string, force bool) error {
	query := url.Values{"target": {target}}
	if force {
		query.Set("force", "true")
	}
	_, err := c.About(ctx, http.MethodDelete, session, "/mounts?"+query.Encode(), nil, nil)
	return err
}

// MountUsersOf lists who uses the mount that could not be removed for that.
func MountUsersOf(err error) []api.MountUser {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Users
	}
	return nil
}
