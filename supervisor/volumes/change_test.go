// SPDX-License-Identifier: Apache-2.0

package volumes

import (
	"errors"
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/client"
)

// A quota below what is used is the caller's, and a keeper that is being replaced is there again in a moment.
func TestAKeeperFailureBecomesTheRightKindOfError(t *testing.T) {
	t.Parallel()
	over := &isolation.StepError{Step: isolation.StepGroup, Errno: unix.EBUSY, Refused: &isolation.Refusal{Field: "workspace_quota", Value: "1", Allowed: "at least the usage, 2"}}
	f, ok := errors.AsType[*fault.Error](failed("w", errors.Join(over, nil)))
	if !ok || f.Kind != fault.Conflict || f.Field != "quota" || f.Allowed != "at least the usage, 2" {
		t.Errorf(`f = %+v, want ok == true and f.Kind == fault.Conflict and f.Field == "quota" and f.Allowed == "at least the usage, 2"`,
			f)
	}
	if err := failed("w", fmt.Errorf("x: %w", client.ErrNoKeeper)); fault.KindOf(err) != fault.Unavailable {
		t.Errorf("err = %v, want a fault.Unavailable error", err)
	}
	if err := failed("w", errors.New("x")); fault.KindOf(err) != fault.Internal {
		t.Errorf("err = %v, want a fault.Internal error", err)
	}
}
