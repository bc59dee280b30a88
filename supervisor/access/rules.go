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

// Rule is a table [principals.NAME]: who that is, and with which role. Of User, UID, Group and GID at most one
// is set; with none, only tokens and certificates make somebody this principal.
type Rule struct {
	Role   Role    `toml:"role"`
	User   string  `toml:"user,omitempty"`
	UID    *uint32 `toml:"uid,omitempty"`
	Group  string  `toml:"group,omitempty"`
	GID    *uint32 `toml:"gid,omitempty"`
	Shared bool    `toml:"shared,omitempty"` // the members of a group are one principal
	// Certificates are names of certificates by which callers over TLS are this principal, as in "DNS:ci.example.org".
	Certificates []string `toml:"certificates,omitempty"`
}

// maxName is how long the name of a principal may be, in bytes.
const maxName = 64

// validName reports whether a principal may be called so. A name has no colon: those that have one are made
// by boxd, as uid:1000 is.
func validName(name string) bool {
	if name == "" || len(name) > maxName || !isWord(rune(name[0])) {
		return false
	}
	return !strings.ContainsFunc(name, func(r rune) bool { return !isWord(r) && !strings.ContainsRune("._@-", r) })
}

func isWord(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
}

// ValidateRules says what is not in order with the rules by themselves, whatever users the host has.
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

// Table is the rules as they hold on this host.
type Table struct {
	usual  Role
	users  map[uint32]named
	gids   []named          // the one that counts first
	shut   map[uint32]named // members of groups that are shut out, by the user database
	byName map[string]named
	// certificates are the principals of names of certificates.
	certificates map[string]string
	user         func(name string) (*user.User, error)
}

type named struct {
	name string
	Rule
	uid, gid uint32
	fits     bool // its user
}

// HostLookup finds users and groups of the host by name.
type HostLookup struct {
	User  func(name string) (*user.User, error)
	Group func(name string) (*user.Group, error)
	// Members are the users of a group, those that have it as their own included; nil: nobody knows.
	Members func(gid uint32) ([]uint32, error)
}

// LookupHost is the Lookup of /etc/passwd and /etc/group. Users that only another service knows have to be given by
// number.
func LookupHost() HostLookup {
	return HostLookup{User: user.Lookup, Group: user.LookupGroup, Members: members(os.DirFS("/etc"))}
}

// ResolveRules makes the table of rules that Validate has found in order. A rule about a user or group that the host
// does not have, or about one that another rule has under another name, matches no caller: loud says which those are.
func ResolveRules(c Config, rules map[string]Rule, host HostLookup) (t *Table, loud []string) {
	t = &Table{usual: c.DefaultRole, users: map[uint32]named{}, byName: map[string]named{}, shut: map[uint32]named{}, certificates: nameCertificates(rules), user: host.User}
	for _, name := range slices.Sorted(maps.Keys(rules)) {
		r := named{name: name, Rule: rules[name], uid: NoUser, gid: NoUser}
		err := t.add(&r, host)
		if err != nil {
			loud = append(loud, fmt.Sprintf("principals.%s matches no caller: %v", name, err))
		}
		if err := t.shutOut(&r, host); err != nil {
			loud = append(loud, fmt.Sprintf("principals.%s: who leaves that group is not shut out: %v", name, err))
		}
		t.byName[name] = r
	}
	slices.SortStableFunc(t.gids, func(a, b named) int { // "none" shuts out, and then the most counts
		return cmp.Or(cmp.Compare(a.rank(), b.rank()), cmp.Compare(a.name, b.name))
	})
	return t, loud
}

// rank orders rules about groups, the one that counts first.
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
		return nil // for tokens alone
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

// OfUser is the principal that a user of the host is. A rule about the user goes before those about its groups;
// of several about groups the highest role counts, but "none" before all. A process has the groups that it was started
// with, or less: who is shut out as a member of one is so by the user database too.
func (t *Table) OfUser(uid, gid uint32, groups []uint32) Principal {
	p := Principal{Name: OfUser(uid), UID: uid, GID: gid, Groups: groups, Role: t.usual, Rule: "access.default_role"}
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

// OfName is the principal of a table [principals.NAME], for whom a token or certificate speaks; ok is false if there is none.
func (t *Table) OfName(name string) (p Principal, ok bool) {
	r, ok := t.byName[name]
	if !ok {
		return p, false
	}
	return Principal{Name: name, UID: r.uid, GID: r.gid, Role: r.Role, Rule: "principals." + name}, true
}

// Person finds whom somebody has written: as a table [principals.NAME] is called, as "uid:N", or as a user of this host is.
// However it is written, it is the same person, of which these are the name and, NoUser if it is no user, the uid. Nobody
// may be called so.
func (t *Table) Person(written string) (name string, uid uint32, ok bool) {
	if r, ok := t.byName[written]; ok {
		if t.users[r.uid].name != written { // it is for tokens, of a group, or matches no caller
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

// Usual is the role of whom no rule is about.
func (t *Table) Usual() Role { return t.usual }

// Knows reports whether somebody may be called so: a table [principals.NAME], or a user of the host.
func (t *Table) Knows(name string) bool {
	_, user := UserOf(name)
	_, named := t.byName[name]
	return user || named
}
