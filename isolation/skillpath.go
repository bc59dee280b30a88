// SPDX-License-Identifier: Apache-2.0

// Files of skills and drives lie in boxd's state directory at Store/<owner>/Trees/<tree>. boxd puts them there, and
// the keeper mounts nothing else as a skill.

package isolation

import (
	"crypto/sha256"
	"path"
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
	const digits = "0123456789abcdef" // encoding/hex would bring fmt, which PID 1 of a box is not to have
	sum := sha256.Sum256([]byte(owner))
	text := []byte("u-")
	for _, b := range sum[:16] {
		text = append(text, digits[b>>4], digits[b&15])
	}
	return string(text)
}

// SkillPath is where the tree of a skill is, below the state directory.
func SkillPath(k *Skill) string {
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
