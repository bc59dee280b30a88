// SPDX-License-Identifier: Apache-2.0

package isolation

import "strconv"

// MountOp is what to do with a mount of a live box.
type MountOp uint8

// The operations.
const (
	MountAdd     MountOp = iota + 1
	MountReplace         // mount another directory in its place, so that the target is never bare
	MountRemove
	MountTidy    // after the box has ended: remove the directories that were made for its mounts
	MountLook    // change nothing: list the mounts, to find out later what an interrupted change has done
	MountMissing // change nothing, from outside: where on the host a directory is, and which part of a target below it is missing
	MountFollow  // change nothing, without a box: where a path leads
)

// MaxMountUsers is how many users of a busy mount are named.
const MaxMountUsers = 16

// MaxStacked is how many mounts can be stacked on one target: before Linux 6.5 a replaced mount
// stays below.
const MaxStacked = 64

// MaxLooked is how many mounts a live box can have at most.
const MaxLooked = MaxMounts * MaxStacked

// ChangeMount adds a mount to a live box, replaces or removes one, or does one of the other
// operations.
type ChangeMount struct {
	Key    string
	Op     MountOp
	Caller Caller
	Mount  Mount    // what is added; for remove and look only the target; for tidy and missing the mount that contains Made
	IDs    []uint64 // for replace and remove: ids of the mounts on the target, the uppermost first
	Made   string   // for remove and tidy: the first of the directories that were made for the target
	Target string   // for tidy: the last of them
	Force  bool     // remove it even if it is in use
	Skill  Skill    // what to mount instead of a directory of the host
}

// Validate checks what can be checked without the host.
func (req *ChangeMount) Validate() error {
	if !ValidKey(req.Key) {
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
	if err := validTarget(req.Mount.Target); err != nil {
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

// validTarget refuses targets where a live box cannot have a mount: those of the box itself, and
// those that mounts at its start cannot have either.
func validTarget(target string) error {
	own := target == Workspace || target == Home || target == "/tmp"
	if own || !CleanAbsolute(target) || !UnderRoots(target) {
		return &Refusal{"target", target, "a path below " + Workspace + ", " + Home + " or /tmp, or at or below /mnt, /data, /srv, /opt, /media, /app, /work, /src or /code"}
	}
	return nil
}

// Mounted is the result of a ChangeMount.
type Mounted struct {
	ID    uint64 // id of the new mount, as in mountinfo; 0: there is none
	Made  string // the first of the directories that were made for the target; "": none. For follow: where the path leads
	Below bool   // the replaced mount is still there, below the new one
	Attrs uint64 // ST_ flags of the new mount, as read back from the kernel (statfs(2))
	// the mount was not removed because of Users, and nothing has changed
	Busy  bool
	Users []MountUser
	// IDs are, for a look, the mounts in places where a live box is given them, a mount on
	// another before that one. ID and Attrs are then those of the mount on the target, and Made
	// is the first missing directory of the target.
	IDs    []uint64
	Source string // for MountMissing: the path of the directory on the host, without symbolic links
}

// MountUser is a process of the box that keeps a mount busy.
type MountUser struct {
	PID     uint32 // in the box's pid namespace; 0: it is another mount
	Program string // the name that the process gives itself
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
