// SPDX-License-Identifier: Apache-2.0

package main

import "testing"

func TestHugePagesForTmpfsAreReported(t *testing.T) {
	t.Parallel()
	for setting, want := range map[string]bool{
		"always within_size advise [never] deny force\n": false,
		"always within_size [advise] never deny force\n": false,
		"[always] within_size advise never deny force\n": true,
		"always [within_size] advise never deny force\n": true,
		"always within_size advise never deny [force]\n": true,
		"": false, "never": false,
	} {
		c, bad := checkHugePages(setting)
		if bad != want || bad && (c.Detail == "" || c.Hint == "") {
			t.Errorf(`%q: bad = %v, c = %+v, want bad == %v and (bad == false or c.Detail != "" and c.Hint != "")`,
				setting, bad, c, want)
		}
	}
}

func TestAStoreOfAnotherFilesystemIsReported(t *testing.T) {
	t.Parallel()
	for kind, want := range map[string]bool{"": false, "ext4": true, "xfs": false} {
		c, bad := checkStore(kind, "xfs")
		if bad != want || bad && (c.Level != 1 || c.Detail == "" || c.Hint == "") {
			t.Errorf(`a store of %q: bad = %v, c = %+v, want bad == %v and (bad == false or c.Level == 1 and c.Detail != "" and c.Hint != "")`,
				kind, bad, c, want)
		}
	}
}
