// SPDX-License-Identifier: Apache-2.0

// Package cgroup is control groups of version 2, by which the kernel limits what a box uses: texts of limits,
// operations on one cgroup. The names and texts of files are those of cgroup-v2 in the kernel's documentation
// (admin-guide/cgroup-v2.rst).
//
// It is linked into PID 1 of every box, so it is small. The tree of all boxes is in cmd/boxkeeper,
// what they use in supervisor/session.
package cgroup

import "strconv"

// Mount is where cgroup v2 is mounted on every host with systemd.
const Mount = "/sys/fs/cgroup"

// OOM says what is killed when memory is used up.
type OOM uint8

// The kinds of OOM.
const (
	OOMProcess OOM = iota // the process the kernel chooses
	OOMProgram            // that process and everything of the program it belongs to
	OOMSession            // every program of the box
)

// Limits bound the programs of one box, or one program. A zero field sets nothing, unless it says
// otherwise.
type Limits struct {
	Memory     uint64 // bytes of memory.max; zero in a box: no limit, and none on swap either
	MemoryHigh uint64 // bytes; above this programs are slowed down and their memory is reclaimed
	Swap       uint64 // bytes of swap in addition to Memory; zero is none
	OOM        OOM
	CPU        uint64 // microseconds of processor time in every CPUPeriod
	CPUWeight  uint64 // share against other boxes, 1 to 10000; the kernel's default is 100
	Pids       uint64 // number of processes and threads
	IOWeight   uint64 // 1 to 10000, as CPUWeight
	IORead     uint64 // bytes per second from the device of the state directory
	IOWrite    uint64 // bytes per second to it
}

// Bounds of Limits.
const (
	CPUPeriod = 100_000 // microseconds
	MinCPU    = 1_000   // the smallest quota that the kernel accepts (sched: min_cfs_quota_period)
	MinWeight = 1
	MaxWeight = 10_000
)

// What the whole box may use beyond the limits of its programs: for PID 1, and for the output
// that PID 1 keeps.
const (
	initMemory = 128 << 20
	initPids   = 64
	maxPids    = 1 << 22 // PID_MAX_LIMIT of the kernel, the largest value of pids.max
)

// MaxGroups bounds the cgroups below a box: one for each program, and those that contain them.
const MaxGroups = 1024

// Setting is a text to write to a file of a cgroup.
type Setting struct{ File, Text string }

// maxDepth is the depth of a program's cgroup below that of the box.
const maxDepth = "2"

// LiftIO returns the setting that removes the limit on a device.
func LiftIO(device string) Setting { return Setting{"io.max", device + " rbps=max wbps=max"} }

const unlimited = "max"

// Programs returns what to write into the cgroup that contains all programs of a box. device is
// the "major:minor" that IORead and IOWrite are about, "" if there is none. Every file that can
// have a limit is included, so that a limit that was dropped is removed; except io.max without a
// limit: see LiftIO.
func (l *Limits) Programs(device string) []Setting {
	swap := strconv.FormatUint(l.Swap, 10)
	if l.Memory == 0 {
		swap = unlimited
	}
	list := []Setting{
		{"memory.max", orMax(l.Memory)},
		{"memory.high", orMax(l.MemoryHigh)},
		{"memory.swap.max", swap},
		{"memory.oom.group", flag(l.OOM == OOMSession)},
		{"cpu.max", orMax(l.CPU) + " " + strconv.Itoa(CPUPeriod)},
		{"pids.max", orMax(l.Pids)},
	}
	if device != "" && l.IORead+l.IOWrite > 0 {
		list = append(list, Setting{"io.max", device + " rbps=" + orMax(l.IORead) + " wbps=" + orMax(l.IOWrite)})
	}
	return list
}

// Box returns what to write into the cgroup of the box itself: its share against other boxes, and
// a cap on all of it.
func (l *Limits) Box() []Setting {
	memory, pids := l.Cap()
	return append([]Setting{
		{"memory.max", orMax(memory)},
		{"pids.max", orMax(pids)},
		{"cpu.weight", strconv.FormatUint(orDefault(l.CPUWeight), 10)},
		{"io.weight", "default " + strconv.FormatUint(orDefault(l.IOWeight), 10)},
	}, l.Scope()...)
}

// Scope returns the part of Box that is written if systemd sets the limits of the box's own
// cgroup: what it has no property for.
func (l *Limits) Scope() []Setting {
	return []Setting{{"cgroup.max.descendants", strconv.Itoa(MaxGroups)}, {"cgroup.max.depth", maxDepth}}
}

// Cap returns the bytes of memory and the number of processes that the box as a whole may have;
// zero is no limit.
func (l *Limits) Cap() (memory, pids uint64) {
	memory, pids = l.Memory, l.Pids
	if memory > 0 {
		memory += initMemory
	}
	if pids > 0 {
		pids = min(pids+initPids, maxPids)
	}
	return memory, pids
}

// Program returns what to write into the cgroup of one program.
func (l *Limits) Program() []Setting {
	var list []Setting
	add := func(n uint64, s Setting) {
		if n > 0 {
			list = append(list, s)
		}
	}
	add(l.Memory, Setting{"memory.max", orMax(l.Memory)})
	add(l.Pids, Setting{"pids.max", orMax(l.Pids)})
	add(l.CPU, Setting{"cpu.max", orMax(l.CPU) + " " + strconv.Itoa(CPUPeriod)})
	if l.OOM == OOMProgram {
		list = append(list, Setting{"memory.oom.group", flag(true)})
	}
	return list
}

// memoryMargin is what a program's own memory.max is above that of its box: a huge page, the largest charge (mm/memcontrol.c,
// try_charge), so that nearly always the limit of the box is reached first, which says what is killed; and 64 KiB, a page of any
// kernel, so that hardly any limit that a request gives a program is taken for this one.
const memoryMargin = 2<<20 + 64<<10

// ProgramMemory returns memory.max of a program without a limit of its own, in a box whose programs together may have so many
// bytes, of whole pages; zero and the largest number are no limit. Programs that size themselves by their own cgroup alone, as the
// JVM does before JDK 24, find a limit there.
func ProgramMemory(box uint64) string {
	if box == 0 || box > box+memoryMargin {
		return unlimited
	}
	return strconv.FormatUint(box+memoryMargin, 10)
}

// Optional reports whether a host may lack a file without losing a limit: io.weight depends on
// the I/O scheduler in the kernel's build, memory.swap.max on support for swap.
func Optional(file string) bool { return file == "io.weight" || file == "memory.swap.max" }

func orMax(n uint64) string {
	if n == 0 {
		return unlimited
	}
	return strconv.FormatUint(n, 10)
}

const defaultWeight = 100

func orDefault(weight uint64) uint64 {
	if weight == 0 {
		return defaultWeight
	}
	return weight
}

func flag(on bool) string {
	if on {
		return "1"
	}
	return "0"
}
