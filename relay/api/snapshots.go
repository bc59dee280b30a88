// SPDX-License-Identifier: Apache-2.0

package api

import (
	"time"

	"github.com/boxd-dev/boxd/quantity"
)

// SnapshotRequest asks for a snapshot of what a stopped session has on disk: the body of POST /v1/sessions/{id}/snapshots.
type SnapshotRequest struct {
	Name string `json:"name"`
}

// Snapshot is a snapshot of what a session has on disk.
type Snapshot struct {
	Name      string        `json:"name"`
	CreatedAt time.Time     `json:"created_at"`
	Size      quantity.Size `json:"size"`  // what it takes up of workspace_quota
	Files     uint64        `json:"files"` // files and directories
}

// SnapshotList is the answer to GET /v1/sessions/{id}/snapshots, the oldest first.
type SnapshotList struct {
	Snapshots []Snapshot `json:"snapshots"`
}
