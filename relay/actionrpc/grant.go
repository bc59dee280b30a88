// SPDX-License-Identifier: Apache-2.0

// LangBot's own admission: its policy, grants and revocations, and who may have a session by them.

package actionrpc

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// Grant allows one Workspace its sandbox, for a while.
type Grant struct {
	Instance     string
	Workspace    string
	Generation   int64 // of its placement
	Revision     int64 // of what the Workspace is entitled to
	Expires      time.Time
	MaxSessions  int64
	MaxProcesses int64
}

// Revocation takes away what was granted up to a revision.
type Revocation struct {
	Instance  string
	Workspace string
	Revision  int64
}

// maxID is how many characters the id of a Workspace has, at most, as on the relay.
const maxID = 256

// reader reads the fields of a model and remembers what is wrong with them. Here nothing is read forgivingly.
type reader struct {
	fields map[string]json.RawMessage
	known  []string
	wrong  []string
}

func (r *reader) bad(field, what string) { r.wrong = append(r.wrong, field+"\n  "+what) }

// field is the value of one that has to be there.
func (r *reader) field(name string) (json.RawMessage, bool) {
	r.known = append(r.known, name)
	raw, given := r.fields[name]
	if !given {
		r.bad(name, "Field required")
	}
	return raw, given
}

func (r *reader) id(name string) string {
	raw, given := r.field(name)
	if !given {
		return ""
	}
	s, ok := stringOf(raw)
	s = strings.TrimSpace(s)
	switch {
	case !ok:
		r.bad(name, "Input should be a valid string")
	case s == "":
		r.bad(name, "Value error, must not be empty")
	case utf8.RuneCountInString(s) > maxID:
		r.bad(name, "Value error, must have at most 256 characters")
	}
	return s
}

// integer is a number of JSON without a fraction.
var integer = regexp.MustCompile(`^-?[0-9]+$`)

func (r *reader) whole(name string, least int64) int64 {
	raw, given := r.field(name)
	if !given {
		return 0
	}
	n, ok := strictInt(raw)
	switch {
	case !ok && !integer.MatchString(strings.TrimSpace(string(raw))):
		r.bad(name, "Value error, must be an integer")
	case !ok:
		r.bad(name, "Value error, must be an integer of 64 bits")
	case n < least:
		r.bad(name, "Input should be greater than or equal to "+map[int64]string{0: "0", 1: "1"}[least])
	}
	return n
}

// Forms of a time: with where it is from, and without, which is refused by another word.
var (
	zoned = []string{"2006-01-02T15:04:05Z07:00", "2006-01-02T15:04:05Z0700", "2006-01-02T15:04Z07:00"}
	naive = []string{"2006-01-02T15:04:05", "2006-01-02T15:04", time.DateOnly}
)

// longestTime is more than any of these has.
const longestTime = 64

func (r *reader) time(name string) time.Time {
	raw, given := r.field(name)
	if !given {
		return time.Time{}
	}
	s, ok := stringOf(raw)
	s = strings.TrimSpace(s)
	if !ok || len(s) > longestTime {
		r.bad(name, "Input should be a valid datetime")
		return time.Time{}
	}
	if len(s) > len(time.DateOnly) && strings.ContainsAny(s[len(time.DateOnly):len(time.DateOnly)+1], " t_") {
		s = s[:len(time.DateOnly)] + "T" + s[len(time.DateOnly)+1:]
	}
	if last := len(s) - 1; last > 0 && s[last] == 'z' {
		s = s[:last] + "Z"
	}
	for _, form := range zoned {
		if at, err := time.Parse(form, s); err == nil { // a fraction of a second is read too
			return at
		}
	}
	if slices.ContainsFunc(naive, func(form string) bool { _, err := time.Parse(form, s); return err == nil }) {
		r.bad(name, "Value error, "+name+" must include a timezone")
	} else {
		r.bad(name, "Input should be a valid datetime")
	}
	return time.Time{}
}

// printable is a name of a key that is repeated: no class of an error, by which clients would take it for another.
var printable = regexp.MustCompile(`^[a-z_]{1,64}$`)

// error is what was wrong.
func (r *reader) error(model string) error {
	for name := range r.fields {
		switch {
		case slices.Contains(r.known, name):
		case printable.MatchString(name):
			r.bad(name, "Extra inputs are not permitted")
		default:
			r.bad("(another key)", "Extra inputs are not permitted")
		}
	}
	if len(r.wrong) == 0 {
		return nil
	}
	slices.Sort(r.wrong) // maps have no order
	return refusalf("BoxValidationError", "%s", problemText(model, r.wrong))
}

// ReadGrant reads a SandboxAdmissionGrant.
func ReadGrant(fields map[string]json.RawMessage) (*Grant, error) {
	r := &reader{fields: fields}
	g := &Grant{
		Instance: r.id("instance_uuid"), Workspace: r.id("workspace_uuid"), Generation: r.whole("execution_generation", 1), Revision: r.whole("entitlement_revision", 1),
		Expires: r.time("expires_at"), MaxSessions: r.whole("max_sessions", 0), MaxProcesses: r.whole("max_managed_processes", 0),
	}
	return g, r.error("SandboxAdmissionGrant")
}

// ReadRevocation reads a SandboxAdmissionRevocation.
func ReadRevocation(fields map[string]json.RawMessage) (*Revocation, error) {
	r := &reader{fields: fields}
	v := &Revocation{Instance: r.id("instance_uuid"), Workspace: r.id("workspace_uuid"), Revision: r.whole("entitlement_revision", 1)}
	return v, r.error("SandboxAdmissionRevocation")
}

// Receipt is the answer to a grant that is in force. LangBot compares it with what it has sent.
func (g *Grant) Receipt() map[string]any {
	form := "2006-01-02T15:04:05.000000-07:00"
	if g.Expires.Nanosecond()/int(time.Microsecond) == 0 {
		form = "2006-01-02T15:04:05-07:00"
	}
	return map[string]any{
		"installed": true, "workspace_uuid": g.Workspace, "execution_generation": g.Generation, "entitlement_revision": g.Revision,
		"max_sessions": g.MaxSessions, "max_managed_processes": g.MaxProcesses, "expires_at": g.Expires.Format(form),
	}
}
