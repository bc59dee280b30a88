// SPDX-License-Identifier: Apache-2.0

package actionrpc

import (
	"context"
	"path"
	"strings"
	"time"

	"github.com/boxd-dev/boxd/relay/actionrpc/wire"
	"github.com/boxd-dev/boxd/supervisor/process"
	"github.com/boxd-dev/boxd/supervisor/session"
)

func clean(dir string) string { return path.Clean(dir) }

// slot serializes the relays of a process, and keeps the position that the last one has reached.
type slot struct {
	busy    chan struct{} // full while a relay runs
	process *process.Process
	users   int // guarded by the lock of Boxes
	at      [2]int64
	known   bool // at is where the next relay begins
}

// Relay is a connection to a process.
type Relay struct {
	Process *process.Process

	boxes   *Boxes
	session *session.Session
	key     processKey
	slot    *slot
	since   time.Time
}

// Relay finds a running process, by the physical id of its session.
func (b *Boxes) Relay(t Tenant, physical, id string) (*Relay, error) {
	if !strings.HasPrefix(physical, t.Prefix) || physical == t.Prefix {
		return nil, notFound(physical)
	}
	s, p, err := b.processOf(t, t.logical(physical), id)
	if err != nil {
		return nil, err
	}
	if hasEnded(p) {
		return nil, wire.Refusef("BoxManagedProcessConflictError", "managed process %s in session %s is not running", id, physical)
	}
	return &Relay{Process: p, boxes: b, session: s, key: processKey{physical, id}}, nil
}

// enter waits until no other relay has the process. It returns the position where the output continues; nil: from now on.
// Leave must follow if there is no error.
func (r *Relay) enter(ctx context.Context, started time.Time) (*[2]int64, error) {
	b := r.boxes
	b.mu.Lock()
	if old := b.slots[r.key]; old == nil || old.process != r.Process {
		// It is unknown what an earlier boxd has delivered of an older process.
		fresh := r.Process.Info().StartedAt.After(started)
		b.slots[r.key] = &slot{busy: make(chan struct{}, 1), process: r.Process, known: fresh}
	}
	r.slot = b.slots[r.key]
	r.slot.users++
	b.mu.Unlock()
	select {
	case r.slot.busy <- struct{}{}:
	case <-r.Process.Done():
		select {
		case r.slot.busy <- struct{}{}: // the rest of its output may be undelivered
		case <-ctx.Done():
			r.release()
			return nil, context.Cause(ctx)
		}
	case <-ctx.Done():
		r.release()
		return nil, context.Cause(ctx)
	}
	if !r.slot.known {
		return nil, nil
	}
	return new(r.slot.at), nil
}

// leave lets the next relay continue at this position; nil: it is as unknown as before.
func (r *Relay) leave(at *[2]int64) {
	if at != nil {
		r.slot.at, r.slot.known = *at, true
	}
	<-r.slot.busy
	r.release()
}

func (r *Relay) release() {
	r.boxes.mu.Lock()
	defer r.boxes.mu.Unlock()
	r.slot.users--
}

// touchEvery is how often traffic is recorded as a use of the session.
const touchEvery = time.Second

// Touch records traffic. It must be called by one goroutine only.
func (r *Relay) Touch() {
	if now := time.Now(); now.Sub(r.since) >= touchEvery {
		r.since = now
		r.session.Touch(now)
	}
}

// dropSlots forgets the slots of processes that have ended.
func (b *Boxes) dropSlots() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for k, s := range b.slots {
		if s.users == 0 && hasEnded(s.process) {
			delete(b.slots, k)
		}
	}
}
