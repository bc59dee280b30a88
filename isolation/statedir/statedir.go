// SPDX-License-Identifier: Apache-2.0

// Package statedir says where boxd's state directory has the files of skills, drives and images: at Store/<owner>/Trees/<tree>.
// boxd puts them there, and the keeper mounts nothing else as a skill. PID 1 of a box knows nothing of it, nor links what it needs.
package statedir

import (
	"crypto/sha256"
	"encoding/hex"
	"path"

	"github.com/boxd-dev/boxd/isolation"
)

// Parts of the path.
const (
	SkillStore   = "skills"
	DriveStore   = "drives" // the store of drives, which is built as that of skills
	StoreTrees   = "trees"
	BuiltInOwner = "builtin" // the space of the skills that boxd brings; no principal's has this name
)

// Trees of images lie in ImageTrees beside the workspaces; what becomes / of a box is ImageRoot in one.
const (
	ImageTrees = "image-trees"
	ImageRoot  = "rootfs"
)

// OwnerDir is that of a principal: no name of anybody is in a path.
func OwnerDir(owner string) string {
	sum := sha256.Sum256([]byte(owner))
	return "u-" + hex.EncodeToString(sum[:16])
}

// SkillPath is where the tree of a skill is, below the state directory.
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
