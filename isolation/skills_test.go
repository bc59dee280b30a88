// SPDX-License-Identifier: Apache-2.0

package isolation

import (
	"strings"
	"testing"
)

func TestChangesOfDrivesAreChecked(t *testing.T) {
	t.Parallel()
	spec := valid()
	for name, tc := range map[string]struct {
		change func(c *ChangeMount)
		ok     bool
	}{
		"as it should be": {func(*ChangeMount) {}, true},
		"another target":  {func(c *ChangeMount) { c.Mount.Target = "/drives/me/other" }, false},
		"of a skill":      {func(c *ChangeMount) { c.Mount.Target = "/skills/data" }, false},
		"above":           {func(c *ChangeMount) { c.Skill.Drive, c.Mount.Target = "me/..", "/drives/me/.." }, false},
		"one name":        {func(c *ChangeMount) { c.Skill.Drive, c.Mount.Target = "me", "/drives/me" }, false},
		"three names":     {func(c *ChangeMount) { c.Skill.Drive, c.Mount.Target = "me/a/b", "/drives/me/a/b" }, false},
		"boxd's own":      {func(c *ChangeMount) { c.Skill.BuiltIn = true }, false},
		"to write to":     {func(c *ChangeMount) { c.Mount.Writable = true }, false},
		"a source":        {func(c *ChangeMount) { c.Mount.Source = "/etc" }, false},
		"a tree above":    {func(c *ChangeMount) { c.Skill.Tree = ".." }, false},
		"replaced":        {func(c *ChangeMount) { c.Op = MountReplace }, false},
	} {
		c := ChangeMount{Key: spec.Key, Op: MountAdd, Mount: Mount{Target: "/drives/me/data"}, Skill: Skill{Owner: "uid:1", Drive: "me/data", Tree: "t-1"}}
		tc.change(&c)
		if err := c.Validate(); (err == nil) != tc.ok {
			t.Errorf("%s: err = %v, want (err == nil) == %v", name, err, tc.ok)
		}
	}
}

func TestChangesOfSkillsAreChecked(t *testing.T) {
	t.Parallel()
	spec := valid()
	for name, tc := range map[string]struct {
		change func(c *ChangeMount)
		field  string
	}{
		"as it should be":   {func(*ChangeMount) {}, ""},
		"its end":           {func(c *ChangeMount) { c.Op, c.Force = MountRemove, true }, ""},
		"any script":        {func(c *ChangeMount) { c.Mount.Target = "/skills/技能 1" }, ""},
		"no tree":           {func(c *ChangeMount) { c.Skill.Tree = "" }, "skill"},
		"a tree above":      {func(c *ChangeMount) { c.Skill.Tree = ".." }, "skill"},
		"a tree below":      {func(c *ChangeMount) { c.Skill.Tree = "a/b" }, "skill"},
		"a tree in capital": {func(c *ChangeMount) { c.Skill.Tree = "A" }, "skill"},
		"a long tree":       {func(c *ChangeMount) { c.Skill.Tree = strings.Repeat("a", 65) }, "skill"},
		"elsewhere":         {func(c *ChangeMount) { c.Mount.Target = "/mnt/a" }, "target"},
		"all of them":       {func(c *ChangeMount) { c.Mount.Target = "/skills" }, "target"},
		"below one":         {func(c *ChangeMount) { c.Mount.Target = "/skills/a/b" }, "target"},
		"above":             {func(c *ChangeMount) { c.Mount.Target = "/skills/.." }, "target"},
		"the directory":     {func(c *ChangeMount) { c.Mount.Target = "/skills/" }, "target"},
		"a directory, too":  {func(c *ChangeMount) { c.Mount.Source = "/etc" }, "skill"},
		"to write to":       {func(c *ChangeMount) { c.Mount.Writable = true }, "skill"},
		"of an owner":       {func(c *ChangeMount) { c.Mount.Owner = 1 }, "skill"},
		"made for it":       {func(c *ChangeMount) { c.Made = "/workspace" }, "skill"},
		"replaced":          {func(c *ChangeMount) { c.Op = MountReplace }, "op"},
		"tidied":            {func(c *ChangeMount) { c.Op = MountTidy }, "op"},
		"no box":            {func(c *ChangeMount) { c.Key = "x" }, "key"},
	} {
		c := ChangeMount{Key: spec.Key, Op: MountAdd, Mount: Mount{Target: "/skills/a"}, Skill: Skill{Owner: "uid:1", Tree: "t-1"}}
		tc.change(&c)
		err := c.Validate()
		if r, ok := err.(*Refusal); (err == nil) != (tc.field == "") || ok && r.Field != tc.field { //nolint:errorlint // it is one
			t.Errorf("%s: %v, want one about %q", name, err, tc.field)
		}
	}
	plain := ChangeMount{Key: spec.Key, Op: MountAdd, Mount: Mount{Source: "/srv", Target: "/skills/a"}}
	if err := plain.Validate(); err == nil {
		t.Error("no error for another mount on the target of a skill")
	}
}
