// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"net/http"
	"net/url"

	"github.com/boxd-dev/boxd/relay/api"
)

// AddMount gives a living session a mount; isNew is false if it had that one, or another was replaced.
func (c *Client) AddMount(ctx context.Context, session string, req *api.MountRequest) (m api.SessionMount, isNew bool, err error) {
	return askNew[api.SessionMount](ctx, c, http.MethodPut, c.session(session, "/mounts", nil), req)
}

// Mounts lists the mounts of a session: those it was made with, and those it was given.
func (c *Client) Mounts(ctx context.Context, session string) ([]api.SessionMount, error) {
	list, err := ask[api.MountList](ctx, c, http.MethodGet, c.session(session, "/mounts", nil), nil)
	return list.Mounts, err
}

// RemoveMount takes a mount from a session that it was given. One in use is refused, and MountUsersOf tells who uses it;
// with force, what is open of it stays open.
func (c *Client) RemoveMount(ctx context.Context, session, target string, force bool) error {
	query := queryOf("force", yes(force))
	query.Set("target", target)
	return c.unmount(ctx, session, "/mounts", query)
}

// unmount takes something that is mounted from a session.
func (c *Client) unmount(ctx context.Context, session, rest string, query url.Values) error {
	_, err := c.do(ctx, http.MethodDelete, c.session(session, rest, query), nil, nil)
	return err
}

// MountUsersOf lists who uses the mount that could not be removed for that.
func MountUsersOf(err error) []api.MountUser {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Users
	}
	return nil
}
