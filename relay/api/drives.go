// SPDX-License-Identifier: Apache-2.0

package api

import (
	"time"

	"github.com/boxd-dev/boxd/quantity"
)

// Drive is a row of versions of a directory, the newest last. KeepVersions and KeepAge are left out where they are those
// of the configuration; 0 is no bound.
type Drive struct {
	Name         string             `json:"name"` // "owner/project"
	CreatedAt    time.Time          `json:"created_at"`
	KeepVersions *int               `json:"keep_versions,omitempty"`
	KeepAge      *quantity.Duration `json:"keep_age,omitempty"`
	Push         bool               `json:"push"` // no version goes before it is said to be pushed
	Versions     []DriveVersion     `json:"versions"`
}

// DriveVersion is what a drive was at a time.
type DriveVersion struct {
	Version   int       `json:"version"`
	Digest    string    `json:"digest"` // of all files: "sha256:…"
	Origin    string    `json:"origin,omitempty"`
	Bytes     int64     `json:"bytes"`
	Entries   int       `json:"entries"`
	CreatedAt time.Time `json:"created_at"`
	PushedAt  time.Time `json:"pushed_at,omitzero"`
	Sessions  int       `json:"sessions"` // how many have it, or have had it
}

// DriveList lists drives, by name.
type DriveList struct {
	Drives []Drive `json:"drives"`
}

// DriveChange asks for another way to keep a drive. What is left out stays.
type DriveChange struct {
	KeepVersions *int               `json:"keep_versions,omitempty"`
	KeepAge      *quantity.Duration `json:"keep_age,omitempty"`
	Push         *bool              `json:"push,omitempty"`
}

// DrivePushed says that a version is elsewhere too.
type DrivePushed struct {
	Version int `json:"version"`
}

// DriveEntry is a file or directory of a version of a drive.
type DriveEntry struct {
	Path       string `json:"path"` // from the top of the drive
	Type       string `json:"type"` // "file" or "directory"
	Size       int64  `json:"size"`
	SHA256     string `json:"sha256,omitempty"`
	Executable bool   `json:"executable,omitempty"`
}

// DriveIndex is a page of what a version has; Next is the offset of the following one, left out at the end.
type DriveIndex struct {
	Version DriveVersion `json:"version"`
	Entries []DriveEntry `json:"entries"`
	Next    int          `json:"next,omitempty"`
}

// DriveText is a text for a prompt.
type DriveText struct {
	Version int    `json:"version"`
	Text    string `json:"text" show:"never"`
}

// SessionDrive is a drive of a session.
type SessionDrive struct {
	Name       string    `json:"name"`
	Target     string    `json:"target"` // its directory in the box
	Version    int       `json:"version"`
	Digest     string    `json:"digest"`
	Since      time.Time `json:"since"`
	Attributes []string  `json:"attributes,omitempty"` // of the mount, read back from the kernel
	Earlier    int       `json:"earlier,omitempty"`    // versions that it had before, which stay until it ends
}
