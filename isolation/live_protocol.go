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
func (c *ChangeMount) Validate() error {
	if !validKey(c.Key) {
		return &Refusal{"key", c.Key, strconv.Itoa(KeyLen) + " characters of a-z and 0-9"}
	}
	if len(c.Caller.Groups) > MaxGroups {
		return &Refusal{"caller groups", strconv.Itoa(len(c.Caller.Groups)), "at most " + strconv.Itoa(MaxGroups)}
	}
	if c.Skill != (Skill{}) {
		return c.validSkill()
	}
	if c.Op == MountTidy || c.Op == MountMissing {
		if !CleanAbsolute(c.Target) || !CleanAbsolute(c.Made) || !Within(c.Made, c.Mount.Target) || c.Made == c.Mount.Target || !Within(c.Target, c.Made) {
			return &Refusal{"made", c.Made, "a path below that of the mount, and at or above the target"}
		}
		return c.Mount.validate("", c.Caller.UID)
	}
	if err := ValidTarget(c.Mount.Target); err != nil {
		return err
	}
	if c.Made != "" && (!CleanAbsolute(c.Made) || !Within(c.Mount.Target, c.Made)) {
		return &Refusal{"made", c.Made, "a path at or above the target"}
	}
	if c.Op == MountRemove || c.Op == MountLook {
		return nil
	}
	if c.Mount.Writable {
		return &Refusal{"mode", "rw", "ro: programs of the box may have been started without the rule that keeps them from setting setuid bits in directories of the host"}
	}
	return c.Mount.validate("", c.Caller.UID)
}

// ValidTarget refuses targets that a living box cannot have a mount on: those of the box itself, and those
// that the mounts of its making cannot have either.
func ValidTarget(target string) error {
	own := target == Workspace || target == Home || target == "/tmp"
	if own || !CleanAbsolute(target) || !UnderRoots(target) {
		return &Refusal{"target", target, "a path below " + Workspace + ", " + Home + " or /tmp, or at or below /mnt, /data, /srv, /opt, /media or /app"}
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

func (e *encoder) caller(c *Caller) {
	for _, n := range append([]uint32{c.UID, c.GID, uint32(len(c.Groups))}, c.Groups...) {
		e.u32(n)
	}
}

func (d *decoder) caller() (c Caller) {
	c.UID, c.GID = d.u32(), d.u32()
	for range d.count(4) {
		c.Groups = append(c.Groups, d.u32())
	}
	return c
}

func (e *encoder) mount(m *Mount) {
	e.str(m.Source)
	e.str(m.Target)
	e.bool(m.Writable)
	e.u32(m.Owner)
	e.bool(m.NoSymlinks)
	e.bool(m.Bound)
}

func (d *decoder) mount() Mount {
	return Mount{Source: d.str(), Target: d.str(), Writable: d.bool(), Owner: d.u32(), NoSymlinks: d.bool(), Bound: d.bool()}
}

func (e *encoder) changeMount(c *ChangeMount) {
	e.str(c.Key)
	e.u8(uint8(c.Op))
	e.caller(&c.Caller)
	e.mount(&c.Mount)
	e.u32(uint32(len(c.IDs)))
	e.u64(c.IDs...)
	e.str(c.Made)
	e.str(c.Target)
	e.bool(c.Force)
	e.str(c.Skill.Owner)
	e.bool(c.Skill.BuiltIn)
	e.str(c.Skill.Drive)
	e.str(c.Skill.Tree)
}

func (d *decoder) changeMount() *ChangeMount {
	c := &ChangeMount{Key: d.str(), Op: MountOp(d.u8()), Caller: d.caller(), Mount: d.mount()}
	for range d.count(8) {
		c.IDs = append(c.IDs, d.u64())
	}
	c.Made, c.Target, c.Force = d.str(), d.str(), d.bool()
	c.Skill = Skill{Owner: d.str(), BuiltIn: d.bool(), Drive: d.str(), Tree: d.str()}
	d.bad = d.bad || c.Op < MountAdd || c.Op > MountFollow || len(c.IDs) > MaxStacked || len(c.IDs) == 0 && c.Op == MountReplace
	return c
}

func (e *encoder) mounted(m *Mounted) {
	e.u64(m.ID)
	e.str(m.Made)
	e.bool(m.Below)
	e.u64(m.Attrs)
	e.bool(m.Busy)
	e.str(m.Source)
	e.u32(uint32(len(m.Users)))
	for _, u := range m.Users {
		e.u32(u.PID)
		for _, text := range []string{u.Program, u.How, u.Path} {
			e.str(text[:min(len(text), MaxItem)])
		}
	}
	e.u32(uint32(len(m.IDs)))
	e.u64(m.IDs...)
}

func (d *decoder) mounted() *Mounted {
	m := &Mounted{ID: d.u64(), Made: d.str(), Below: d.bool(), Attrs: d.u64(), Busy: d.bool(), Source: d.str()}
	for range d.count(16) {
		m.Users = append(m.Users, MountUser{d.u32(), d.item(), d.item(), d.item()})
	}
	for range d.count(8) {
		m.IDs = append(m.IDs, d.u64())
	}
	d.bad = d.bad || len(m.Users) > MaxMountUsers || len(m.IDs) > MaxLooked
	return m
}
