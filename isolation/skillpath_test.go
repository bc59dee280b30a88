// SPDX-License-Identifier: Apache-2.0

package isolation_test

import (
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/isolation"
)

func TestASkillIsATreeOfOneStore(t *testing.T) {
	t.Parallel()
	mine, other := isolation.Skill{Owner: "uid:1", Tree: "t"}, isolation.Skill{Owner: "uid:2", Tree: "t"}
	ours := isolation.Skill{Owner: "uid:1", BuiltIn: true, Tree: "t"}
	if a, b, c := isolation.SkillPath(&mine), isolation.SkillPath(&other), isolation.SkillPath(&ours); a == b || a == c || c != "skills/builtin/trees/t" || !strings.HasSuffix(a, "/trees/t") {
		t.Errorf("%s, %s, %s", a, b, c)
	}
	for _, owner := range []string{"", ".", "..", "../builtin", "builtin", "/etc", strings.Repeat("x", 5000)} {
		k := isolation.Skill{Owner: owner, Tree: "t"}
		if part := strings.Split(isolation.SkillPath(&k), "/"); len(part) != 4 || len(part[1]) != 34 || !strings.HasPrefix(part[1], "u-") {
			t.Errorf("the store of %.20q is %s", owner, isolation.SkillPath(&k))
		}
	}
}

func TestADriveIsATreeOfItsOwnStore(t *testing.T) {
	t.Parallel()
	skill, drive := isolation.Skill{Owner: "uid:1", Tree: "t"}, isolation.Skill{Owner: "uid:1", Drive: "me/data", Tree: "t"}
	if a, b := isolation.SkillPath(&skill), isolation.SkillPath(&drive); b != strings.Replace(a, "skills/", "drives/", 1) || !strings.HasPrefix(b, "drives/u-") {
		t.Errorf("%s, %s", a, b)
	}
}
