// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/boxd-dev/boxd/relay/api"
)

// FleetNodes lists the nodes of the fleet, by name. All calls of this file need a gateway; a single boxd has no such routes.
func (c *Client) FleetNodes(ctx context.Context) ([]api.FleetNodeState, error) {
	list, err := request[api.FleetNodeList](ctx, c, http.MethodGet, target{path: "/v1/fleet/nodes"}, nil)
	return list.Nodes, err
}

// FleetSessions lists which session of which owner is on which node.
func (c *Client) FleetSessions(ctx context.Context) ([]api.FleetClaim, error) {
	list, err := request[api.FleetClaimList](ctx, c, http.MethodGet, target{path: "/v1/fleet/sessions"}, nil)
	return list.Sessions, err
}

// FleetOwners lists the usage of owners in the whole fleet, those with most sessions first.
func (c *Client) FleetOwners(ctx context.Context) ([]api.FleetOwner, error) {
	list, err := request[api.FleetOwnerList](ctx, c, http.MethodGet, target{path: "/v1/fleet/owners"}, nil)
	return list.Owners, err
}

// FleetEvents lists the events that the gateway has seen since its start, the oldest first.
func (c *Client) FleetEvents(ctx context.Context) ([]api.FleetEvent, error) {
	list, err := request[api.FleetEventList](ctx, c, http.MethodGet, target{path: "/v1/fleet/events"}, nil)
	return list.Events, err
}

// MoveSession moves a session of the caller, or of Owner if that is set, to another node, and returns when it is there.
func (c *Client) MoveSession(ctx context.Context, id string, req *api.FleetMove) (api.FleetMoved, error) {
	return request[api.FleetMoved](ctx, c, http.MethodPost, c.owned(about("/v1/fleet/sessions", id, "/move"), nil), req)
}

// FleetSnapshots lists the snapshots that the fleet has of the caller, or of Owner if that is set, the oldest first.
func (c *Client) FleetSnapshots(ctx context.Context) ([]api.FleetSnapshot, error) {
	list, err := request[api.FleetSnapshotList](ctx, c, http.MethodGet, c.owned(target{path: "/v1/fleet/snapshots"}, nil), nil)
	return list.Snapshots, err
}

// CreateFleetSnapshot makes a snapshot of a session of the caller, or of Owner if that is set, that does not need its node any more.
func (c *Client) CreateFleetSnapshot(ctx context.Context, req *api.FleetSnapshotRequest) (api.FleetSnapshot, error) {
	return request[api.FleetSnapshot](ctx, c, http.MethodPost, c.owned(target{path: "/v1/fleet/snapshots"}, nil), req)
}

// RestoreFleetSnapshot makes a new session like that of a snapshot.
func (c *Client) RestoreFleetSnapshot(ctx context.Context, name string, req *api.FleetRestore) (api.FleetRestored, error) {
	return request[api.FleetRestored](ctx, c, http.MethodPost, c.owned(about("/v1/fleet/snapshots", name, "/restore"), nil), req)
}

// DeleteFleetSnapshot removes a snapshot.
func (c *Client) DeleteFleetSnapshot(ctx context.Context, name string) error {
	_, err := c.do(ctx, http.MethodDelete, c.owned(about("/v1/fleet/snapshots", name, ""), nil), nil, nil)
	return err
}

// FleetOutputs lists the output that the fleet keeps of processes of the caller, or of Owner if that is set, whose box its node has ended
// since it was somebody else's by then; the oldest first.
func (c *Client) FleetOutputs(ctx context.Context) ([]api.FleetOutput, error) {
	list, err := request[api.FleetOutputList](ctx, c, http.MethodGet, c.owned(target{path: "/v1/fleet/outputs"}, nil), nil)
	return list.Outputs, err
}

// DeleteFleetOutput removes such output for good.
func (c *Client) DeleteFleetOutput(ctx context.Context, name string) error {
	_, err := c.do(ctx, http.MethodDelete, c.owned(about("/v1/fleet/outputs", name, ""), nil), nil, nil)
	return err
}

// FleetOutput passes such output to each, piece by piece.
func (c *Client) FleetOutput(ctx context.Context, name string, each func(*api.LogLine) error) error {
	body, err := c.open(ctx, http.MethodGet, c.owned(about("/v1/fleet/outputs", name, ""), nil), nil)
	if err != nil {
		return err
	}
	defer body.Close()
	for d := json.NewDecoder(body); ; {
		var line api.LogLine
		err := d.Decode(&line)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("%w: %w", ErrStreamEnded, err)
		}
		data, err := logData(&line)
		if err != nil {
			return err
		}
		line.Data, line.Base64 = string(data), false
		if err := each(&line); err != nil {
			return err
		}
	}
}

// Cordon keeps new sessions from a node, until Uncordon.
func (c *Client) Cordon(ctx context.Context, node string, req *api.FleetCordonRequest) (api.FleetCordon, error) {
	return request[api.FleetCordon](ctx, c, http.MethodPut, about("/v1/fleet/nodes", node, "/cordon"), req)
}

// Uncordon makes a node accept new sessions again.
func (c *Client) Uncordon(ctx context.Context, node string) error {
	_, err := c.do(ctx, http.MethodDelete, about("/v1/fleet/nodes", node, "/cordon"), nil, nil)
	return err
}

// ForgetNode removes a lost node from a fleet. If it comes back, it is known again.
func (c *Client) ForgetNode(ctx context.Context, node string) error {
	_, err := c.do(ctx, http.MethodDelete, about("/v1/fleet/nodes", node, ""), nil, nil)
	return err
}
