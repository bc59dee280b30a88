// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation"
)

// ActiveDrive is the version of a drive that a session uses.
type ActiveDrive struct {
	Name    string    `json:"name"` // "owner/project"
	Version int       `json:"version"`
	Since   time.Time `json:"since"`
	Digest  string    `json:"digest"`
	Tree    string    `json:"tree"` // its files, relative to the store
	Attrs   []string  `json:"attributes,omitempty"`
	// Earlier are the trees mounted before, which programs may still use. They are kept until the session ends.
	Earlier []string `json:"earlier,omitempty"`
	Gone    bool     `json:"gone,omitempty"` // no longer mounted, only its trees are held
}

// Bounds of the drives of a session.
const (
	MaxDrives  = 16 // at once
	MaxEarlier = 64 // earlier versions of one drive in a session
)

// ValidDriveName refuses an invalid name of a drive.
func ValidDriveName(field, name string) error {
	if isolation.ValidDrive(name) {
		return nil
	}
	return fault.Field(field, name, `OWNER/PROJECT, each 1 to 64 of a-z, 0-9, "-", "_" and ".", a letter or digit first`)
}

// DriveRef parses NAME[@VERSION]; version 0 is the latest.
func DriveRef(field, text string) (name string, version int, err error) {
	name, number, pinned := strings.Cut(text, "@")
	if err := ValidDriveName(field, name); err != nil {
		return "", 0, err
	}
	if pinned {
		if version, err = strconv.Atoi(number); err != nil || version < 1 {
			return "", 0, fault.Field(field, text, "NAME, or NAME@VERSION with a version number")
		}
	}
	return name, version, nil
}

// readDrives parses the requested drives, each once. It does not check that they exist.
func readDrives(requested []string) ([]string, error) {
	if len(requested) > MaxDrives {
		return nil, fault.Field("drives", len(requested), fmt.Sprintf("at most %d", MaxDrives))
	}
	list := slices.Sorted(slices.Values(requested))
	var names []string
	for i, text := range list {
		name, _, err := DriveRef("drives", text)
		if err != nil {
			return nil, err
		}
		if slices.Contains(names, name) {
			return nil, fault.Field(fmt.Sprintf("drives[%d]", i), text, "a drive that is not listed twice")
		}
		names = append(names, name)
	}
	return list, nil
}
