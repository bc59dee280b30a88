// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"slices"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation"
)

// bound records the host directories that the workspace's quota applies to: those mounted for writing below the operator's quota
// roots.
func (s *Settings) bound(where QuotaRoots) {
	for _, m := range s.Mounts {
		if s.WorkspaceQuota > 0 && m.Mode == MountReadWrite && where.of(m.Source) != "" {
			s.Bounded = append(s.Bounded, m.Target)
		}
	}
}

// limitOf returns the limit under which a quota of a host directory is reported.
func (s *Settings) limitOf(target string) string {
	if target == isolation.Workspace && !s.OwnDisk() {
		return LimitWorkspace
	}
	return LimitMounts
}

// Bounds reports whether a mount is of a directory that gets a quota, given what enforces the session's limits.
func (s *Settings) Bounds(m *Mount, by map[string]Mechanism) bool {
	return slices.Contains(s.Bounded, m.Target) && by[s.limitOf(m.Target)] == MechanismProject
}

// hostQuotas determines what enforces the quotas of host directories. A session has one quota, for each of them and for its own
// workspace: if one of them cannot have it, none has, which the operator must have accepted.
func (c *Config) hostQuotas(s *Settings, by map[string]Mechanism, host Host) error {
	how := MechanismProject
	if s.OwnDisk() && by[LimitWorkspace] == MechanismNone {
		how = MechanismNone
	}
	for _, m := range s.Mounts {
		if !slices.Contains(s.Bounded, m.Target) {
			continue
		}
		if s.Workspace != "" {
			return fault.Field("workspace", s.Workspace, "left out with a mount for writing below a directory of "+QuotaRootsKey).Of(fault.Unsupported).WithText("a workspace and a writable mount below a directory of %s cannot be combined", QuotaRootsKey).
				WithHint("leave one of them out, or mount the directory \"ro\"")
		}
		if err := c.Roots.Can(host.Bounds, m.Source); err != nil {
			if !slices.Contains(c.Limits.BestEffort, LimitWorkspace) {
				return err
			}
			how = MechanismNone
		}
	}
	for _, target := range s.Bounded {
		by[s.limitOf(target)] = how
	}
	return nil
}

// checkQuota refuses to change the quota of a running session if it covers host directories too.
func (s *Settings) checkQuota(now *Settings) error {
	if len(s.Bounded) == 0 || s.WorkspaceQuota == now.WorkspaceQuota && s.WorkspaceInodes == now.WorkspaceInodes {
		return nil
	}
	return fault.Field("workspace_quota", s.WorkspaceQuota, "what the session has").Of(fault.Unsupported).WithText("the quota of a mounted host directory cannot change while the session runs: other sessions may use the directory").
		WithHint("end the sessions that use the directory, and create one with the quota you want")
}
