// SPDX-License-Identifier: Apache-2.0

package api

import (
	"time"

	"github.com/boxd-dev/boxd/quantity"
)

// WorkspaceRequest asks for a workspace with a name: the body of POST /v1/workspaces.
type WorkspaceRequest struct {
	Name   string         `json:"name"`
	Quota  *quantity.Size `json:"quota,omitempty"`  // 0: none; left out: that of sessions of the default profile
	Inodes *int           `json:"inodes,omitempty"` // files and directories, the same
}

// WorkspaceChange asks for another quota of a workspace. What is left out stays.
type WorkspaceChange struct {
	Quota  *quantity.Size `json:"quota,omitempty"`
	Inodes *int           `json:"inodes,omitempty"`
}

// WorkspaceKept asks that a session ends and its own workspace gets a name: the body of POST /v1/sessions/{id}/keep.
type WorkspaceKept struct {
	Workspace string `json:"workspace"`
}

// Workspace is one with a name. Enforcement is what keeps its quota: "project-quota", "store" or "none"; "" if it has
// none. Usage is left out where nothing counts it.
type Workspace struct {
	Name        string        `json:"name"`
	Owner       string        `json:"owner"`
	CreatedAt   time.Time     `json:"created_at"`
	Quota       quantity.Size `json:"quota"`
	Inodes      int           `json:"inodes"`
	Enforcement string        `json:"enforcement,omitempty"`
	Usage       *Quota        `json:"usage,omitempty"`
	Sessions    []string      `json:"sessions"` // ids of those it is lent to
}

// WorkspaceList is the answer to GET /v1/workspaces.
type WorkspaceList struct {
	Workspaces []Workspace `json:"workspaces"`
}

// Input is a workspace with a name that a session may read, and no more; no symbolic link of it is followed.
type Input struct {
	Workspace string `json:"workspace"`
	Target    string `json:"target,omitempty"` // default /mnt/WORKSPACE

	TargetBase64 string `json:"target_base64,omitempty"` // of a target that is no UTF-8
}
