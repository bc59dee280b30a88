// SPDX-License-Identifier: Apache-2.0

package cgroup

import "strconv"

// OwnerPrefix begins the name of the group that all boxes of one owner are in.
const OwnerPrefix = "owner-"

// Owner is such a group, and what all boxes in it may have together. A zero limit is none.
type Owner struct {
	Name   string // OwnerName's; where the user is known beside it, what follows the user there
	Memory uint64 // bytes that their programs may have; PID 1 of them has a little more, as in one box
	CPU    uint64 // microseconds of processor time in every CPUPeriod, PID 1 included
}

// OwnerName names the group of an owner, without its prefix: several owners may be one user of the host, and what
// tells them from each other is behind its id. "" is the user itself.
func OwnerName(uid uint32, other string) string {
	name := strconv.FormatUint(uint64(uid), 10)
	if other != "" {
		name += "-" + other
	}
	return name
}

// OtherLen is the length of what tells an owner from others, in characters of a-z and 0-9.
const OtherLen = 16

// ValidOther reports whether a text can be that.
func ValidOther(other string) bool {
	for i := range len(other) {
		if c := other[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return false
		}
	}
	return other == "" || len(other) == OtherLen
}

// MemoryMax is what is written to memory.max.
func (o *Owner) MemoryMax() uint64 {
	if o.Memory == 0 {
		return 0
	}
	return o.Memory + initMemory
}

// Settings returns what to write into the group, memory first. Every file that a limit can be in is there, so that one
// that is no more is lifted.
func (o *Owner) Settings() []Setting {
	return []Setting{{"memory.max", orMax(o.MemoryMax())}, {"cpu.max", orMax(o.CPU) + " " + strconv.Itoa(CPUPeriod)}}
}
