// SPDX-License-Identifier: Apache-2.0

package isolation

import "strconv"

// MountOp is what is done to a mount of a living box.
type MountOp uint8

// The operations.
const (
	MountAdd     MountOp = iota + 1
	MountReplace         // by another directory, so that the target is never bare
	MountRemove
	MountTidy    // after the box has ended: remove the directories that were made for its mounts
	MountLook    // change nothing: what there is, to find out later what a change has come to that was interrupted
	MountMissing // change nothing, from outside: where on the host a directory is, and what a target below it lacks
	MountFollow  // change nothing, of no box: where a path leads
)

// MaxMountUsers is how many of those who use a mount are named.
const MaxMountUsers = 16

// MaxStacked is how many mounts can be on one target: on kernels before 6.5 one that was replaced stays below.
const MaxStacked = 64

// MaxLooked is how many mounts of a living box there can be, at most.
const MaxLooked = MaxMounts * MaxStacked

// ChangeMount asks for another mount of a living box, in the place of one, or for the end of one.
type ChangeMount struct {
	Key    string
	Op     MountOp
	Caller Caller
	Mount  Mount    // what is added; to remove and to look, only the target; to tidy, the mount that Made is in, also of what is missing
	IDs    []uint64 // of the mounts on the target, the uppermost first: to replace and to remove
	Made   string   // to remove and to tidy: the first of the directories that were made for the target
	Target string   // to tidy: the last of them
	Force  bool     // remove it even if it is in use
	Skill  Skill    // what is mounted instead of a directory that is lent
}

// Validate checks what can be checked without the host.
func (req *ChangeMount) Validate() error {
	if !validKey(req.Key) {
		return &Refusal{"key", req.Key, strconv.Itoa(KeyLen) + " characters of a-z and 0-9"}
	}
	if len(req.Caller.Groups) > MaxGroups {
		return &Refusal{"caller groups", strconv.Itoa(len(req.Caller.Groups)), "at most " + strconv.Itoa(MaxGroups)}
	}
	if req.Skill != (Skill{}) {
		return req.validSkill()
	}
	if req.Op == MountTidy || req.Op == MountMissing {
		if !CleanAbsolute(req.Target) || !CleanAbsolute(req.Made) || !Within(req.Made, req.Mount.Target) || req.Made == req.Mount.Target || !Within(req.Target, req.Made) {
			return &Refusal{"made", req.Made, "a path below that of the mount, and at or above the target"}
		}
		return req.Mount.validate("", req.Caller.UID)
	}
	if err := ValidTarget(req.Mount.Target); err != nil {
		return err
	}
	if req.Made != "" && (!CleanAbsolute(req.Made) || !Within(req.Mount.Target, req.Made)) {
		return &Refusal{"made", req.Made, "a path at or above the target"}
	}
	if req.Op == MountRemove || req.Op == MountLook {
		return nil
	}
	if req.Mount.Writable {
		return &Refusal{"mode", "rw", "ro: programs of the box may have been started without the rule that keeps them from setting setuid bits in directories of the host"}
	}
	return req.Mount.validate("", req.Caller.UID)
}

// ValidTarget refuses targets that a living box cannot have a mount on: those of the box itself, and those
// that the mounts of its making cannot have either.
func ValidTarget(target string) error {
	own := target == Workspace || target == Home || target == "/tmp"
	if own || !CleanAbsolute(target) || !UnderRoots(target) {
		return &Refusal{"target", target, "a path below " + Workspace + ", " + Home + " or /tmp, or at or below /mnt, /data, /srv, /opt, /media, /app, /work, /src or /code"}
	}
	return nil
}

// Mounted is what has come of a ChangeMount.
type Mounted struct {
	ID    uint64 // of the new mount, as in mountinfo; 0: there is none
	Made  string // the first of the directories that were made for the target; "": none. To follow: where it leads
	Below bool   // what was replaced is still there, below the new one
	Attrs uint64 // ST_ flags of the new mount, as the kernel has them (statfs(2))
	// Users are those for whom it was not removed. Nothing has changed then.
	Busy  bool
	Users []MountUser
	// IDs are, of a look, the mounts that are where a living box is given them, what is on a mount before that one. ID
	// and Attrs then are of the one on the target, and Made is the first directory of that that is missing.
	IDs    []uint64
	Source string // of MountMissing: the path of the directory on the host, without links
}

// MountUser is a process of the box that has something of a mount open.
type MountUser struct {
	PID     uint32 // in the box's own numbering; 0: it is another mount
	Program string // its name, as it gives it
	How     string // "cwd", "root", "exe", "map", "mount", or the number of a descriptor
	Path    string // in the box
}

func (req *ChangeMount) fields(c *codec) {
	c.str(&req.Key)
	small(c, &req.Op)
	req.Caller.fields(c)
	req.Mount.fields(c)
	listOf(c, &req.IDs, 8, func(id *uint64) { c.u64(id) })
	c.str(&req.Made, &req.Target)
	c.bool(&req.Force)
	c.str(&req.Skill.Owner)
	c.bool(&req.Skill.BuiltIn)
	c.str(&req.Skill.Drive, &req.Skill.Tree)
	c.refuse(req.Op < MountAdd || req.Op > MountFollow || len(req.IDs) > MaxStacked || len(req.IDs) == 0 && req.Op == MountReplace)
}

func (m *Mounted) fields(c *codec) {
	c.u64(&m.ID)
	c.str(&m.Made)
	c.bool(&m.Below)
	c.u64(&m.Attrs)
	c.bool(&m.Busy)
	c.str(&m.Source)
	list(c, &m.Users, 16)
	listOf(c, &m.IDs, 8, func(id *uint64) { c.u64(id) })
	c.refuse(len(m.Users) > MaxMountUsers || len(m.IDs) > MaxLooked)
}

func (u *MountUser) fields(c *codec) {
	c.u32(&u.PID)
	c.items(&u.Program, &u.How, &u.Path)
}
