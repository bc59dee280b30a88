// SPDX-License-Identifier: Apache-2.0

package main

import "testing"

// Each line of a .gitignore is a rule or ignored, and matching never fails on any path.
func FuzzIgnore(f *testing.F) {
	f.Add("*.o\n!keep.o\n/build/\na/**/b\n\\#x\n[a-\n", "a/b/c.o", true)
	f.Add("**\n***/\n!\n/\n\\", "x", false)
	f.Fuzz(func(t *testing.T, text, path string, directory bool) {
		list := parseRules(text)
		if len(list) > maxIgnoreRules {
			t.Errorf("%d rules", len(list))
		}
		for i := range list {
			list[i].matches(path, path, directory)
		}
	})
}
