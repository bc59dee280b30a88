// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"github.com/containerd/cgroups/v3"

	"github.com/boxd-dev/boxd/supervisor/policy"
)

// HostLayout examines the mounts of this host.
func HostLayout() policy.CgroupLayout {
	switch cgroups.Mode() {
	case cgroups.Unified:
		return policy.CgroupsUnified
	case cgroups.Hybrid:
		return policy.CgroupsHybrid
	case cgroups.Legacy:
		return policy.CgroupsLegacy
	case cgroups.Unavailable:
		return policy.CgroupsAbsent
	}
	return policy.CgroupsAbsent
}
