// SPDX-License-Identifier: Apache-2.0

// Package trace says for which request something is done: its id, with the W3C trace it belongs to. Both travel in the
// context, to every log line, event and audit record. Where the configuration names a collector, a Tracer sends it spans.
package trace

import (
	"context"
	"crypto/rand"
	"net/http"
	"strings"
)

// MaxID is the longest request id that is accepted from a caller, in bytes.
const MaxID = 128

// parentLen is the length of a traceparent of version 00.
const parentLen = 55

// Headers of requests; the first is in answers of boxd's API too.
const (
	HeaderID     = "X-Request-Id"
	HeaderParent = "Traceparent"
	HeaderState  = "Tracestate"
)

// Request identifies one request. The zero Request means none: boxd acts by itself.
type Request struct {
	ID     string // at most MaxID bytes of letters, digits and -._:/+=@
	Parent string // its traceparent, "" if it has none
	// Principal is the caller, "" if that is not known.
	Principal string
}

// New uses the id and the traceparent of a caller if they are valid. Otherwise it makes a new id,
// and leaves the traceparent out.
func New(id, parent string) Request {
	if !LegalID(id) {
		id = strings.ToLower(rand.Text())
	}
	parent, _ = ParseParent(parent)
	return Request{ID: id, Parent: parent}
}

// FromHeader is New with the headers of a request. One that occurs more than once counts as none.
func FromHeader(h http.Header) Request { return New(only(h, HeaderID), only(h, HeaderParent)) }

func only(h http.Header, name string) string {
	if v := h.Values(name); len(v) == 1 {
		return v[0]
	}
	return ""
}

// LegalID reports whether a caller's request id may be repeated in answers, logs and records.
func LegalID(id string) bool {
	if id == "" || len(id) > MaxID {
		return false
	}
	for _, c := range []byte(id) {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', strings.IndexByte("-._:/+=@", c) >= 0:
		default:
			return false
		}
	}
	return true
}

// ParseParent parses a traceparent as in W3C Trace Context, and returns it in the form of version
// 00. Of a later version, only what version 00 knows is kept.
func ParseParent(s string) (parent string, ok bool) {
	if len(s) < parentLen || s[2] != '-' || s[35] != '-' || s[52] != '-' {
		return "", false
	}
	version, id, span, flags := s[:2], s[3:35], s[36:52], s[53:55]
	switch {
	case !isHex(version) || version == "ff", !isHex(flags):
		return "", false
	case version == "00" && len(s) != parentLen, len(s) > parentLen && s[parentLen] != '-':
		return "", false
	case !isHex(id) || strings.Trim(id, "0") == "", !isHex(span) || strings.Trim(span, "0") == "":
		return "", false
	}
	known := "0" + string("0123"[strings.IndexByte("0123456789abcdef", flags[1])&3]) // the flags sampled and random: all others must be sent as 0
	return "00-" + id + "-" + span + "-" + known, true
}

func isHex(s string) bool { return strings.Trim(s, "0123456789abcdef") == "" }

// key is the context key of a Request.
type key struct{}

// With returns a context with a request.
func With(ctx context.Context, r Request) context.Context { return context.WithValue(ctx, key{}, r) }

// Of returns the request of a context, the zero Request if it has none.
func Of(ctx context.Context) Request {
	r, _ := ctx.Value(key{}).(Request)
	return r
}
