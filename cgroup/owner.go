// SPDX-License-Identifier: Apache-2.0

package cgroup

import "strconv"

// OwnerPrefix begins the name of the cgroup that contains all boxes of one owner.
const OwnerPrefix = "owner-"

// Owner is such a cgroup, with the limits for all boxes in it together. Zero is no limit.
type Owner struct {
	Name   string // as OwnerName returns it; where the uid is given separately, only the part after that
	Memory uint64 // bytes for their programs; PID 1 of each has a little more, as in one box
	CPU    uint64 // microseconds of processor time in every CPUPeriod, PID 1 included
}

// OwnerName returns the name of an owner's cgroup, without its prefix. Several owners may be one
// user of the host; other, after the uid, distinguishes them. "" is the user itself.
func OwnerName(uid uint32, other string) string {
	name := strconv.FormatUint(uint64(uid), 10)
	if other != "" {
		name += "-" + other
	}
	return name
}

// OtherLen is the length of that part, in characters of a-z and 0-9.
const OtherLen = 16

// ValidOther reports whether a text can be that part.
func ValidOther(other string) bool {
	for i := range len(other) {
		if c := other[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return false
		}
	}
	return other == "" || len(other) == OtherLen
}

// MemoryMax returns the value for memory.max.
func (o *Owner) MemoryMax() uint64 {
	if o.Memory == 0 {
		return 0
	}
	return o.Memory + initMemory
}

// Settings returns what to write into the cgroup, memory first. Every file that can have a limit
// is included, so that a limit that was dropped is removed.
func (o *Owner) Settings() []Setting {
	return []Setting{{"memory.max", orMax(o.MemoryMax())}, {"cpu.max", orMax(o.CPU) + " " + strconv.Itoa(CPUPeriod)}}
}
