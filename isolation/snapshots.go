// SPDX-License-Identifier: Apache-2.0

package isolation

import (
	"strconv"
	"strings"
)

// SnapshotOp is what ChangeSnapshots does.
type SnapshotOp uint8

// The operations.
const (
	SnapshotList SnapshotOp = iota
	SnapshotMake
	SnapshotRestore
	SnapshotRemove
)

// Bounds of snapshots, so that a list of them fits a packet.
const (
	MaxSnapshots    = 64 // of one box
	MaxSnapshotName = 64 // bytes
)

// ChangeSnapshots lists, makes, restores or removes snapshots of a box's files on disk. A snapshot is made and restored only
// while the box does not run. The reply lists the snapshots afterwards.
type ChangeSnapshots struct {
	Key  string
	Op   SnapshotOp
	Name string // "" with SnapshotList
}

// Snapshot is a snapshot of a box's files on disk.
type Snapshot struct {
	Name    string
	Created uint64 // nanoseconds since 1970
	Bytes   uint64 // its share of the box's quota
	Files   uint64 // files and directories
}

// Snapshots is the reply to a ChangeSnapshots, the oldest first.
type Snapshots struct{ List []Snapshot }

// ValidSnapshotName reports whether a snapshot can have this name.
func ValidSnapshotName(name string) bool {
	const chars = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"
	return name != "" && len(name) <= MaxSnapshotName && strings.Trim(name, chars) == "" && !strings.ContainsAny(name[:1], ".-")
}

// Validate checks what can be checked without the host.
func (m *ChangeSnapshots) Validate() error {
	if !ValidKey(m.Key) || m.Op == SnapshotList && m.Name != "" || m.Op != SnapshotList && !ValidSnapshotName(m.Name) {
		return &Refusal{"name", m.Name, "1 to " + strconv.Itoa(MaxSnapshotName) + " of a-z, A-Z, 0-9, ., _ and -, the first a letter, a digit or _"}
	}
	return nil
}

func (m *ChangeSnapshots) fields(c *codec) {
	c.str(&m.Key)
	small(c, &m.Op)
	c.refuse(m.Op > SnapshotRemove)
	c.str(&m.Name)
}

func (m *Snapshots) fields(c *codec) { list(c, &m.List, 28) }

func (s *Snapshot) fields(c *codec) {
	c.str(&s.Name)
	c.u64(&s.Created, &s.Bytes, &s.Files)
}
