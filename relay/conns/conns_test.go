// SPDX-License-Identifier: Apache-2.0

package conns

import (
	"context"
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/internal/fault"
)

// enterLoad takes as many connections as a principal gets, up to most.
func enterLoad(c *Limiter, name string, most int) (taken int, err error) {
	for range most {
		if _, refused := c.Enter(name); refused != nil {
			return taken, refused.Err
		}
		taken++
	}
	return taken, nil
}

func TestConnectionsOfOneCallerLeaveRoomForOthers(t *testing.T) {
	t.Parallel()
	c := New(Each, All)
	for _, name := range []string{"uid:1", "uid:2", "ci", "uid:4"} {
		if n, err := enterLoad(c, name, 300); n != 256 || fault.KindOf(err) != fault.Exhausted || !strings.Contains(err.Error(), "256") {
			t.Errorf(`%s gets %d: err = %v, want n == 256 and a fault.Exhausted error and err containing "256"`,
				name, n, err)
		}
	}
	if n, err := enterLoad(c, "uid:9", 1); n != 0 || fault.KindOf(err) != fault.Exhausted || !strings.Contains(err.Error(), "1024") {
		t.Errorf(`a fifth gets %d: err = %v, want n == 0 and a fault.Exhausted error and err containing "1024"`, n, err)
	}
	if n, err := enterLoad(c, "uid:0", 2000); n != 1024 || fault.KindOf(err) != fault.Exhausted {
		t.Errorf("root gets %d: err = %v, want n == 1024 and a fault.Exhausted error", n, err)
	}
	c.Leave("uid:2")
	if n, _ := enterLoad(c, "uid:9", 2); n != 1 {
		t.Errorf("after one has ended another gets %d, want 1", n)
	}
	c.Leave("uid:9")
	for range 256 {
		c.Leave("uid:1")
	}
	for range 1024 {
		c.Leave("uid:0")
	}
	if c.byName["uid:1"] != nil || c.byName["uid:9"] != nil || c.byName["uid:0"] != nil || len(c.byName) != 3 || c.others != 2*256+255 {
		t.Errorf("%d callers and %d connections are counted", len(c.byName), c.others)
	}
}

// A principal counts as one over the socket, by a token and by the visitors of its previews, and leaves room for others, however
// many unauthenticated connections there are.
func TestThePrincipalsConnectionsCountOverAllTransports(t *testing.T) {
	t.Parallel()
	c := New(Each, All)
	if n, _ := enterLoad(c, "ann", 100); n != 100 {
		t.Fatalf("%d over the socket", n)
	}
	seated := func(n int, known func(ctx context.Context, name string) error) (taken int, err error) {
		for range n {
			s, refused := c.Admit(func() {})
			if refused != nil {
				t.Fatal(refused.Err)
			}
			if err := known(WithSlot(t.Context(), s), "ann"); err != nil {
				return taken, err
			}
			taken++
		}
		return taken, nil
	}
	if n, err := seated(300, IdentifyVisitor); n != 128 || err == nil || !strings.Contains(err.Error(), "ports have 128") {
		t.Errorf(`%d of previews: err = %v, want n == 128 and an error containing "ports have 128"`, n, err)
	}
	if n, err := seated(300, Identify); n != 256-100-128 || err == nil || !strings.Contains(err.Error(), "you have 256") {
		t.Errorf(`%d by a token: err = %v, want n == 256 - 100 - 128 and an error containing "you have 256"`, n, err)
	}
	for range 1000 { // anonymous ones
		if _, refused := c.Admit(func() {}); refused != nil {
			t.Fatal(refused.Err)
		}
	}
	if n, err := enterLoad(c, "bob", 256); n != 256 {
		t.Errorf("another gets %d: err = %v, want n == 256", n, err)
	}
	if got := c.Connections("ann"); got != 256 || c.others != 2*256+Unknown {
		t.Errorf("%d connections of the caller, %d of all", got, c.others)
	}
	// When all places are taken, unauthenticated connections are closed first, but not for a caller that is refused anyway.
	_, _ = enterLoad(c, "cid", 256)
	_, _ = enterLoad(c, "dan", All-c.others)
	if _, refused := c.Enter("ann"); refused == nil || c.anonymous.Len() != Unknown {
		t.Errorf("a refused connection of a caller has closed unauthenticated ones: %d are left", c.anonymous.Len())
	}
	_, _ = enterLoad(c, "dan", 256)
	if c.others != All || c.anonymous.Len() != 0 || c.Connections("dan") != 256 {
		t.Errorf("%d connections, %d unauthenticated, %d of the last caller", c.others, c.anonymous.Len(), c.Connections("dan"))
	}
}

// The load of a principal is counted once, over whichever transport its requests come.
func TestTheRequestLoadOfAPrincipalIsCountedOnce(t *testing.T) {
	t.Parallel()
	c := New(Each, All)
	l, refused := c.Enter("ann")
	if refused != nil {
		t.Fatal(refused.Err)
	}
	other, release := c.Share("ann")
	if l != other {
		t.Error("the same caller has two loads")
	}
	c.Leave("ann")
	if again, refused := c.Enter("ann"); refused != nil || again != l {
		t.Errorf("another load: refused = %v, want refused == nil and again == l", refused)
	}
	release()
	c.Leave("ann")
	if !c.None() {
		t.Error("some load is left")
	}
}
