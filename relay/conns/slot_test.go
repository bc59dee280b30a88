// SPDX-License-Identifier: Apache-2.0

package conns

import (
	"testing"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/supervisor/access"
)

// Idle connections do not keep others out: the oldest unauthenticated one is closed to make room, and authenticated ones are
// kept.
func TestTheOldestUnauthenticatedConnectionIsClosedToMakeRoom(t *testing.T) {
	t.Parallel()
	c := New(Each, All)
	ended := map[int]bool{}
	var all []*Slot
	sit := func(n int) {
		t.Helper()
		for range n {
			i := len(all)
			s, refused := c.Admit(func() { ended[i] = true })
			if refused != nil {
				t.Fatalf("slot %d: refused.Err = %v, want refused == nil", i, refused.Err)
			}
			all = append(all, s)
		}
	}
	name := func(i int, owner string) error { return Identify(WithSlot(t.Context(), all[i]), owner) }
	sit(Unknown)
	if err := name(0, ""); err != nil || len(ended) != 0 {
		t.Errorf("%v, %d have ended", err, len(ended))
	}
	for _, owner := range []string{"ci", "ci", "other", "ci"} { // on one connection, one after the other
		if err := name(1, owner); err != nil {
			t.Error(err)
		}
	}
	sit(3)
	if len(ended) != 2 || !ended[0] || !ended[2] {
		t.Errorf("have ended: %v", ended)
	}
	all[0].Leave() // as when its connection is closed
	for i := 3; i < Each+2; i++ {
		if i == len(all) {
			sit(1)
		}
		if err := name(i, "ci"); err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
	}
	sit(1)
	if err := name(Each+2, "ci"); fault.KindOf(err) != fault.Exhausted {
		t.Errorf("one too many: err = %v, want a fault.Exhausted error", err)
	}
	if err := name(Each+2, "other"); err != nil {
		t.Errorf("another: %v", err)
	}
	if err := name(0, "ci"); err != nil {
		t.Errorf("the slot of an ended connection: %v", err)
	}
	for uid := range uint32(3) { // all others together
		for range Each {
			_, _ = c.Enter(access.OfUser(uid + 1))
		}
	}
	if _, refused := c.Admit(func() {}); refused == nil {
		t.Error("a connection beyond the limit was accepted")
	}
	if c.None() || c.others != All {
		t.Errorf("%d connections", c.others)
	}
	for _, s := range all {
		s.Leave()
		s.Leave()
	}
	for uid := range uint32(3) {
		for c.Connections(access.OfUser(uid+1)) > 0 {
			c.Leave(access.OfUser(uid + 1))
		}
	}
	if !c.None() || c.others != 0 {
		t.Errorf("%d connections are left, %d unauthenticated, callers %v", c.others, c.anonymous.Len(), c.byName)
	}
}
