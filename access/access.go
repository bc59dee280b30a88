// SPDX-License-Identifier: Apache-2.0

// Package access knows who is calling, and what each may be asked to be.
package access

import "strconv"

// Role is what a principal may do at all; each may do what those before it may.
type Role uint8

// The roles. The zero Role may do nothing.
const (
	Viewer   Role = iota + 1 // see what is its own
	User                     // use what is its own
	Operator                 // see and end what is anybody's, and read what happened
	Admin                    // everything
)

// String returns the name that box.toml and the API have for it.
func (r Role) String() string {
	switch r {
	case Viewer:
		return "viewer"
	case User:
		return "user"
	case Operator:
		return "operator"
	case Admin:
		return "admin"
	default:
		return "none"
	}
}

// Principal is who is calling. Ids of sessions belong to it: two principals may both have "s1".
type Principal struct {
	Name   string // "uid:1000"
	UID    uint32 // for whom mounts are checked
	GID    uint32
	Groups []uint32
	Role   Role
}

// Is reports whether the principal has at least a role.
func (p Principal) Is(least Role) bool { return least > 0 && p.Role >= least }

// OfUser names the principal of a user of the host.
func OfUser(uid uint32) string { return "uid:" + strconv.FormatUint(uint64(uid), 10) }

// RoleOfUser is that of a user of the host of whom nothing else is said.
func RoleOfUser(uid uint32) Role {
	if uid == 0 {
		return Admin
	}
	return User
}
