// SPDX-License-Identifier: Apache-2.0

// Package skillpath says where the files of skills and drives are in boxd's state directory: Store/<space>/Trees/<tree>. boxd puts
// them there, and the keeper mounts nothing else as a skill.
package skillpath

import (
	"crypto/sha256"
	"encoding/hex"
	"path"

	"github.com/boxd-dev/boxd/isolation"
)

// Parts of the path.
const (
	Store   = "skills"
	Drives  = "drives" // the store of drives, which is built as that of skills
	Trees   = "trees"
	BuiltIn = "builtin" // the space of the skills that boxd brings; no principal's has this name
)

// Trees of images lie in ImageTrees beside the workspaces; what becomes / of a box is ImageRoot in one.
const (
	ImageTrees = "image-trees"
	ImageRoot  = "rootfs"
)

// Space is that of a principal: no name of anybody is in a path.
func Space(owner string) string {
	sum := sha256.Sum256([]byte(owner))
	return "u-" + hex.EncodeToString(sum[:16])
}

// Of is where the tree of a skill is, below the state directory.
func Of(k *isolation.Skill) string {
	space := Space(k.Owner)
	if k.BuiltIn {
		space = BuiltIn
	}
	store := Store
	if k.Drive != "" {
		store = Drives
	}
	return path.Join(store, space, Trees, k.Tree)
}
