// SPDX-License-Identifier: Apache-2.0

// Package stats looks at cgroups: how the host has them, and what the groups of a box use.
package stats

import (
	"github.com/containerd/cgroups/v3"
)

// Layout is how a host has its cgroups mounted.
type Layout string

// The layouts. Only Unified lets boxd limit memory, CPU and processes.
const (
	Unified Layout = "unified" // v2 alone
	Hybrid  Layout = "hybrid"  // v1 with the controllers, v2 beside it with none
	Legacy  Layout = "legacy"  // v1
	Absent  Layout = "absent"
)

// HostLayout looks at the mounts of this host.
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
