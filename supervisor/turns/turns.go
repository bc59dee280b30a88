// SPDX-License-Identifier: Apache-2.0

// Package turns keeps the programs that one principal begins from being in the way of those of all others: of each
// only so many begin at a time, and the rest wait in order. A program that has just begun wants a core and is often
// over in a millisecond; one that lasts is held by its control group, and is in nobody's way here.
package turns

import (
	"context"
	"slices"
	"sync"
	"time"
)

// What boxd gives: more at a time and others wait for a core, fewer and cores wait (docs/design/pool.md).
const (
	PerCore = 2                     // of a principal, at a time
	Hold    = 10 * time.Millisecond // after which what has begun is in nobody's way any more
)

// Turns is who begins something. Its zero value is not of use: see New.
type Turns struct {
	each int
	hold time.Duration

	mu    sync.Mutex // guards the fields below
	names map[string]*name
}

// name is a principal, of whom something begins or waits.
type name struct {
	begun int
	line  []chan struct{} // each is closed when its turn has come
}

// New returns Turns of which each principal has so many at a time, at least 1. One that is not given back is over by
// itself after hold.
func New(each int, hold time.Duration) *Turns {
	return &Turns{each: max(each, 1), hold: hold, names: map[string]*name{}}
}

// Begin waits for a turn of a principal. The caller must call end when what it has begun is over, if that comes
// to pass; once is as good as often. The error is that of ctx.
func (t *Turns) Begin(ctx context.Context, who string) (end func(), err error) {
	t.mu.Lock()
	n := t.names[who]
	if n == nil {
		n = &name{}
		t.names[who] = n
	}
	if n.begun < t.each {
		n.begun++
		t.mu.Unlock()
		return t.turn(who, n), nil
	}
	mine := make(chan struct{})
	n.line = append(n.line, mine)
	t.mu.Unlock()
	select {
	case <-mine:
		return t.turn(who, n), nil
	case <-ctx.Done():
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if i := slices.Index(n.line, mine); i >= 0 {
		n.line = slices.Delete(n.line, i, i+1)
	} else { // it has come meanwhile
		t.passLocked(who, n)
	}
	return nil, ctx.Err()
}

// turn is one that has come.
func (t *Turns) turn(who string, n *name) (end func()) {
	pass := sync.OnceFunc(func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.passLocked(who, n)
	})
	late := time.AfterFunc(t.hold, pass)
	return func() {
		late.Stop()
		pass()
	}
}

// passLocked gives a turn to the next who waits for one.
func (t *Turns) passLocked(who string, n *name) {
	if len(n.line) > 0 {
		close(n.line[0])
		n.line = n.line[1:]
		return
	}
	if n.begun--; n.begun == 0 {
		delete(t.names, who)
	}
}
