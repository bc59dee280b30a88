// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"errors"
	"fmt"
	"testing"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/supervisor/policy"
)

// A new mount must not hide another, earlier or live, and there are no more of them than a session can be created with.
func TestAMountHidesNoOther(t *testing.T) {
	t.Parallel()
	made := []policy.Mount{{Target: "/data/made"}}
	live := []policy.LiveMount{{Mount: policy.Mount{Target: "/mnt/x/sub"}}}
	var most []policy.LiveMount
	for i := range isolation.MaxMounts - 1 {
		most = append(most, policy.LiveMount{Mount: policy.Mount{Target: fmt.Sprintf("/srv/%03d", i)}})
	}
	for _, tc := range []struct {
		live    []policy.LiveMount
		target  string
		refused bool
	}{
		{live, "/mnt/x", true},
		{live, "/mnt", true},
		{live, "/data", true},
		{live, "/data/made", true},
		{live, "/mnt/x/sub", false},
		{live, "/mnt/x/sub/more", false},
		{live, "/mnt/xy", false},
		{live, "/data/made/in", false},
		{most, "/opt/more", true},
		{most, "/srv/000", false},
		{most[1:], "/opt/more", false},
	} {
		err := checkMountFree(made, tc.live, tc.target)
		f, ok := errors.AsType[*fault.Error](err)
		if tc.refused != (err != nil) || tc.refused && (!ok || f.Kind != fault.Conflict) {
			t.Errorf("%s beside %d: err = %v, want tc.refused == (err != nil) and (tc.refused == false or ok == true and f.Kind == fault.Conflict)",
				tc.target, len(tc.live), err)
		}
	}
}
