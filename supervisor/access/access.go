// SPDX-License-Identifier: Apache-2.0

// Package access knows who is calling, in which role.
package access

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/boxd-dev/boxd/internal/fault"
)

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

// Roles lists the names of the roles, the least first.
func Roles() []string {
	var list []string
	for r := Viewer; r <= Admin; r++ {
		list = append(list, r.String())
	}
	return list
}

// UnmarshalText reads the name of a role; "none" is the zero Role.
func (r *Role) UnmarshalText(text []byte) error {
	for known := Role(0); known <= Admin; known++ {
		if known.String() == string(text) {
			*r = known
			return nil
		}
	}
	return fmt.Errorf("unknown role %q: use none, %s", text, fault.OneOf(Roles()...))
}

// MarshalText writes what UnmarshalText reads.
func (r Role) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// NoUser is the uid and gid of a principal that is no user of the host: the one that owns nothing.
const NoUser = 65534

// Principal is who is calling. Ids of sessions belong to it: two principals may both have "s1".
type Principal struct {
	Name   string // "uid:1000", or as box.toml names it
	UID    uint32 // for whom mounts are checked
	GID    uint32
	Groups []uint32
	Role   Role
	// Rule is where the role is from: a key of box.toml, or "grant".
	Rule string
}

// Is reports whether the principal has at least a role.
func (p Principal) Is(least Role) bool { return least > 0 && p.Role >= least }

// OfUser names the principal of a user of the host.
func OfUser(uid uint32) string { return "uid:" + strconv.FormatUint(uint64(uid), 10) }

// UserOf returns the uid of a name that OfUser has made.
func UserOf(name string) (uid uint32, ok bool) {
	digits, ok := strings.CutPrefix(name, "uid:")
	n, err := strconv.ParseUint(digits, 10, 32)
	if !ok || err != nil || OfUser(uint32(n)) != name {
		return 0, false
	}
	return uint32(n), true
}

// RoleOfUser is that of a user of the host of whom nothing else is said.
func RoleOfUser(uid uint32) Role {
	if uid == 0 {
		return Admin
	}
	return User
}
