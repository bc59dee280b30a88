// SPDX-License-Identifier: Apache-2.0

package access

import (
	"io/fs"
	"slices"
	"strings"
)

// noteDenied notes the members of a group whose role is none. A process can drop a group (setgroups(2) in a user namespace,
// newgrp(1)), and would have another role without it.
func (t *Table) noteDenied(r *named, host HostLookup) error {
	if r.Role != 0 || r.fits || r.gid == NoUser || host.Members == nil {
		return nil
	}
	list, err := host.Members(r.gid)
	if err != nil {
		return err
	}
	for _, uid := range list {
		if _, ok := t.shut[uid]; !ok {
			t.shut[uid] = *r
		}
	}
	return nil
}

// members looks up the users of groups in passwd(5) and group(5).
func members(etc fs.FS) func(gid uint32) ([]uint32, error) {
	return func(gid uint32) ([]uint32, error) {
		passwd, err := fs.ReadFile(etc, "passwd")
		if err != nil {
			return nil, err
		}
		groups, err := fs.ReadFile(etc, "group")
		if err != nil {
			return nil, err
		}
		return membersOf(string(passwd), string(groups), gid), nil
	}
}

// membersOf parses the text of both files, and ignores malformed lines.
func membersOf(passwd, groups string, gid uint32) (list []uint32) {
	var names []string
	for line := range strings.Lines(groups) { // name:password:gid:user,user
		f := strings.Split(strings.TrimSpace(line), ":")
		if len(f) != 4 {
			continue
		}
		if id, err := number(f[2]); err == nil && id == gid {
			names = append(names, strings.Split(f[3], ",")...)
		}
	}
	for line := range strings.Lines(passwd) { // name:password:uid:gid:…
		f := strings.Split(strings.TrimSpace(line), ":")
		if len(f) != 7 {
			continue
		}
		uid, err := number(f[2])
		own, err2 := number(f[3])
		if err == nil && err2 == nil && (own == gid || slices.Contains(names, f[0])) {
			list = append(list, uid)
		}
	}
	return list
}
