// SPDX-License-Identifier: Apache-2.0

package access

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/user"
	"slices"
	"strconv"
	"strings"
)

// Config is the table [access] of box.toml.
type Config struct {
	DefaultRole Role   `toml:"default_role"`
	Tokens      string `toml:"tokens"`
}

// DefaultConfig returns the built-in configuration.
func DefaultConfig() Config { return Config{DefaultRole: User, Tokens: "/etc/boxd/tokens"} }

// Rule is a table [principals.NAME]: who the principal is, and its role. At most one of User, UID, Group and GID is set; with
// none, only tokens and certificates identify it.
type Rule struct {
	Role   Role    `toml:"role"`
	User   string  `toml:"user,omitempty"`
	UID    *uint32 `toml:"uid,omitempty"`
	Group  string  `toml:"group,omitempty"`
	GID    *uint32 `toml:"gid,omitempty"`
	Shared bool    `toml:"shared,omitempty"` // the members of a group are one principal
	// Certificates are the certificate names by which TLS callers are this principal, as in "DNS:ci.example.org".
	Certificates []string `toml:"certificates,omitempty"`
}

// maxName is the longest name of a principal, in bytes.
const maxName = 64

// validName reports whether a principal may have this name. Names with a colon, such as uid:1000, are reserved for boxd.
func validName(name string) bool {
	if name == "" || len(name) > maxName || !isWord(rune(name[0])) {
		return false
	}
	return !strings.ContainsFunc(name, func(r rune) bool { return !isWord(r) && !strings.ContainsRune("._@-", r) })
}

func isWord(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
}

// ValidateRules reports what is wrong with the rules themselves, whatever users the host has.
func ValidateRules(c Config, rules map[string]Rule) error {
	var errs []error
	bad := func(key string, value any, allowed string) {
		errs = append(errs, fmt.Errorf("%s = %v: must be %s", key, value, allowed))
	}
	if c.Tokens != "" && !strings.HasPrefix(c.Tokens, "/") {
		bad("access.tokens", strconv.Quote(c.Tokens), "an absolute path, or empty")
	}
	uids, certificates := map[uint32]string{}, map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(rules)) {
		r, key := rules[name], "principals."+name
		if !validName(name) {
			bad(key, "a table", fmt.Sprintf("named with at most %d letters, digits, and . _ @ - after the first", maxName))
		}
		validateCertificates(key, name, r.Certificates, certificates, bad)
		forms := 0
		for _, yes := range []bool{r.User != "", r.UID != nil, r.Group != "", r.GID != nil} {
			if yes {
				forms++
			}
		}
		switch {
		case forms > 1:
			bad(key, "of several", "one of user, uid, group and gid")
		case r.Shared && r.Group == "" && r.GID == nil:
			bad(key+".shared", true, "false without group or gid")
		case r.UID != nil && *r.UID == 0 || r.User == "root":
			bad(key, "root", "a user other than root, who is always admin under the name uid:0")
		case r.UID != nil && uids[*r.UID] != "":
			bad(key+".uid", *r.UID, "a uid that no other principal has ("+uids[*r.UID]+" has it)")
		case r.UID != nil:
			uids[*r.UID] = name
		}
	}
	return errors.Join(errs...)
}

// Table is the rules resolved on this host.
type Table struct {
	defaultRole Role
	users       map[uint32]named
	gids        []named          // in order of precedence
	shut        map[uint32]named // members of groups with the role none, by the user database
	byName      map[string]named
	// certificates maps certificate names to principals.
	certificates map[string]string
	user         func(name string) (*user.User, error)
}

type named struct {
	name string
	Rule
	uid, gid uint32
	fits     bool // names one user, who exists
}

// HostLookup looks up users and groups of the host by name.
type HostLookup struct {
	User  func(name string) (*user.User, error)
	Group func(name string) (*user.Group, error)
	// Members returns the users of a group, those with it as primary group included; nil: not available.
	Members func(gid uint32) ([]uint32, error)
}

// LookupHost returns the HostLookup of /etc/passwd and /etc/group. Users known only to another service must be given by number.
func LookupHost() HostLookup {
	return HostLookup{User: user.Lookup, Group: user.LookupGroup, Members: members(os.DirFS("/etc"))}
}

// ResolveRules builds the table from rules that ValidateRules accepted. A rule about a user or group that the host lacks, or that
// another rule already has under another name, matches no caller; loud lists those.
func ResolveRules(c Config, rules map[string]Rule, host HostLookup) (t *Table, loud []string) {
	t = &Table{defaultRole: c.DefaultRole, users: map[uint32]named{}, byName: map[string]named{}, shut: map[uint32]named{}, certificates: nameCertificates(rules), user: host.User}
	for _, name := range slices.Sorted(maps.Keys(rules)) {
		r := named{name: name, Rule: rules[name], uid: NoUser, gid: NoUser}
		err := t.add(&r, host)
		if err != nil {
			loud = append(loud, fmt.Sprintf("principals.%s matches no caller: %v", name, err))
		}
		if err := t.noteDenied(&r, host); err != nil {
			loud = append(loud, fmt.Sprintf("principals.%s: former group members keep access: %v", name, err))
		}
		t.byName[name] = r
	}
	slices.SortStableFunc(t.gids, func(a, b named) int { // "none" wins, then the highest role
		return cmp.Or(cmp.Compare(a.rank(), b.rank()), cmp.Compare(a.name, b.name))
	})
	return t, loud
}

