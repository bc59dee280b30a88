// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"time"

	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"

	"github.com/boxd-dev/boxd/isolation"
)

// listSnapshots lists the snapshots of a session.
func listSnapshots(c *Call) (any, error) {
	s, err := c.session()
	if err != nil {
		return nil, err
	}
	list, err := c.Sup.Snapshots(c.Context(), s)
	if err != nil {
		return nil, err
	}
	answer := api.SnapshotList{Snapshots: make([]api.Snapshot, len(list))}
	for i := range list {
		answer.Snapshots[i] = snapshotAnswer(&list[i])
	}
	return answer, nil
}

// createSnapshot makes a snapshot of a stopped session.
func createSnapshot(c *Call) (any, error) {
	s, err := c.session()
	if err != nil {
		return nil, err
	}
	var in api.SnapshotRequest
	if err := c.decodeBody(&in, maxSessionBody); err != nil {
		return nil, err
	}
	created, err := c.Sup.CreateSnapshot(c.Context(), s, in.Name)
	if err != nil {
		return nil, err
	}
	return Created{Body: snapshotAnswer(&created)}, nil
}

// restoreSnapshot restores a stopped session from a snapshot.
func restoreSnapshot(c *Call) (any, error) {
	s, err := c.session()
	if err != nil {
		return nil, err
	}
	if err := c.Sup.RestoreSnapshot(c.Context(), s, c.Path.Snapshot); err != nil {
		return nil, err
	}
	return sessionAnswer(s.Info()), nil
}

// deleteSnapshot removes a snapshot.
func deleteSnapshot(c *Call) (any, error) {
	s, err := c.session()
	if err != nil {
		return nil, err
	}
	return noContent{}, c.Sup.RemoveSnapshot(c.Context(), s, c.Path.Snapshot)
}

func snapshotAnswer(s *isolation.Snapshot) api.Snapshot {
	return api.Snapshot{Name: s.Name, CreatedAt: time.Unix(0, int64(s.Created)).UTC(), Size: quantity.Size(s.Bytes), Files: s.Files}
}
