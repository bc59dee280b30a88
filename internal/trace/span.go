// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"strconv"
	"strings"
	"time"
)

// What a span may have, so that no caller makes it long.
const (
	maxAttributes = 16
	usual         = 8   // attributes
	maxValue      = 256 // bytes of a value, and of a name
)

// Kind is where a span is seen from, by its number in OTLP.
type Kind int

// Kinds of spans.
const (
	Internal Kind = 1
	Server   Kind = 2 // it answers a request
)

// Span is something that has a beginning, an end and a trace it belongs to. A nil Span is one that is not recorded: its
// methods do nothing. One goroutine at a time may use it.
type Span struct {
	tracer *Tracer

	trace      [16]byte
	id, parent [8]byte // the parent is 0 in the first of a trace
	flags      byte
	remote     bool // the parent is another program's
	kind       Kind
	name       string
	begin, end time.Time
	attributes []attribute
	failed     bool
	why        string // it has failed, in a word or two
}

// attribute is a number, or a text.
type attribute struct {
	key, text string
	number    int64
	isNumber  bool
}

// flagSampled says that a trace is recorded.
const flagSampled = 1

// Begin begins the span of a request if it is recorded: a caller that sends a traceparent has decided that, of all others the
// ratio does. The traceparent of the request becomes that of the span, for whoever goes on with it. A nil Tracer records
// nothing and leaves the request as it is.
func (t *Tracer) Begin(r *Request) *Span {
	if t == nil {
		return nil
	}
	s := &Span{tracer: t, kind: Server, begin: time.Now()}
	_, _ = rand.Read(s.id[:]) // cannot fail
	if r.Parent == "" {
		_, _ = rand.Read(s.trace[:])
		if binary.BigEndian.Uint64(s.trace[8:])>>1 < t.below {
			s.flags = flagSampled
		}
		r.Parent = s.parentText()
	} else if s.join(r.Parent) {
		s.remote = true
		r.Parent = s.parentText()
	}
	if s.flags&flagSampled == 0 {
		return nil
	}
	s.attributes = make([]attribute, 0, usual)
	return s
}

// Ended records something that has ended now, in the trace of the request of a traceparent if that one is recorded, and returns
// it so that more is said of it before End.
func (t *Tracer) Ended(parent string, took time.Duration) *Span {
	if t == nil || parent == "" {
		return nil
	}
	s := &Span{tracer: t, kind: Internal, end: time.Now()}
	if !s.join(parent) {
		return nil
	}
	_, _ = rand.Read(s.id[:])
	s.begin, s.attributes = s.end.Add(-took), make([]attribute, 0, usual)
	return s
}

// join makes a span the child of a traceparent that is in the form of version 00, and reports whether that one is recorded.
func (s *Span) join(parent string) bool {
	if len(parent) != parentLen {
		return false
	}
	flags, err := strconv.ParseUint(parent[53:], 16, 8)
	_, bad := hex.Decode(s.trace[:], []byte(parent[3:35]))
	_, worse := hex.Decode(s.parent[:], []byte(parent[36:52]))
	if err != nil || bad != nil || worse != nil {
		return false
	}
	s.flags = byte(flags)
	return flags&flagSampled != 0
}

// parentText is the traceparent of what a span is the parent of.
func (s *Span) parentText() string {
	text := make([]byte, 0, parentLen)
	text = append(text, "00-"...)
	text = hex.AppendEncode(text, s.trace[:])
	text = append(text, '-')
	text = hex.AppendEncode(text, s.id[:])
	text = append(text, '-')
	return string(hex.AppendEncode(text, []byte{s.flags}))
}

// Set says something of a span. What is empty is not said; of what is long its beginning is.
func (s *Span) Set(key, text string) {
	if s != nil && text != "" && len(s.attributes) < maxAttributes {
		s.attributes = append(s.attributes, attribute{key: key, text: bounded(text)})
	}
}

// SetNumber says a number.
func (s *Span) SetNumber(key string, n int) {
	if s != nil && len(s.attributes) < maxAttributes {
		s.attributes = append(s.attributes, attribute{key: key, number: int64(n), isNumber: true})
	}
}

// Fail says that it has failed, and why in a word or two, which are of a closed set.
func (s *Span) Fail(why string) {
	if s != nil {
		s.failed, s.why = true, bounded(why)
	}
}

// End ends a span and gives it to who sends it, without waiting for anybody. The name is one of few: no id is in it.
func (s *Span) End(name string) {
	if s == nil {
		return
	}
	s.name = bounded(name)
	if s.end.IsZero() {
		s.end = s.begin.Add(time.Since(s.begin)) // by the clock that only goes forward
	}
	select {
	case s.tracer.queue <- s:
	default:
		s.tracer.dropped.Add(1)
	}
}

// bounded is a text as a message may have it: UTF-8, and not long.
func bounded(text string) string {
	if len(text) > maxValue {
		text = text[:maxValue]
	}
	return strings.ToValidUTF8(text, "")
}

// Method is that of a request, as a span may have it: a caller can send any word.
func Method(method string) string {
	switch method {
	case "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS":
		return method
	}
	return "_OTHER"
}