// rank orders rules about groups by precedence.
func (r *named) rank() int {
	if r.Role == 0 {
		return 0
	}
	return 1 + int(Admin-r.Role)
}

func (t *Table) add(r *named, host HostLookup) error {
	switch {
	case r.UID != nil:
		r.uid, r.fits = *r.UID, true
	case r.User != "":
		u, err := host.User(r.User)
		if err != nil {
			return fmt.Errorf("unknown user %q", r.User)
		}
		uid, err := number(u.Uid)
		gid, err2 := number(u.Gid)
		if err := errors.Join(err, err2); err != nil {
			return err
		}
		if uid == 0 {
			return fmt.Errorf("the user %q is root, who is always admin under the name uid:0", r.User)
		}
		r.uid, r.gid, r.fits = uid, gid, true
	case r.GID != nil:
		r.gid = *r.GID
	case r.Group != "":
		g, err := host.Group(r.Group)
		if err != nil {
			return fmt.Errorf("unknown group %q", r.Group)
		}
		if r.gid, err = number(g.Gid); err != nil {
			return err
		}
	default:
		return nil // for tokens only
	}
	if !r.fits {
		t.gids = append(t.gids, *r)
		return nil
	}
	if other, ok := t.users[r.uid]; ok {
		return fmt.Errorf("uid %d is already principals.%s", r.uid, other.name)
	}
	t.users[r.uid] = *r
	return nil
}

func number(text string) (uint32, error) {
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		return 0, fmt.Errorf("%q is not a user or group id", text)
	}
	return uint32(n), nil
}

// OfUser returns the principal of a host user. A rule about the user takes precedence over those about its groups; among several
// groups the highest role wins, but "none" beats all. A process has the groups it was started with, or fewer, so "none" applies
// to members by the user database too.
func (t *Table) OfUser(uid, gid uint32, groups []uint32) Principal {
	p := Principal{Name: OfUser(uid), UID: uid, GID: gid, Groups: groups, Role: t.defaultRole, Rule: "access.default_role"}
	if uid == 0 {
		p.Role, p.Rule = Admin, "root"
		return p
	}
	if r, ok := t.users[uid]; ok {
		p.Name, p.Role, p.Rule = r.name, r.Role, "principals."+r.name
		return p
	}
	if r, ok := t.shut[uid]; ok {
		p.Role, p.Rule = r.Role, "principals."+r.name
		if r.Shared {
			p.Name = r.name
		}
		return p
	}
	for i := range t.gids {
		r := &t.gids[i]
		if r.gid != gid && !slices.Contains(groups, r.gid) {
			continue
		}
		p.Role, p.Rule = r.Role, "principals."+r.name
		if r.Shared {
			p.Name = r.name
		}
		return p
	}
	return p
}

// OfName returns the principal of a table [principals.NAME], for a token or certificate; ok is false if there is none.
func (t *Table) OfName(name string) (p Principal, ok bool) {
	r, ok := t.byName[name]
	if !ok {
		return p, false
	}
	return Principal{Name: name, UID: r.uid, GID: r.gid, Role: r.Role, Rule: "principals." + name}, true
}

// Person resolves a name as a person writes it: the NAME of a table [principals.NAME], "uid:N", or a user name of this host.
// Every spelling yields the same name and uid, NoUser if it is no host user. ok is false if none matches.
func (t *Table) Person(written string) (name string, uid uint32, ok bool) {
	if r, ok := t.byName[written]; ok {
		if t.users[r.uid].name != written { // for tokens, for a group, or matches no caller
			return written, NoUser, true
		}
		return written, r.uid, true
	}
	if uid, ok = UserOf(written); !ok && t.user == nil {
		return "", NoUser, false
	} else if !ok {
		u, err := t.user(written)
		if err != nil {
			return "", NoUser, false
		}
		if uid, err = number(u.Uid); err != nil {
			return "", NoUser, false
		}
	}
	if r, ok := t.users[uid]; ok {
		return r.name, uid, true
	}
	return OfUser(uid), uid, true
}

// Usual returns the role of principals without a rule.
func (t *Table) Usual() Role { return t.defaultRole }

// Knows reports whether a principal may have this name: a table [principals.NAME], or a host user.
func (t *Table) Knows(name string) bool {
	_, user := UserOf(name)
	_, named := t.byName[name]
	return user || named
}
