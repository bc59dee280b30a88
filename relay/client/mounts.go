// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"encoding/base64"
	"errors"
	"net/http"
	"net/url"

	"github.com/boxd-dev/boxd/relay/api"
)

// AddMount adds a mount to a living session; isNew is false if it had that mount, or another one was replaced.
func (c *Client) AddMount(ctx context.Context, session string, req *api.MountRequest) (m api.SessionMount, isNew bool, err error) {
	return requestNew[api.SessionMount](ctx, c, http.MethodPut, c.session(session, "/mounts", nil), req)
}

// Mounts lists the mounts of a session: the initial ones and those added later.
func (c *Client) Mounts(ctx context.Context, session string) ([]api.SessionMount, error) {
	list, err := request[api.MountList](ctx, c, http.MethodGet, c.session(session, "/mounts", nil), nil)
	return list.Mounts, err
}

// RemoveMount removes an added mount from a session. One in use is refused, and MountUsersOf lists its users; with
// force, files that are open in it stay open.
func (c *Client) RemoveMount(ctx context.Context, session, target string, force bool) error {
	query := queryOf("force", yes(force))
	query.Set("target", target)
	return c.unmount(ctx, session, "/mounts", query)
}

// PathOf returns a path of an answer as the bytes that it is: those in base64, if there are any, else the text.
func PathOf(text, encoded string) string {
	if data, err := base64.StdEncoding.DecodeString(encoded); err == nil && len(data) > 0 {
		return string(data)
	}
	return text
}

// unmount removes a mounted item from a session.
func (c *Client) unmount(ctx context.Context, session, rest string, query url.Values) error {
	_, err := c.do(ctx, http.MethodDelete, c.session(session, rest, query), nil, nil)
	return err
}

// MountUsersOf lists the processes because of which a mount could not be removed.
func MountUsersOf(err error) []api.MountUser {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Users
	}
	return nil
}
