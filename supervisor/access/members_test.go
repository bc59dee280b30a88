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

// Who is shut out as a member of a group is so after it has left the group too, by setgroups or newgrp: for the user
// database it is a member, as one that the list of the group names or whose own group it is.
func TestWhoIsShutOutDoesNotGetInByLeavingAGroup(t *testing.T) {
	t.Parallel()
	host := HostLookup{Members: members(fstest.MapFS{"passwd": {Data: []byte(somePasswd)}, "group": {Data: []byte(someGroups)}})}
	table, loud := ResolveRules(Config{DefaultRole: User}, map[string]Rule{
		"banned": {GID: new(uint32(700))},
		"devs":   {Role: Operator, GID: new(uint32(500))},
		"eve":    {Role: Viewer, UID: new(uint32(1003))}, // what is said of a user goes before
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
		{1005, []uint32{700}, 0, "principals.banned"}, // whom the database does not know
		{1005, []uint32{500}, Operator, "principals.devs"},
		{0, []uint32{700}, Admin, "root"},
	} {
		if p := table.OfUser(tc.uid, 4000, tc.groups); p.Role != tc.role || p.Rule != tc.rule {
			t.Errorf("%d with %v: %v by %s, want %v by %s", tc.uid, tc.groups, p.Role, p.Rule, tc.role, tc.rule)
		}
	}
	_, loud = ResolveRules(Config{}, map[string]Rule{"banned": {GID: new(uint32(700))}}, HostLookup{Members: members(fstest.MapFS{})})
	if len(loud) != 1 || !strings.Contains(loud[0], "banned") {
		t.Errorf("without a database it says %q", loud)
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
				t.Errorf("%d is nobody's", uid)
			}
		}
	})
}

// FuzzRevocations feeds arbitrary files of lists of revoked certificates to the reader: it answers or refuses.
func FuzzRevocations(f *testing.F) {
	f.Add([]byte("-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n"))
	f.Add([]byte("-----BEGIN CERTIFICATE-----\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if lists, err := parseRevocationLists(data); err == nil && len(lists) == 0 {
			t.Fatalf("no list in %q", data)
		}
	})
}
