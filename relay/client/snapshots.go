// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"net/http"

	"github.com/boxd-dev/boxd/relay/api"
)

func (c *Client) snapshot(session, name, what string) target {
	return c.session(session, "/snapshots/"+segment(name)+what, nil)
}

// Snapshots lists the snapshots of a session, the oldest first.
func (c *Client) Snapshots(ctx context.Context, session string) ([]api.Snapshot, error) {
	list, err := request[api.SnapshotList](ctx, c, http.MethodGet, c.session(session, "/snapshots", nil), nil)
	return list.Snapshots, err
}

// CreateSnapshot makes a snapshot of a stopped session's data on disk.
func (c *Client) CreateSnapshot(ctx context.Context, session, name string) (api.Snapshot, error) {
	return request[api.Snapshot](ctx, c, http.MethodPost, c.session(session, "/snapshots", nil), &api.SnapshotRequest{Name: name})
}

// RestoreSnapshot replaces a stopped session's data on disk by that of a snapshot.
func (c *Client) RestoreSnapshot(ctx context.Context, session, name string) (api.Session, error) {
	return request[api.Session](ctx, c, http.MethodPost, c.snapshot(session, name, "/restore"), nil)
}

// DeleteSnapshot removes a snapshot.
func (c *Client) DeleteSnapshot(ctx context.Context, session, name string) error {
	_, err := c.do(ctx, http.MethodDelete, c.snapshot(session, name, ""), nil, nil)
	return err
}
