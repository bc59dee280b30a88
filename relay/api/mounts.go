// SPDX-License-Identifier: Apache-2.0

package api

import "time"

// Mount puts a host directory into a box. Mode is "ro", "rw" or "none"; left out, the profile's.
// Owner is for callers with uid 0: the host id that owns what the box makes there. A path that is no UTF-8 is in base64: in the
// place of the other field in a request, and beside it in an answer.
type Mount struct {
	Source string `json:"source"`
	Target string `json:"target"`

	SourceBase64 string `json:"source_base64,omitempty"`
	TargetBase64 string `json:"target_base64,omitempty"`

	Mode  string `json:"mode,omitempty"`
	Owner uint32 `json:"owner,omitempty"`
	// NoSymlinks has the kernel follow no symbolic link of the directory (ELOOP).
	NoSymlinks bool `json:"nosymfollow,omitempty"`
}

// MountRequest asks for a mount of a living session: the body of PUT /v1/sessions/{id}/mounts. Replace has it take
// the place of another one on the target.
type MountRequest struct {
	Source string `json:"source"`
	Target string `json:"target"`

	SourceBase64 string `json:"source_base64,omitempty"`
	TargetBase64 string `json:"target_base64,omitempty"`

	Mode       string `json:"mode,omitempty"` // "ro"; left out, the profile's
	Owner      uint32 `json:"owner,omitempty"`
	NoSymlinks bool   `json:"nosymfollow,omitempty"`
	Replace    bool   `json:"replace,omitempty"`
}

// MountList is the answer to GET /v1/sessions/{id}/mounts.
type MountList struct {
	Mounts []SessionMount `json:"mounts"`
}

// SessionMount is a mount of a session. Live is one that it was given while it lived, and that can be removed.
// Attributes are read back from the kernel: "ro" or "rw", "nosuid", "nodev", "nosymfollow".
type SessionMount struct {
	Source string `json:"source"`
	Target string `json:"target"`

	SourceBase64 string `json:"source_base64,omitempty"`
	TargetBase64 string `json:"target_base64,omitempty"`

	Mode       string     `json:"mode"`
	Owner      uint32     `json:"owner,omitempty"`
	NoSymlinks bool       `json:"nosymfollow,omitempty"`
	Live       bool       `json:"live"`
	Since      *time.Time `json:"since,omitempty"`
	Attributes []string   `json:"attributes,omitempty"`
}

// MountUser is who keeps a mount from being removed: a process of the box, or another mount, which has no pid.
type MountUser struct {
	PID     uint32 `json:"pid,omitempty"`     // in the box
	Program string `json:"program,omitempty"` // its name, as it gives it
	How     string `json:"how"`               // "cwd", "root", "exe", "map", "mount", or the number of a descriptor
	Path    string `json:"path"`              // in the box
}
