// SPDX-License-Identifier: Apache-2.0

package mounts

import (
	"testing"

	"github.com/boxd-dev/boxd/isolation"
)

// In-box root mounts the lower overlay of a writable root and must own nothing there; root of the
// host is the box user.
func TestNobodyIsInBoxRootInATreeOfTheHost(t *testing.T) {
	t.Parallel()
	const base = 7 * isolation.IDRange
	o := HostOwner()
	users, groups := o.maps(base)
	if len(users) != len(groups) {
		t.Errorf("%v, %v", users, groups)
	}
	host := map[int]int{} // by id in the box
	for i, m := range users {
		if groups[i] != m {
			t.Errorf("groups are mapped otherwise: %v", groups[i])
		}
		for n := range m.Size {
			id := m.HostID + n - base
			if id <= 0 || id >= isolation.IDRange {
				t.Fatalf("%d of the host is %d in the box", m.ContainerID+n, id)
			}
			if was, twice := host[id]; twice {
				t.Fatalf("%d and %d of the host are both %d", was, m.ContainerID+n, id)
			}
			host[id] = m.ContainerID + n
		}
	}
	if host[isolation.BoxUID] != 0 || host[1] != 1 || host[isolation.IDRange-1] != isolation.BoxUID || host[65534] != 65534 || len(host) != isolation.IDRange-1 {
		t.Errorf("the box user is %d, 1 is %d, the last is %d, nobody is %d, of %d", host[isolation.BoxUID], host[1], host[isolation.IDRange-1], host[65534], len(host))
	}
}
