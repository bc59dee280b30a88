// SPDX-License-Identifier: Apache-2.0

package isolation

import (
	"path"
)

// SkillsDir is where a box has its skills. It is part of the image's tree, so that no program of the box, and no
// mount that its session was given, is in the way there.
const SkillsDir = "/skills"

// Skill says which tree of files is to be mounted as a skill. It has no path: the keeper makes it of whose store it is.
type Skill struct {
	Owner   string // the principal whose store it is in
	BuiltIn bool   // it is in boxd's own instead
	Drive   string // "owner/project": it is a version of that drive instead
	Tree    string // "": it is about no skill
}

// validSkill checks a change that is about a skill. It can be added, in the place of what is on the target if need
// be, and removed; nobody else's mount can be on a target of its.
func (req *ChangeMount) validSkill() error {
	m := &req.Mount
	switch {
	case !ValidTree(req.Skill.Tree):
		return &Refusal{"skill", req.Skill.Tree, "the name of a tree of the store"}
	case req.Op != MountAdd && req.Op != MountRemove:
		return &Refusal{"op", "", "add, remove"}
	case req.Skill.Drive != "":
		if !ValidDrive(req.Skill.Drive) || req.Skill.BuiltIn || m.Target != DriveTarget(req.Skill.Drive) {
			return &Refusal{"target", m.Target, DrivesDir + "/ with the name of the drive"}
		}
	case !CleanAbsolute(m.Target) || path.Dir(m.Target) != SkillsDir:
		return &Refusal{"target", m.Target, "a name in " + SkillsDir}
	}
	if m.Source != "" || m.Writable || m.Owner != 0 || req.Made != "" {
		return &Refusal{"skill", req.Skill.Tree, "nothing of other mounts"}
	}
	return nil
}
