// SPDX-License-Identifier: Apache-2.0

package isolation

import (
	"strconv"
	"strings"
)

// View is what programs of a box see of its limits, in the places where they look for those of
// the host.
type View struct {
	Memory, Swap uint64 // bytes
	CPU          uint64 // microseconds of processor time in every 100,000
	Pids         uint64
	Processors   uint32 // number that programs see
	// Possible is the host's /sys/devices/system/cpu/possible: processors keep their numbers of
	// the host, and some allocators have tables indexed by them. "": the host has no such file.
	Possible string
}

// Directories with the files of a View, below RunDir: ViewMemInfo is mounted on /proc/meminfo, ViewSys on /sys,
// which has ViewCgroup in it.
const (
	ViewMemInfo = "meminfo"
	ViewSys     = "sys"
	ViewCgroup  = ViewSys + "/fs/cgroup"
)

// ViewDirs returns the directories that ViewFiles are in, parents first.
func ViewDirs() []string {
	return []string{ViewSys, ViewSys + "/fs", ViewCgroup, ViewSys + "/devices", ViewSys + "/devices/system", ViewSys + "/devices/system/cpu"}
}

// ViewFiles returns the files that show a View, below RunDir. Those of ViewCgroup have the names and format of cgroup v2, and
// say the same whether cgroups or something else enforces the limits (cgroup-v2.rst of the kernel). Where cgroups do, the box's own
// are mounted there, below these files. ViewMemInfo has what does not change: all memory is free (proc_meminfo(5)).
func ViewFiles(v *View) []BoxFile {
	kib := func(n uint64) string {
		text := strconv.FormatUint(n>>10, 10)
		return strings.Repeat(" ", max(0, 8-len(text))) + text + " kB\n"
	}
	mem, swap, none := kib(v.Memory), kib(v.Swap), kib(0)
	files := []BoxFile{
		{ViewMemInfo, "MemTotal:       " + mem + "MemFree:        " + mem + "MemAvailable:   " + mem + "Buffers:        " + none + "Cached:         " + none +
			"SwapCached:     " + none + "Active:         " + none + "Inactive:       " + none + "SwapTotal:      " + swap + "SwapFree:       " + swap +
			"Dirty:          " + none + "Shmem:          " + none + "Slab:           " + none + "SReclaimable:   " + none},
		{ViewCgroup + "/cgroup.controllers", "cpu memory pids\n"},
		{ViewCgroup + "/memory.max", viewNumber(v.Memory)},
		{ViewCgroup + "/memory.swap.max", strconv.FormatUint(v.Swap, 10) + "\n"},
		{ViewCgroup + "/cpu.max", viewQuota(v.CPU)},
		{ViewCgroup + "/pids.max", viewNumber(v.Pids)},
	}
	if v.Possible != "" && v.Processors > 0 {
		online := "0\n"
		if v.Processors > 1 {
			online = "0-" + strconv.FormatUint(uint64(v.Processors-1), 10) + "\n"
		}
		files = append(files, BoxFile{ViewSys + "/devices/system/cpu/online", online},
			BoxFile{ViewSys + "/devices/system/cpu/possible", v.Possible}, BoxFile{ViewSys + "/devices/system/cpu/present", v.Possible})
	}
	return files
}

func viewNumber(n uint64) string {
	if n == 0 {
		return "max\n"
	}
	return strconv.FormatUint(n, 10) + "\n"
}

func viewQuota(cpu uint64) string {
	if cpu == 0 {
		return "max 100000\n"
	}
	return strconv.FormatUint(cpu, 10) + " 100000\n"
}
