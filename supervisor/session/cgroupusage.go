// SPDX-License-Identifier: Apache-2.0

package session

import (
	"fmt"
	"path/filepath"
	"time"

	"github.com/containerd/cgroups/v3/cgroup2"
	"github.com/containerd/cgroups/v3/cgroup2/stats"
)

// CgroupUsage is what all programs of a box together use and have used.
type CgroupUsage struct {
	CPU           time.Duration
	Memory        uint64 // bytes now
	MemoryPeak    uint64 // bytes; zero if the kernel does not report it
	Swap          uint64 // bytes now
	Pids          uint64 // number now
	Read, Written uint64 // bytes, of all devices together
	OOMKills      uint64 // processes killed because memory was used up
	// Throttled is how long programs had to wait because of the CPU limit.
	Throttled time.Duration
	// Pressure is the percentage of the last ten seconds in which some program waited for each
	// resource (Documentation/accounting/psi.rst). Zero also if the kernel does not report it.
	CPUPressure, MemoryPressure, IOPressure float64
}

// readCgroup reads what the cgroup at a path uses. What does not exist is zero.
func readCgroup(path string) (*CgroupUsage, error) {
	dir, name := filepath.Split(path)
	// The parent is given as the mount point, so that nothing above the cgroup is read.
	m, err := cgroup2.Load("/"+name, cgroup2.WithMountpoint(filepath.Clean(dir)))
	if err != nil {
		return nil, fmt.Errorf("cgroup %s: %w", path, err)
	}
	s, err := m.StatFiltered(cgroup2.StatPids | cgroup2.StatCPU | cgroup2.StatMemory | cgroup2.StatMemoryEvents | cgroup2.StatIO)
	if err != nil {
		return nil, fmt.Errorf("usage of %s: %w", path, err)
	}
	b := &CgroupUsage{
		CPU: microseconds(s.GetCPU().GetUsageUsec()), Throttled: microseconds(s.GetCPU().GetThrottledUsec()),
		Memory: s.GetMemory().GetUsage(), MemoryPeak: s.GetMemory().GetMaxUsage(), Swap: s.GetMemory().GetSwapUsage(),
		Pids: s.GetPids().GetCurrent(), OOMKills: s.GetMemoryEvents().GetOomKill(),
		CPUPressure: somePressure(s.GetCPU().GetPSI()), MemoryPressure: somePressure(s.GetMemory().GetPSI()), IOPressure: somePressure(s.GetIo().GetPSI()),
	}
	for _, device := range s.GetIo().GetUsage() {
		b.Read += device.GetRbytes()
		b.Written += device.GetWbytes()
	}
	return b, nil
}

func microseconds(n uint64) time.Duration { return time.Duration(n) * time.Microsecond }

func somePressure(p *stats.PSIStats) float64 { return p.GetSome().GetAvg10() }
