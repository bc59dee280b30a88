// SPDX-License-Identifier: Apache-2.0

package policy

import "github.com/boxd-dev/boxd/isolation"

// scratchBytesPerInode relates the two bounds of a box's tmpfs: one inode per 4 KiB page.
const scratchBytesPerInode = 4096

// BoxSpec returns the spec of a box for a session with these settings and enforcement. It has no key, hostname, caller or owner
// limits: pooled boxes and those that unpack images have no owner. Workspaces are those of owner.
func BoxSpec(s *Settings, enforced map[string]Mechanism, owner string) *isolation.Spec {
	spec := &isolation.Spec{
		Scratch:     isolation.Scratch{Bytes: uint64(s.Tmp), Inodes: max(uint64(s.Tmp)/scratchBytesPerInode, 1024)},
		Rlimits:     Rlimits(s, enforced),
		ManagedWork: true,
		View:        Groups(s),
		Network:     s.KeeperNetwork(),
		Work:        Work(s, enforced),
		Writable:    !s.ReadOnlyRoot,
		DiskHome:    s.HomeOnDisk,
	}
	if Grouped(enforced) {
		spec.Grouped, spec.Limits = true, Groups(s)
	}
	if s.Workspace != "" {
		spec.Space = SpaceKey(owner, s.Workspace)
	}
	for _, in := range s.Inputs {
		spec.Lent = append(spec.Lent, SpaceKey(owner, in.Workspace)+in.Target)
	}
	for _, m := range s.Mounts {
		spec.Mounts = append(spec.Mounts, isolation.Mount{Source: m.Source, Target: m.Target, Writable: m.Mode == MountReadWrite, Owner: m.Owner, NoSymlinks: m.NoSymlinks, Bound: s.Bounds(&m, enforced)})
		if m.Target == isolation.Workspace {
			spec.ManagedWork = false
		}
	}
	if u := (isolation.User{Name: s.UserName(), Home: s.HomeDir()}); u != (isolation.User{Name: isolation.BoxUser, Home: isolation.Home}) {
		spec.User = u
	}
	if s.Root != nil {
		spec.Image = s.Root.Tree
	}
	return spec
}
