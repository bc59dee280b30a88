// SPDX-License-Identifier: Apache-2.0

package load

import (
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/internal/fault"
)

// enter takes as many connections as a user gets, of at most that many.
func enter(c *Callers, uid uint32, most int) (taken int, err error) {
	for range most {
		if _, refused := c.Enter(uid); refused != nil {
			return taken, refused.Err
		}
		taken++
	}
	return taken, nil
}

func TestConnectionsOfOneUserLeaveRoomForOthers(t *testing.T) {
	t.Parallel()
	c := NewCallers()
	for uid := range uint32(4) {
		if n, err := enter(c, 1+uid, 300); n != 256 || fault.KindOf(err) != fault.Exhausted || !strings.Contains(err.Error(), "256") {
			t.Errorf("user %d gets %d: %v", uid, n, err)
		}
	}
	if n, err := enter(c, 9, 1); n != 0 || fault.KindOf(err) != fault.Exhausted || !strings.Contains(err.Error(), "1024") {
		t.Errorf("a fifth user gets %d: %v", n, err)
	}
	if n, err := enter(c, 0, 2000); n != 1024 || fault.KindOf(err) != fault.Exhausted {
		t.Errorf("root gets %d: %v", n, err)
	}
	c.Leave(2)
	if n, _ := enter(c, 9, 2); n != 1 {
		t.Errorf("after one has ended another user gets %d", n)
	}
	c.Leave(9)
	for range 256 {
		c.Leave(1)
	}
	for range 1024 {
		c.Leave(0)
	}
	if c.users[1] != nil || c.users[9] != nil || c.users[0] != nil || len(c.users) != 3 || c.others != 2*256+255 {
		t.Errorf("%d users and %d connections are known", len(c.users), c.others)
	}
}
