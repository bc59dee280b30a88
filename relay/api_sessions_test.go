// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"strings"
	"testing"
)

func TestAPageOfAListIsBounded(t *testing.T) {
	t.Parallel()
	half := map[string]string{"a": strings.Repeat("x", maxPageMetadata/2)}
	p := sessionPage{left: maxPage}
	for n, want := range []bool{false, true, false} { // the last has no metadata
		metadata := half
		if n == 2 {
			metadata = nil
		}
		if got := p.full(metadata); got != want {
			t.Errorf("session %d: got %v, want %v", n, got, want)
		}
	}
	if p = (sessionPage{left: 1}); p.full(map[string]string{"a": strings.Repeat("x", maxPageMetadata+1)}) || !p.full(nil) {
		t.Error("full refuses the first session of a page, or accepts a second one beyond its size")
	}
}
