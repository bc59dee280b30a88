// SPDX-License-Identifier: Apache-2.0

package isolation

import (
	"path"
)

// SkillsDir is where a box has its skills. It is part of the image's tree, so that no program of
// the box, and no mount of its session, can be in the way there.
const SkillsDir = "/skills"

// Skill says which tree of files is to be mounted as a skill. It contains no path: the keeper
// builds that from the owner.
type Skill struct {
	Owner   string // the principal in whose store it is
	BuiltIn bool   // it is in boxd's own store instead
	Drive   string // "owner/project": it is a version of that drive instead
	Tree    string // "": the change is not about a skill
}

// validSkill checks a change that is about a skill. A skill can be added, replacing what is on
// its target, and removed; no other mount can be on the target of a skill.
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
