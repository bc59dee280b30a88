// SPDX-License-Identifier: Apache-2.0

package e2b

import (
	"strconv"
	"testing"
)

// A sandbox is paused once, and few at the same time.
func TestFewSandboxesArePausedAtOnce(t *testing.T) {
	t.Parallel()
	var p pauses
	var last func()
	for i := range maxPauses {
		done, first := p.begin(strconv.Itoa(i))
		if !first {
			t.Fatalf("sandbox %d of %d has to wait", i+1, maxPauses)
		}
		last = done
		if _, again := p.begin(strconv.Itoa(i)); again {
			t.Fatalf("sandbox %d is paused twice", i+1)
		}
	}
	if _, more := p.begin("more"); more {
		t.Errorf("more than %d at once", maxPauses)
	}
	last()
	if _, more := p.begin("more"); !more {
		t.Error("no pause could begin after one had ended")
	}
}
