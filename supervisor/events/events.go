// SPDX-License-Identifier: Apache-2.0

// Package events keeps what has happened: a bounded, numbered log of events, which readers resume where they stopped. A writer
// never waits for readers; a slow reader is told how many events it has missed.
package events

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/internal/trace"
)

// MaxDetail is how much of a detail is kept, in bytes.
const MaxDetail = 1024

// maxName is how much of an id is kept, in bytes; no valid id is longer.
const maxName = 256

// Event is one event. Empty fields do not apply.
type Event struct {
	Seq       uint64 // from 1, consecutive; set by Add
	Time      time.Time
	Type      Type
	Session   string
	Owner     string // principal that owns the session
	Principal string // the caller, if any; set by Add from the context
	Process   string // id of a process
	Exec      string // id of an execution that has one
	Profile   string
	Reason    string // one word of a closed set: why it ended, its status, or which limit
	Detail    string // for people
	Took      time.Duration
	ExitCode  int           // of a program that has exited, if that is the reason
	Request   trace.Request // set by Add, from the context
}

// Position is a place after the event of the number, in the life of one boxd.
type Position struct {
	Epoch string
	Seq   uint64
}

// String returns the form that ParsePosition reads.
func (p Position) String() string { return p.Epoch + "-" + strconv.FormatUint(p.Seq, 10) }

// ParsePosition parses the id of an event, after which a reader wants to continue.
func ParsePosition(s string) (Position, error) {
	epoch, number, ok := strings.Cut(s, "-")
	seq, err := strconv.ParseUint(number, 10, 64)
	if !ok || err != nil || len(epoch) != epochLen || strings.Trim(epoch, epochLetters) != "" || strconv.FormatUint(seq, 10) != number {
		return Position{}, fault.Field("after", s, "the id of an event, or latest")
	}
	return Position{epoch, seq}, nil
}

// An epoch is a random string that no other boxd has.
const (
	epochLen     = 12
	epochLetters = "abcdefghijklmnopqrstuvwxyz234567"
)

// Filter selects the events that a reader may and wants to see. The zero Filter passes none.
type Filter struct {
	Everybody bool   // of all owners
	Owner     string // principal that owns the session, or made the request
	Session   string // "": any
	Types     []Type // nil: any
}

func (f *Filter) matches(e *Event) bool {
	return (f.Everybody || f.Owner != "" && (e.Owner == f.Owner || e.Principal == f.Owner && (e.Owner == "" || e.Owner == f.Owner))) &&
		(f.Session == "" || e.Session == f.Session) && (f.Types == nil || slices.Contains(f.Types, e.Type))
}

// Log keeps the latest events. A nil Log accepts events and keeps none.
type Log struct {
	epoch    string
	watchers []func(context.Context, *Event)

	mu      sync.Mutex // guards the fields below
	ring    []Event
	next    uint64        // number of the next event
	changed chan struct{} // closed with the next event; nil if no reader waits
}

// New returns a Log of the last size events. The watchers are called for each event, on the goroutine that adds it, in no order
// among concurrent ones; they must not add events.
func New(size int, watchers ...func(context.Context, *Event)) *Log {
	return &Log{epoch: strings.ToLower(rand.Text())[:epochLen], watchers: watchers, ring: make([]Event, 0, size), next: 1}
}

// Add records an event, now, on behalf of the context's request.
func (l *Log) Add(ctx context.Context, e Event) {
	if l == nil {
		return
	}
	e.Request, e.Detail = trace.Of(ctx), shorten(e.Detail, MaxDetail)
	for _, name := range []*string{&e.Session, &e.Process, &e.Exec, &e.Profile} {
		*name = shorten(*name, maxName) // in a denied call these are arbitrary text from the caller
	}
	if e.Principal == "" {
		e.Principal = e.Request.Principal
	}
	l.mu.Lock()
	e.Time = time.Now() // under the lock: times increase with numbers
	e.Seq = l.next
	l.next++
	if len(l.ring) < cap(l.ring) {
		l.ring = append(l.ring, e)
	} else {
		l.ring[(e.Seq-1)%uint64(cap(l.ring))] = e
	}
	if l.changed != nil {
		close(l.changed)
		l.changed = nil
	}
	l.mu.Unlock()
	for _, watch := range l.watchers {
		watch(ctx, &e)
	}
}

// shorten keeps one long error from filling the log.
func shorten(s string, limit int) string {
	if len(s) <= limit {
		return strings.ToValidUTF8(s, "�")
	}
	n := limit
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return strings.ToValidUTF8(s[:n], "�") + "…"
}

// Batch is what a reader gets at once.
type Batch struct {
	Events []Event
	Next   Position // where to continue
	// Restarted says that the reader's position is from another boxd: the events in between are not known.
	Restarted bool
	Missed    uint64 // events of any owner after the reader's position that are no longer kept
}

// maxBatch bounds what boxd copies for one reader at once.
const maxBatch = 256

// Start returns the position before the oldest event kept.
func (l *Log) Start() Position {
	l.mu.Lock()
	defer l.mu.Unlock()
	return Position{l.epoch, l.next - 1 - uint64(len(l.ring))}
}

// End returns the position after the last event.
func (l *Log) End() Position {
	l.mu.Lock()
	defer l.mu.Unlock()
	return Position{l.epoch, l.next - 1}
}

// Read returns the events after a position that pass the filter, and a channel that is closed when there are more; it is nil if
// there are more already.
func (l *Log) Read(after Position, f *Filter) (Batch, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	oldest := l.next - uint64(len(l.ring))
	b := Batch{Next: after}
	if after.Epoch != l.epoch || after.Seq >= l.next { // a future number is no position of this boxd either
		b.Restarted = true
		b.Next = Position{l.epoch, oldest - 1}
	}
	if b.Next.Seq+1 < oldest {
		b.Missed = oldest - 1 - b.Next.Seq
		b.Next.Seq = oldest - 1
	}
	for len(b.Events) < maxBatch && b.Next.Seq+1 < l.next {
		b.Next.Seq++
		if e := &l.ring[(b.Next.Seq-1)%uint64(cap(l.ring))]; f.matches(e) {
			b.Events = append(b.Events, *e)
		}
	}
	if b.Next.Seq+1 < l.next {
		return b, nil
	}
	if l.changed == nil {
		l.changed = make(chan struct{})
	}
	return b, l.changed
}

// Describe returns the event in words, for a text log.
func (e *Event) Describe() string {
	if e.Reason == "" {
		return e.Type.Text()
	}
	return fmt.Sprintf("%s (%s)", e.Type.Text(), e.Reason)
}
