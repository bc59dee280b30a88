// SPDX-License-Identifier: Apache-2.0

package mounts

import (
	"testing"

	"github.com/boxd-dev/boxd/isolation"
)

// In-box root mounts the lower overlay of a writable root and must own nothing there; root of the
// host is the box user.
func TestInBoxRootOwnsNothingInAHostTree(t *testing.T) {
	t.Parallel()
	const base = 7 * isolation.IDRange
	o := HostOwner()
	users, groups := o.maps(base)
	if len(users) != len(groups) {
		t.Errorf("users = %v, groups = %v, want len(users) == len(groups)", users, groups)
	}
	host := map[int]int{} // by id in the box
	for i, m := range users {
		if groups[i] != m {
			t.Errorf("gids are mapped differently: groups[i] = %v, want %v", groups[i], m)
		}
		for n := range m.Size {
			id := m.HostID + n - base
			if id <= 0 || id >= isolation.IDRange {
				t.Fatalf("%d of the host is %d in the box", m.ContainerID+n, id)
			}
			if was, dup := host[id]; dup {
				t.Fatalf("%d and %d of the host are both %d", was, m.ContainerID+n, id)
			}
			host[id] = m.ContainerID + n
		}
	}
	for _, id := range []int{isolation.RootID, isolation.NobodyID} { // root of the box, and what PID 1 is to it
		if was, has := host[id]; has {
			t.Errorf("%d of the host is %d, want has == false", was, id)
		}
	}
	if host[isolation.BoxUID] != 0 || host[1] != 1 || host[isolation.IDRange-1] != isolation.BoxUID || host[isolation.RootID-1] != isolation.NobodyID || len(host) != isolation.IDRange-3 {
		t.Errorf("host ids: box user %d, id 1 %d, last id %d, nobody %d, of %d ids", host[isolation.BoxUID], host[1], host[isolation.IDRange-1], host[isolation.RootID-1], len(host))
	}
}

// A group of the host that is nobody's in a box is none that root of it can take (cmd/boxinit, rootMaps).
func TestAMappedHostGroupCannotBeTakenByInBoxRoot(t *testing.T) {
	t.Parallel()
	const base = 7 * isolation.IDRange
	o := Owner{uid: 500, gid: 500, dirGID: 2000, Mapped: true}
	_, groups := o.maps(base)
	if len(groups) != 2 || groups[0].HostID != base+isolation.BoxGID || groups[1].ContainerID != 2000 {
		t.Fatalf("groups = %+v, want len(groups) == 2 and groups[0].HostID == base + isolation.BoxGID and groups[1].ContainerID == 2000",
			groups)
	}
	if gid := groups[1].HostID - base; gid < isolation.RootID || gid == isolation.RootID || gid == isolation.NobodyID || gid >= isolation.IDRange {
		t.Errorf("it is %d in the box", gid)
	}
}
