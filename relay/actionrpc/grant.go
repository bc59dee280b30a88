// SPDX-License-Identifier: Apache-2.0

// LangBot's own admission: its policy, grants and revocations, which decide who may have a session.

package actionrpc

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/boxd-dev/boxd/relay/actionrpc/wire"
)

// Grant allows one Workspace its sandbox until it expires.
type Grant struct {
	Instance     string
	Workspace    string
	Generation   int64 // of its placement
	Revision     int64 // of the Workspace's entitlement
	Expires      time.Time
	MaxSessions  int64
	MaxProcesses int64
}

// Revocation withdraws all grants up to a revision.
type Revocation struct {
	Instance  string
	Workspace string
	Revision  int64
}

// maxID is the maximum length of a Workspace id in characters, the same as on the relay.
const maxID = 256

// reader reads the fields of a model and collects what is wrong with them. It coerces nothing.
type reader struct {
	fields map[string]json.RawMessage
	known  []string
	wrong  []string
}

func (r *reader) bad(field, what string) { r.wrong = append(r.wrong, field+"\n  "+what) }

// field returns a required field.
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
	s, ok := wire.StringOf(raw)
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

// integer matches a JSON number without a fraction.
var integer = regexp.MustCompile(`^-?[0-9]+$`)

func (r *reader) whole(name string, minimum int64) int64 {
	raw, given := r.field(name)
	if !given {
		return 0
	}
	n, ok := wire.StrictInt(raw)
	switch {
	case !ok && !integer.MatchString(strings.TrimSpace(string(raw))):
		r.bad(name, "Value error, must be an integer")
	case !ok:
		r.bad(name, "Value error, must be an integer of 64 bits")
	case n < minimum:
		r.bad(name, "Input should be greater than or equal to "+map[int64]string{0: "0", 1: "1"}[minimum])
	}
	return n
}

// Layouts of a time: with a zone, and without, which has an error message of its own.
var (
	zoned = []string{"2006-01-02T15:04:05Z07:00", "2006-01-02T15:04:05Z0700", "2006-01-02T15:04Z07:00"}
	naive = []string{"2006-01-02T15:04:05", "2006-01-02T15:04", time.DateOnly}
)

// longestTime is longer than any of these layouts.
const longestTime = 64

func (r *reader) time(name string) time.Time {
	raw, given := r.field(name)
	if !given {
		return time.Time{}
	}
	s, ok := wire.StringOf(raw)
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
		if at, err := time.Parse(form, s); err == nil { // this also accepts fractional seconds
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

// printable matches a key that may be repeated in an error: it does not look like an error class to clients.
var printable = regexp.MustCompile(`^[a-z_]{1,64}$`)

// error returns what was wrong.
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
	return wire.Refusef("BoxValidationError", "%s", wire.ProblemText(model, r.wrong))
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

// Receipt is the answer to an installed grant. LangBot compares it with the grant that it sent.
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
