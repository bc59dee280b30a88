// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"testing"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/quantity"
)

// A workspace may hold no more than a session of its owner could.
func TestAWorkspaceQuotaIsAtMostThatOfASession(t *testing.T) {
	t.Parallel()
	c := DefaultConfig()
	usual, small := DefaultProfile(), DefaultProfile()
	usual.WorkspaceQuota, usual.WorkspaceInodes = quantity.GiB, 1000
	usual.Locked = []string{"workspace_quota"}
	small.WorkspaceQuota, small.WorkspaceInodes = quantity.MiB, 100
	small.Locked = []string{"workspace_quota", "workspace_inodes"}
	c.Profiles[c.Sessions.DefaultProfile], c.Profiles["small"] = usual, small
	open, held := EffectivePolicy{Policy: NoPolicy()}, EffectivePolicy{Policy: boundsFor(func(b *Policy) { b.Profiles = []string{"small"} })}
	for name, tc := range map[string]struct {
		held   *EffectivePolicy
		asked  *quantity.Size
		inodes *int
		size   quantity.Size // 0: refused
		files  int
	}{
		"nothing":                   {held: &open, size: quantity.GiB, files: 1000},
		"what it is":                {held: &open, asked: new(quantity.GiB), size: quantity.GiB, files: 1000},
		"what is not locked":        {held: &open, inodes: new(2000), size: quantity.GiB, files: 2000},
		"none, and it is locked":    {held: &open, asked: new(quantity.Size(0))},
		"more, and it is locked":    {held: &open, asked: new(100 * quantity.GiB)},
		"of another profile":        {held: &held, size: quantity.MiB, files: 100},
		"the usual, which it lacks": {held: &held, asked: new(quantity.GiB)},
		"inodes, which are locked":  {held: &held, inodes: new(1000)},
	} {
		size, files, err := c.SpaceQuota(tc.held, tc.asked, tc.inodes)
		if tc.size == 0 {
			if fault.KindOf(err) != fault.Denied {
				t.Errorf("%s: size = %v, files = %d, err = %v, want a fault.Denied error", name, size, files, err)
			}
		} else if err != nil || size != tc.size || files != tc.files {
			t.Errorf("%s: size = %v, files = %d, err = %v, want no error and size == %v and files == %v",
				name, size, files, err, tc.size, tc.files)
		}
	}
}
