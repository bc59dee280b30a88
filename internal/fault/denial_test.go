// SPDX-License-Identifier: Apache-2.0

package fault_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/boxd-dev/boxd/internal/fault"
)

func TestTheRuleThatRefusedIsFound(t *testing.T) {
	t.Parallel()
	d := fault.Denial{Layer: fault.LayerQuota, Rule: "policy.ci.sessions", Used: "2", Allowed: "2"}
	refused := fault.Errorf(fault.Exhausted, "no more").By(d)
	for name, err := range map[string]error{
		"itself":  refused,
		"wrapped": fmt.Errorf("create: %w", refused),
		"inside":  fault.Errorf(fault.Conflict, "cannot: %w", fmt.Errorf("as %w", refused)),
	} {
		if got := fault.DenialOf(err); got == nil || *got != d {
			t.Errorf("%s: got %+v, want got != nil and *got == d", name, got)
		}
	}
	for name, err := range map[string]error{"nothing": nil, "no rule": fault.Errorf(fault.Invalid, "x"), "plain": errors.New("x")} {
		if got := fault.DenialOf(err); got != nil {
			t.Errorf("%s: got %+v, want nil", name, got)
		}
	}
}
