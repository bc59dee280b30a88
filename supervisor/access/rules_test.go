// SPDX-License-Identifier: Apache-2.0

package access_test

import (
	"errors"
	"os/user"
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/supervisor/access"
)

// host returns a user database with the users ci, 1001, and toor, 0, and the group devs, 500.
func host() access.HostLookup {
	return access.HostLookup{
		User: func(name string) (*user.User, error) {
			switch name {
			case "ci":
				return &user.User{Uid: "1001", Gid: "1001"}, nil
			case "toor":
				return &user.User{Uid: "0", Gid: "0"}, nil
			case "nobody":
				return &user.User{Uid: "65534", Gid: "65534"}, nil
			}
			return nil, user.UnknownUserError(name)
		},
		Group: func(name string) (*user.Group, error) {
			if name == "devs" {
				return &user.Group{Gid: "500"}, nil
			}
			return nil, errors.New("no such group")
		},
	}
}

func TestPrincipalRulesMatchUsersAndGroups(t *testing.T) {
	t.Parallel()
	table, loud := access.ResolveRules(access.Config{DefaultRole: access.Viewer}, map[string]access.Rule{
		"ci":     {Role: access.Operator, User: "ci"},
		"again":  {Role: access.Admin, UID: new(uint32(1001))}, // comes first by name, and wins
		"devs":   {Role: access.User, Group: "devs"},
		"team":   {Role: access.Operator, GID: new(uint32(600)), Shared: true},
		"banned": {GID: new(uint32(700))},
		"nobody": {Role: access.Admin, User: "nobody"},
		"gone":   {Role: access.Admin, User: "gone"},
		"lost":   {Role: access.Admin, Group: "lost"},
		"toor":   {Role: access.Viewer, User: "toor"},
		"robot":  {Role: access.User},
	}, host())
	for _, tc := range []struct {
		uid, gid uint32
		groups   []uint32
		name     string
		role     access.Role
		rule     string
	}{
		{0, 0, nil, "uid:0", access.Admin, "root"},
		{0, 700, []uint32{700}, "uid:0", access.Admin, "root"},
		{1001, 1, nil, "again", access.Admin, "principals.again"},
		{4242, 1, nil, "uid:4242", access.Viewer, "access.default_role"},
		{4242, 500, nil, "uid:4242", access.User, "principals.devs"},
		{4242, 1, []uint32{9, 500}, "uid:4242", access.User, "principals.devs"},
		{4242, 1, []uint32{500, 600}, "team", access.Operator, "principals.team"},
		{4242, 1, []uint32{500, 600, 700}, "uid:4242", 0, "principals.banned"},
		{1001, 700, nil, "again", access.Admin, "principals.again"}, // a rule for the user takes precedence
		{65534, 65534, nil, "nobody", access.Admin, "principals.nobody"},
		{4242, 65534, nil, "uid:4242", access.Viewer, "access.default_role"},
	} {
		p := table.OfUser(tc.uid, tc.gid, tc.groups)
		if p.Name != tc.name || p.Role != tc.role || p.Rule != tc.rule || p.UID != tc.uid || p.GID != tc.gid {
			t.Errorf("%d:%d %v is %+v, want %s %v by %s", tc.uid, tc.gid, tc.groups, p, tc.name, tc.role, tc.rule)
		}
	}
	text := strings.Join(loud, "\n")
	for _, want := range []string{
		`principals.gone matches no caller: unknown user "gone"`, `principals.lost matches no caller: unknown group "lost"`,
		"principals.toor matches no caller", "principals.ci matches no caller: uid 1001 is already principals.again",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no message has %q:\n%s", want, text)
		}
	}
	if len(loud) != 4 {
		t.Errorf("loud = %q, want len(loud) == 4", loud)
	}
	if p, ok := table.OfName("robot"); !ok || p.UID != access.NoUser || p.Role != access.User || p.Name != "robot" {
		t.Errorf(`robot is %+v, %v, want ok == true and p.UID == access.NoUser and p.Role == access.User and p.Name == "robot"`,
			p, ok)
	}
	for written, want := range map[string]struct {
		name string
		uid  uint32
	}{
		"again": {"again", 1001}, "ci": {"ci", access.NoUser}, "uid:1001": {"again", 1001}, "nobody": {"nobody", 65534}, "uid:4242": {"uid:4242", 4242},
		"robot": {"robot", access.NoUser}, "devs": {"devs", access.NoUser}, "toor": {"toor", access.NoUser}, "uid:0": {"uid:0", 0}, "stranger": {}, "": {}, "uid:007": {},
	} {
		name, uid, ok := table.Person(written)
		if ok != (want.name != "") || ok && (name != want.name || uid != want.uid) {
			t.Errorf("%q is %q, %d, %v; want %+v", written, name, uid, ok, want)
		}
	}
	for name, want := range map[string]bool{"robot": true, "uid:7": true, "uid:": false, "uid:007": false, "uid:99999999999": false, "other": false, "": false} {
		if table.Knows(name) != want {
			t.Errorf("knows %q: !want = %v, want table.Knows(name) == want", name, !want)
		}
	}
}

func TestConflictingPrincipalRulesAreRefused(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		config access.Config
		rules  map[string]access.Rule
		want   string // "": valid
	}{
		"nothing":       {},
		"for tokens":    {rules: map[string]access.Rule{"a.b_c@d-E9": {}}},
		"two matches":   {rules: map[string]access.Rule{"a": {UID: new(uint32(1)), Group: "x"}}, want: "principals.a"},
		"root":          {rules: map[string]access.Rule{"a": {UID: new(uint32(0))}}, want: "root, who is always admin"},
		"root by name":  {rules: map[string]access.Rule{"a": {User: "root"}}, want: "root, who is always admin"},
		"twice":         {rules: map[string]access.Rule{"a": {UID: new(uint32(5))}, "b": {UID: new(uint32(5))}}, want: "principals.b.uid"},
		"shared by one": {rules: map[string]access.Rule{"a": {UID: new(uint32(5)), Shared: true}}, want: "principals.a.shared"},
		"a colon":       {rules: map[string]access.Rule{"uid:5": {}}, want: "principals.uid:5"},
		"nothing said":  {rules: map[string]access.Rule{"": {}}, want: "principals."},
		"a dot first":   {rules: map[string]access.Rule{".a": {}}, want: "principals..a"},
		"long":          {rules: map[string]access.Rule{strings.Repeat("a", 65): {}}, want: "at most 64"},
		"NUL":           {rules: map[string]access.Rule{"a\x00": {}}, want: "principals.a"},
		"relative":      {config: access.Config{Tokens: "tokens"}, want: "access.tokens"},
	} {
		err := access.ValidateRules(tc.config, tc.rules)
		if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
}
