// SPDX-License-Identifier: Apache-2.0

// Package statedir defines where boxd's state directory has a file tree (a skill, a drive, an image): at STORE/OWNER/trees/TREE.
// boxd puts trees there, and the keeper mounts nothing else as a skill. PID 1 of a box neither knows this nor links this package.
package statedir

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"path"
	"strings"

	"github.com/boxd-dev/boxd/isolation"
)

// Parts of the path.
const (
	SkillStore   = "skills"
	DriveStore   = "drives" // the store of drives, with the same layout as that of skills
	StoreTrees   = "trees"
	BuiltInOwner = "builtin" // owner of the skills that come with boxd; no principal has this name
)

// Daemon has boxd's own small records: its keys, grants and switches.
const Daemon = "daemon"

// Trees of images are in ImageTrees beside the workspaces; ImageRoot in a tree becomes / of a
// box.
const (
	ImageTrees = "image-trees"
	ImageRoot  = "rootfs"
)

// Snapshots holds, beside the workspaces, the snapshots of each box, in a directory of its key.
const Snapshots = "snapshots"

// HostBases holds, beside the workspaces, what roots of the host's programs have in common that boxes can write to.
const HostBases = "host-bases"

// Removed holds, beside the workspaces, what is being removed.
const Removed = "removed"

// OwnerDir returns the directory name of a principal: no path contains a principal's name.
func OwnerDir(owner string) string {
	sum := sha256.Sum256([]byte(owner))
	return "u-" + hex.EncodeToString(sum[:16])
}

// NewTree returns a name, of no other tree, for a tree with this digest ("sha256:…").
func NewTree(digest string) string {
	return strings.TrimPrefix(digest, "sha256:")[:24] + "-" + strings.ToLower(rand.Text())[:12]
}

// SkillPath returns where the tree of a skill is, below the state directory.
func SkillPath(k *isolation.Skill) string {
	space := OwnerDir(k.Owner)
	if k.BuiltIn {
		space = BuiltInOwner
	}
	store := SkillStore
	if k.Drive != "" {
		store = DriveStore
	}
	return path.Join(store, space, StoreTrees, k.Tree)
}
