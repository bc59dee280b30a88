// SPDX-License-Identifier: Apache-2.0

// Package access knows who is calling, in which role.
package access

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/boxd-dev/boxd/internal/fault"
)

// Role is what a principal may do. Each role includes those before it.
type Role uint8

// The roles. The zero Role may do nothing.
const (
	Viewer   Role = iota + 1 // see its own resources
	User                     // use its own resources
	Operator                 // see and end everyone's, and read what happened
	Admin                    // everything
)

// String returns the role's name in box.toml and the API.
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

// Roles lists the names of the roles, the least privileged first.
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

// NoUser is the uid and gid of a principal that is no host user. It owns no files.
const NoUser = 65534

// Principal identifies a caller. Session ids belong to it: two principals may both have "s1".
type Principal struct {
	Name   string // "uid:1000", or the name in box.toml
	UID    uint32 // mounts are checked against it
	GID    uint32
	Groups []uint32
	Role   Role
	// Rule is where the role comes from: a key of box.toml, or "grant".
	Rule string
}

// Is reports whether the principal has at least the given role.
func (p Principal) Is(minimum Role) bool { return minimum > 0 && p.Role >= minimum }

// OfUser returns the principal name of a host user.
func OfUser(uid uint32) string { return "uid:" + strconv.FormatUint(uint64(uid), 10) }

// UserOf returns the uid of a name that OfUser made.
func UserOf(name string) (uid uint32, ok bool) {
	digits, ok := strings.CutPrefix(name, "uid:")
	n, err := strconv.ParseUint(digits, 10, 32)
	if !ok || err != nil || OfUser(uint32(n)) != name {
		return 0, false
	}
	return uint32(n), true
}
