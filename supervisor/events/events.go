// SPDX-License-Identifier: Apache-2.0

// Package events is what has happened: a bounded row of events with numbers, which readers go on in where they
// stopped. Whoever adds one waits for no reader; a reader that is too late is told how much it has missed.
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

// maxName is how much of an id is kept, in bytes; none that there is is longer.
const maxName = 256

// Event is one thing that has happened. What is empty does not apply.
type Event struct {
	Seq       uint64 // from 1 on, one more for each; set by Add
	Time      time.Time
	Type      Type
	Session   string
	Owner     string // principal the session belongs to
	Principal string // who asked, if anybody; by Add, of the context
	Process   string // id of a process
	Exec      string // id of an execution that has one
	Profile   string
	Reason    string // one word of a closed set: why it ended, with which status, which limit
	Detail    string // for a person
	Took      time.Duration
	ExitCode  int           // of a program whose reason is that it has exited
	Request   trace.Request // set by Add, of the context
}

// Position is a place between two events: after the one of the number, in the life of one boxd.
type Position struct {
	Epoch string
	Seq   uint64
}

// String is the form ParsePosition reads.
func (p Position) String() string { return p.Epoch + "-" + strconv.FormatUint(p.Seq, 10) }

// ParsePosition reads the id of an event, after which a reader wants to go on.
func ParsePosition(s string) (Position, error) {
	epoch, number, ok := strings.Cut(s, "-")
	seq, err := strconv.ParseUint(number, 10, 64)
	if !ok || err != nil || len(epoch) != epochLen || strings.Trim(epoch, epochLetters) != "" || strconv.FormatUint(seq, 10) != number {
		return Position{}, fault.Field("after", s, "the id of an event, or latest")
	}
	return Position{epoch, seq}, nil
}

// An epoch is some letters that no other boxd has.
const (
	epochLen     = 12
	epochLetters = "abcdefghijklmnopqrstuvwxyz234567"
)

// Filter says which events a reader may and wants to see. The zero Filter is all of them.
type Filter struct {
	Everybody bool   // not only those of Owner
	Owner     string // principal whose sessions, or whose requests, they are of
	Session   string // "": any
	Types     []Type // nil: any
}

func (f *Filter) wants(e *Event) bool {
	return (f.Everybody || f.Owner != "" && (e.Owner == f.Owner || e.Principal == f.Owner && (e.Owner == "" || e.Owner == f.Owner))) &&
		(f.Session == "" || e.Session == f.Session) && (f.Types == nil || slices.Contains(f.Types, e.Type))
}

// Log keeps the last events. A nil Log takes them and keeps none.
type Log struct {
	epoch    string
	watchers []func(context.Context, *Event)

	mu      sync.Mutex // guards the fields below
	ring    []Event
	next    uint64        // number of the next event
	waiting chan struct{} // closed with the next event; nil if nobody waits
}

// New returns a Log of the last size events. The watchers see each of them as it comes, on the goroutine of who
// adds it, and in no order among those that come at once; they must not add any.
func New(size int, watchers ...func(context.Context, *Event)) *Log {
	return &Log{epoch: strings.ToLower(rand.Text())[:epochLen], watchers: watchers, ring: make([]Event, 0, size), next: 1}
}

// Add notes what has happened, now, on behalf of the context's request.
func (l *Log) Add(ctx context.Context, e Event) {
	if l == nil {
		return
	}
	e.Request, e.Detail = trace.Of(ctx), shorten(e.Detail, MaxDetail)
	for _, name := range []*string{&e.Session, &e.Process, &e.Exec, &e.Profile} {
		*name = shorten(*name, maxName) // of a call that was denied they are whatever its caller has sent
	}
	if e.Principal == "" {
		e.Principal = e.Request.Principal
	}
	l.mu.Lock()
	e.Time = time.Now() // under the lock: times go up with numbers
	e.Seq = l.next
	l.next++
	if len(l.ring) < cap(l.ring) {
		l.ring = append(l.ring, e)
	} else {
		l.ring[(e.Seq-1)%uint64(cap(l.ring))] = e
	}
	if l.waiting != nil {
		close(l.waiting)
		l.waiting = nil
	}
	l.mu.Unlock()
	for _, watch := range l.watchers {
		watch(ctx, &e)
	}
}

// shorten keeps one long error from being the whole log.
func shorten(s string, most int) string {
	if len(s) <= most {
		return strings.ToValidUTF8(s, "�")
	}
	n := most
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return strings.ToValidUTF8(s[:n], "�") + "…"
}

// Batch is what a reader gets at once.
type Batch struct {
	Events []Event
	Next   Position // where to go on
	// Restarted says that the reader's place is in the life of another boxd: what came between is not known.
	Restarted bool
	Missed    uint64 // events, of anybody, that are no longer kept and came after the reader's place
}

// maxBatch bounds what one reader makes boxd copy at once.
const maxBatch = 256

// Start is the place before the oldest event that is kept.
func (l *Log) Start() Position {
	l.mu.Lock()
	defer l.mu.Unlock()
	return Position{l.epoch, l.next - 1 - uint64(len(l.ring))}
}

// End is the place after the last event.
func (l *Log) End() Position {
	l.mu.Lock()
	defer l.mu.Unlock()
	return Position{l.epoch, l.next - 1}
}

// Read returns what came after a place and passes the filter, and a channel that is closed when there is more; it
// is nil if there is more at once.
func (l *Log) Read(after Position, f *Filter) (Batch, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	oldest := l.next - uint64(len(l.ring))
	b := Batch{Next: after}
	if after.Epoch != l.epoch || after.Seq >= l.next { // a number that has not been is no place of this life either
		b.Restarted = true
		b.Next = Position{l.epoch, oldest - 1}
	}
	if b.Next.Seq+1 < oldest {
		b.Missed = oldest - 1 - b.Next.Seq
		b.Next.Seq = oldest - 1
	}
	for len(b.Events) < maxBatch && b.Next.Seq+1 < l.next {
		b.Next.Seq++
		if e := &l.ring[(b.Next.Seq-1)%uint64(cap(l.ring))]; f.wants(e) {
			b.Events = append(b.Events, *e)
		}
	}
	if b.Next.Seq+1 < l.next {
		return b, nil
	}
	if l.waiting == nil {
		l.waiting = make(chan struct{})
	}
	return b, l.waiting
}

// Describe is the event in words, for a log of text.
func (e *Event) Describe() string {
	if e.Reason == "" {
		return e.Type.Text()
	}
	return fmt.Sprintf("%s (%s)", e.Type.Text(), e.Reason)
}
