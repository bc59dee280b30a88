// SPDX-License-Identifier: Apache-2.0

package main

import "testing"

// Lines of a .gitignore are rules or nothing, and no path makes one of them fail.
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
