// SPDX-License-Identifier: Apache-2.0

// Package fault is the closed set of reasons for which boxd refuses or fails a request.
package fault

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Kind says what a caller can do about an error. An error without a Kind is Internal.
type Kind uint8

// The kinds, in the order of their numbers. They may be extended, never renumbered.
const (
	Internal        Kind = iota // a defect or a host failure; the caller can only report it
	Invalid                     // the request itself is wrong
	NotFound                    // no such thing, or not the caller's
	Conflict                    // the thing exists and differs, or is in the wrong state
	Denied                      // policy or a profile forbids it
	Exhausted                   // a limit is reached; later or less may work
	Unsupported                 // this build or host cannot do it
	Unavailable                 // a part of boxd is not running at the moment
	Unauthenticated             // the caller is not known
)

var kindNames = [...]string{
	"internal", "invalid", "not_found", "conflict", "denied", "exhausted", "unsupported", "unavailable", "unauthenticated",
}

// String returns the stable lower-case name that appears in problem types.
func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return "kind-" + strconv.Itoa(int(k))
}

// Error is a refusal that a caller can act on. Only Kind is required.
type Error struct {
	Kind    Kind
	Field   string // the request or configuration field at fault, in the caller's spelling
	Value   string // what was given, shortened
	Allowed string // what would have been accepted
	Hint    string // what to do next, one sentence
	Err     error  // what happened; its text may change in any release
	// Denial is the rule that refused; nil where no rule did.
	Denial *Denial
}

// Errorf returns an Error of kind k. It formats like fmt.Errorf, %w included.
func Errorf(k Kind, format string, args ...any) *Error {
	return &Error{Kind: k, Err: fmt.Errorf(format, args...)}
}

// Field returns an Invalid error that names the field, the value given and what is allowed.
func Field(field string, value any, allowed string) *Error {
	return &Error{
		Kind: Invalid, Field: field, Value: shorten(fmt.Sprint(value)), Allowed: allowed,
		Err: errors.New(refusal(field, value, allowed)),
	}
}

// refusal returns the text of every refusal of a field: which one, what was given, and what it
// must be.
func refusal(field string, value any, allowed string) string {
	if word, ok := value.(Word); ok {
		return field + " is " + string(word) + ": must be " + allowed
	}
	return field + " = " + Show(value) + ": must be " + allowed
}

// WithHint returns e with the hint set; it is meant for the line that makes the error.
func (e *Error) WithHint(format string, args ...any) *Error {
	e.Hint = fmt.Sprintf(format, args...)
	return e
}

// WithText returns e with another text, for a field where "must be" does not say what is wrong: what failed, and why. Field,
// Value and Allowed stay for programs that read them.
func (e *Error) WithText(format string, args ...any) *Error {
	e.Err = fmt.Errorf(format, args...)
	return e
}

// OneOf lists what a field may be, as it reads after "must be": "off, egress or host".
func OneOf(words ...string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " or " + words[last]
}

// Of returns e with another kind, for example a field refused by policy (Denied).
func (e *Error) Of(k Kind) *Error {
	e.Kind = k
	return e
}

func (e *Error) Error() string {
	if e.Err == nil {
		return e.Kind.String()
	}
	return e.Err.Error()
}

// Unwrap returns the cause, so that errors.Is and errors.As see through an Error.
func (e *Error) Unwrap() error { return e.Err }

// KindOf returns the kind of the outermost Error in err's chain, Internal if there is none.
func KindOf(err error) Kind {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Kind
	}
	return Internal
}

// showLimit keeps error texts readable when a caller sends an id of ten thousand characters.
const showLimit = 64

// Word stands for a value in an error text, such as missing: it describes the value instead of
// quoting the caller, so it is shown without quotes.
type Word string

// Show renders a value for an error text: quoted if it is a string, at most 64 bytes of it.
func Show(value any) string {
	s, ok := value.(string)
	if !ok {
		return fmt.Sprint(value)
	}
	if len(s) <= showLimit {
		return strconv.Quote(s)
	}
	return strconv.Quote(truncate(s)) + "… (" + strconv.Itoa(len(s)) + " bytes)"
}

func shorten(s string) string {
	if len(s) <= showLimit {
		return strings.ToValidUTF8(s, "�")
	}
	return strings.ToValidUTF8(truncate(s), "�") + "…"
}

// truncate returns the beginning of a long text without breaking a character.
func truncate(s string) string {
	n := showLimit
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}
