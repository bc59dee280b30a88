// SPDX-License-Identifier: Apache-2.0

package keeper

import (
	"fmt"
	"slices"
	"testing"

	"github.com/boxd-dev/boxd/internal/fdpass"
	"github.com/boxd-dev/boxd/isolation"
)

func TestPagesAreAllThereIsAndFitAPacket(t *testing.T) {
	t.Parallel()
	for _, n := range []int{0, 1, isolation.ListPage, isolation.ListPage + 1, 3*isolation.ListPage - 1} {
		var keys, got []string
		for i := range n {
			keys = append(keys, fmt.Sprintf("%032d", 2*i))
		}
		for after, more := "", true; more; {
			p := page(keys, after)
			if size := len((&isolation.KeeperReply{Listed: p}).Encode()); size > fdpass.MaxInline {
				t.Errorf("a page has %d bytes", size)
			}
			got = append(got, p.Keys...)
			if more = p.More; more {
				after = p.Keys[len(p.Keys)-1]
			}
		}
		if !slices.Equal(got, keys) {
			t.Errorf("%d boxes: %d are listed", n, len(got))
		}
	}
	// The one a page ended with may have died since.
	if p := page([]string{"b", "d"}, "c"); !slices.Equal(p.Keys, []string{"d"}) || p.More {
		t.Errorf("%+v", p)
	}
}
