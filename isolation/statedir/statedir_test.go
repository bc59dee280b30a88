// SPDX-License-Identifier: Apache-2.0

package statedir_test

import (
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/statedir"
)

func TestASkillIsATreeOfOneStore(t *testing.T) {
	t.Parallel()
	mine, other := isolation.Skill{Owner: "uid:1", Tree: "t"}, isolation.Skill{Owner: "uid:2", Tree: "t"}
	ours := isolation.Skill{Owner: "uid:1", BuiltIn: true, Tree: "t"}
	if a, b, c := statedir.SkillPath(&mine), statedir.SkillPath(&other), statedir.SkillPath(&ours); a == b || a == c || c != "skills/builtin/trees/t" || !strings.HasSuffix(a, "/trees/t") {
		t.Errorf(`a = %s, b = %s, c = %s, want a != b and a != c and c == "skills/builtin/trees/t" and a ending with "/trees/t"`,
			a, b, c)
	}
	for _, owner := range []string{"", ".", "..", "../builtin", "builtin", "/etc", strings.Repeat("x", 5000)} {
		k := isolation.Skill{Owner: owner, Tree: "t"}
		if part := strings.Split(statedir.SkillPath(&k), "/"); len(part) != 4 || len(part[1]) != 34 || !strings.HasPrefix(part[1], "u-") {
			t.Errorf(`the store of %.20q is %s, want len(part) == 4 and len(part[1]) == 34 and part[1] starting with "u-"`,
				owner, statedir.SkillPath(&k))
		}
	}
}

func TestADriveIsATreeOfItsOwnStore(t *testing.T) {
	t.Parallel()
	skill, drive := isolation.Skill{Owner: "uid:1", Tree: "t"}, isolation.Skill{Owner: "uid:1", Drive: "me/data", Tree: "t"}
	if a, b := statedir.SkillPath(&skill), statedir.SkillPath(&drive); b != strings.Replace(a, "skills/", "drives/", 1) || !strings.HasPrefix(b, "drives/u-") {
		t.Errorf(`a = %s, b = %s, want b == strings.Replace(a, "skills/", "drives/", 1) and b starting with "drives/u-"`,
			a, b)
	}
}
