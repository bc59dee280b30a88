// SPDX-License-Identifier: Apache-2.0

package isolation_test

import (
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/isolation"
)

func TestADriveTargetHasAnOwnerAndAName(t *testing.T) {
	t.Parallel()
	for at, want := range map[string]bool{
		"/drives/me/data": true, "/drives/a/1.2_3-4": true, "/drives/me": false, "/drives": false, "/drives/me/data/x": false, "/mnt/a": false, "/drives/me/..": false,
		"/drives/../x": false, "/drives/me/.x": false, "/drives/-a/b": false, "/drives/me/": false, "/drives//me": false, "/drives/Me/x": false, "/drives/a/b@1": false,
		"/drives/" + strings.Repeat("a", 64) + "/b": true, "/drives/" + strings.Repeat("a", 65) + "/b": false, "/drives/a/\x00": false,
	} {
		if isolation.IsDriveTarget(at) != want {
			t.Errorf("%q: !want = %v, want isolation.IsDriveTarget(at) == want", at, !want)
		}
	}
}
