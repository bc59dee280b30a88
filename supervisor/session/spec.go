// SPDX-License-Identifier: Apache-2.0

package session

import (
	"slices"

	"github.com/boxd-dev/boxd/cgroup"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/supervisor/policy"
	"github.com/boxd-dev/boxd/supervisor/quota"
)

// Spec is what the keeper is asked for.
func (s *Session) Spec() *isolation.Spec {
	spec := &isolation.Spec{
		Key: s.BoxKey(), Hostname: s.Hostname,
		Caller:      s.Caller(),
		Scratch:     isolation.Scratch{Bytes: uint64(s.Settings.Tmp), Inodes: max(uint64(s.Settings.Tmp)/scratchBytesPerInode, 1024)},
		Rlimits:     policy.Rlimits(&s.Settings, s.enforced),
		ManagedWork: true,
		View:        policy.Groups(&s.Settings),
	}
	spec.Network = s.Settings.KeeperNetwork()
	if s.Grouped() {
		spec.Grouped, spec.Limits, spec.Owner = true, policy.Groups(&s.Settings), s.Total()
	}
	spec.Work = policy.Work(&s.Settings, s.enforced)
	if s.Settings.Workspace != "" {
		spec.Space = policy.SpaceKey(s.Owner.Name, s.Settings.Workspace)
	}
	for _, in := range s.Settings.Inputs {
		spec.Lent = append(spec.Lent, policy.SpaceKey(s.Owner.Name, in.Workspace)+in.Target)
	}
	for _, m := range s.Settings.Mounts {
		spec.Mounts = append(spec.Mounts, isolation.Mount{Source: m.Source, Target: m.Target, Writable: m.Mode == policy.MountReadWrite, Owner: m.Owner, NoSymlinks: m.NoSymlinks, Bound: s.Settings.Bounds(&m, s.enforced)})
		if m.Target == isolation.Workspace {
			spec.ManagedWork = false
		}
	}
	spec.Writable = !s.Settings.ReadOnlyRoot
	if s.Settings.Root != nil {
		spec.Image = s.Settings.Root.Tree
	}
	return spec
}

// Total is what all sessions of the owner may have together, as the configuration has it now.
func (s *Session) Total() cgroup.Owner {
	if s.host == nil { // it stands for any
		return cgroup.Owner{}
	}
	held := s.host.Config().BoundsOf(s.Owner)
	return quota.OwnerOf(s.Owner, &held.Bounds)
}

// Totals are those of the owners of sessions, the one of the latest session where its owner has several.
func Totals(all []*Session) []quota.Total {
	slices.SortFunc(all, func(a, b *Session) int { return a.Created.Compare(b.Created) })
	var list []quota.Total
	for _, s := range all {
		if state, _, _ := s.State(); state == StateReady && s.Grouped() {
			list = append(list, quota.Total{UID: s.Owner.UID, Owner: s.Total()})
		}
	}
	return list
}

// scratchBytesPerInode relates the two bounds of a box's tmpfs: one file for every 4 KiB page of it.
const scratchBytesPerInode = 4096
