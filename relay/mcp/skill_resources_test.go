// SPDX-License-Identifier: Apache-2.0

package mcp

import "testing"

func TestASkillIsFoundByItsURI(t *testing.T) {
	t.Parallel()
	for uri, want := range map[string][2]string{
		"skill://pdf/SKILL.md": {"pdf", "SKILL.md"}, "skill://pdf/a/b%20c.py": {"pdf", "a/b c.py"}, "skill://p%2Fq/x": {"p/q", "x"},
		"skill://pdf": {}, "skill://pdf/": {}, "skill:///x": {}, "boxd://output/1/stdout": {}, "skill://%zz/x": {}, "skill://a/%": {}, "": {},
	} {
		name, path, ok := skillOf(uri)
		if ok != (want[0] != "") || ok && (name != want[0] || path != want[1]) {
			t.Errorf(`%q is %q, %q, %v, want ok == (want[0] != "") and (ok == false or name == want[0] and path == want[1])`,
				uri, name, path, ok)
		}
	}
}
