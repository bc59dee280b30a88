// SPDX-License-Identifier: Apache-2.0

// Package stats reads cgroups: how the host has them mounted, and what those of a box use.
package stats

import (
	"github.com/containerd/cgroups/v3"
)

// Layout is how a host has its cgroups mounted.
type Layout string

// The layouts. Only Unified lets boxd limit memory, CPU and processes.
const (
	Unified Layout = "unified" // v2 only
	Hybrid  Layout = "hybrid"  // v1 with the controllers, and v2 beside it without any
	Legacy  Layout = "legacy"  // v1
	Absent  Layout = "absent"
)

// HostLayout examines the mounts of this host.
func HostLayout() Layout {
	switch cgroups.Mode() {
	case cgroups.Unified:
		return Unified
	case cgroups.Hybrid:
		return Hybrid
	case cgroups.Legacy:
		return Legacy
	case cgroups.Unavailable:
		return Absent
	}
	return Absent
}
