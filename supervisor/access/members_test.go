// SPDX-License-Identifier: Apache-2.0

package access

import (
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

const somePasswd = "root:x:0:0:root:/root:/bin/sh\nann:x:1001:1001:,,,:/home/ann:/bin/sh\nbob:x:1002:700::/home/bob:/bin/sh\n\n# no line\nbad:x:one:700::/:/\neve:x:1003:1003::/home/eve:/bin/sh\nlast:x:1004:1004::/:/bin/sh"

const someGroups = "root:x:0:\nbanned:x:700:ann,eve\nalso:x:700:last\nshort:x:700\nother:x:701:bob,nobody\n"

// A caller refused as a member of a group stays refused after leaving the group by setgroups or newgrp: it is still a member in
// the user database, which lists it in the group or has the group as its primary one.
func TestARefusedCallerStaysRefusedAfterLeavingTheGroup(t *testing.T) {
	t.Parallel()
	host := HostLookup{Members: members(fstest.MapFS{"passwd": {Data: []byte(somePasswd)}, "group": {Data: []byte(someGroups)}})}
	table, loud := ResolveRules(Config{DefaultRole: User}, map[string]Rule{
		"banned": {GID: new(uint32(700))},
		"devs":   {Role: Operator, GID: new(uint32(500))},
		"eve":    {Role: Viewer, UID: new(uint32(1003))}, // a rule for the user takes precedence
		"zero":   {GID: new(uint32(0))},
	}, host)
	if len(loud) > 0 {
		t.Error(loud)
	}
	for _, tc := range []struct {
		uid    uint32
		groups []uint32
		role   Role
		rule   string
	}{
		{1001, []uint32{700}, 0, "principals.banned"},
		{1001, nil, 0, "principals.banned"},
		{1001, []uint32{500}, 0, "principals.banned"},
		{1002, nil, 0, "principals.banned"},
		{1003, nil, Viewer, "principals.eve"},
		{1004, nil, 0, "principals.banned"},
		{1005, []uint32{700}, 0, "principals.banned"}, // unknown to the user database
		{1005, []uint32{500}, Operator, "principals.devs"},
		{0, []uint32{700}, Admin, "root"},
	} {
		if p := table.OfUser(tc.uid, 4000, tc.groups); p.Role != tc.role || p.Rule != tc.rule {
			t.Errorf("%d with %v: %v by %s, want %v by %s", tc.uid, tc.groups, p.Role, p.Rule, tc.role, tc.rule)
		}
	}
	_, loud = ResolveRules(Config{}, map[string]Rule{"banned": {GID: new(uint32(700))}}, HostLookup{Members: members(fstest.MapFS{})})
	if len(loud) != 1 || !strings.Contains(loud[0], "banned") {
		t.Errorf(`without a group database the warning is %q, want len(loud) == 1 and loud[0] containing "banned"`, loud)
	}
}

func FuzzMembers(f *testing.F) {
	f.Add(somePasswd, someGroups, uint32(700))
	f.Add("::::::\n", ":::,", uint32(0))
	f.Fuzz(func(t *testing.T, passwd, groups string, gid uint32) {
		for _, uid := range membersOf(passwd, groups, gid) {
			if !slices.ContainsFunc(strings.Split(passwd, "\n"), func(line string) bool {
				f := strings.Split(strings.TrimSpace(line), ":")
				id, err := number(f[min(2, len(f)-1)])
				return len(f) == 7 && err == nil && id == uid
			}) {
				t.Errorf("uid %d has no name", uid)
			}
		}
	})
}

// FuzzRevocations feeds arbitrary certificate revocation lists to the parser, which accepts or refuses them without a panic.
func FuzzRevocations(f *testing.F) {
	f.Add([]byte("-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n"))
	f.Add([]byte("-----BEGIN CERTIFICATE-----\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if lists, err := parseRevocationLists(data); err == nil && len(lists) == 0 {
			t.Fatalf("no list in %q", data)
		}
	})
}
