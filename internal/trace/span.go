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

// Bounds of a span, so that no caller makes it long.
const (
	maxAttributes = 16
	preallocated  = 8   // attributes
	maxValue      = 256 // bytes of a value, and of a name
)

// Kind is the kind of a span, by its number in OTLP.
type Kind int

// Kinds of spans.
const (
	internal Kind = 1
	server   Kind = 2 // it answers a request
)

// Span is an operation with a beginning, an end and a trace. A nil Span is not recorded: its methods do nothing. Only one
// goroutine may use it at a time.
type Span struct {
	tracer *Tracer

	trace      [16]byte
	id, parent [8]byte // parent is 0 in the first span of a trace
	flags      byte
	remote     bool // the parent is in another program
	kind       Kind
	name       string
	start, end time.Time
	attributes []attribute
	failed     bool
	why        string // why it failed, in a word or two
}

// attribute is a number or a text.
type attribute struct {
	key, text string
	number    int64
	isNumber  bool
}

// flagSampled marks a trace as recorded.
const flagSampled = 1

// Begin begins the span of a request if it is recorded: for a caller that sends a traceparent that flag decides, for others the
// ratio. The request's traceparent becomes that of the span, for further calls. A nil Tracer records nothing and leaves the
// request as it is.
func (t *Tracer) Begin(r *Request) *Span {
	if t == nil {
		return nil
	}
	s := &Span{tracer: t, kind: server, start: time.Now()}
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
	s.attributes = make([]attribute, 0, preallocated)
	return s
}

// Ended records an operation that has just ended, in the trace of a request's traceparent if that is recorded, and returns its
// span for more attributes before End.
func (t *Tracer) Ended(parent string, elapsed time.Duration) *Span {
	if t == nil || parent == "" {
		return nil
	}
	s := &Span{tracer: t, kind: internal, end: time.Now()}
	if !s.join(parent) {
		return nil
	}
	_, _ = rand.Read(s.id[:])
	s.start, s.attributes = s.end.Add(-elapsed), make([]attribute, 0, preallocated)
	return s
}

// join makes a span the child of a traceparent in the form of version 00, and reports whether its trace is recorded.
func (s *Span) join(parent string) bool {
	if len(parent) != parentLen {
		return false
	}
	flags, err := strconv.ParseUint(parent[53:], 16, 8)
	_, bad := hex.Decode(s.trace[:], []byte(parent[3:35]))
	_, parentErr := hex.Decode(s.parent[:], []byte(parent[36:52]))
	if err != nil || bad != nil || parentErr != nil {
		return false
	}
	s.flags = byte(flags)
	return flags&flagSampled != 0
}

// parentText returns the traceparent for children of the span.
func (s *Span) parentText() string {
	text := make([]byte, 0, parentLen)
	text = append(text, "00-"...)
	text = hex.AppendEncode(text, s.trace[:])
	text = append(text, '-')
	text = hex.AppendEncode(text, s.id[:])
	text = append(text, '-')
	return string(hex.AppendEncode(text, []byte{s.flags}))
}

// Set adds an attribute. An empty text is not added; a long one is cut.
func (s *Span) Set(key, text string) {
	if s != nil && text != "" && len(s.attributes) < maxAttributes {
		s.attributes = append(s.attributes, attribute{key: key, text: bounded(text)})
	}
}

// SetNumber adds a numeric attribute.
func (s *Span) SetNumber(key string, n int) {
	if s != nil && len(s.attributes) < maxAttributes {
		s.attributes = append(s.attributes, attribute{key: key, number: int64(n), isNumber: true})
	}
}

// Fail marks the span as failed, with the reason in a word or two of a closed set.
func (s *Span) Fail(why string) {
	if s != nil {
		s.failed, s.why = true, bounded(why)
	}
}

// End ends a span and queues it for sending, without waiting. The name is one of few: it contains no id.
func (s *Span) End(name string) {
	if s == nil {
		return
	}
	s.name = bounded(name)
	if s.end.IsZero() {
		s.end = s.start.Add(time.Since(s.start)) // by the monotonic clock
	}
	select {
	case s.tracer.queue <- s:
	default:
		s.tracer.dropped.Add(1)
	}
}

// bounded returns a text that is valid in a message: UTF-8, and short.
func bounded(text string) string {
	if len(text) > maxValue {
		text = text[:maxValue]
	}
	return strings.ToValidUTF8(text, "")
}

// Method returns the method of a request for a span: a caller can send any word.
func Method(method string) string {
	switch method {
	case "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS":
		return method
	}
	return "_OTHER"
}
