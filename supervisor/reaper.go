// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"container/heap"
	"context"
	"time"

	"github.com/boxd-dev/boxd/supervisor/session"
)

// reapAtLeast bounds the sleep of the reaper. After so long it looks at every session: a jump of the wall clock is
// noticed, and an end that has failed is tried again.
const reapAtLeast = 30 * time.Second

// reapLate is how late the reaper may be on a host that is busy.
const reapLate = time.Minute

// deadline is when a session has to be looked at. A session that was used meanwhile has a later one by then, and is
// looked at for nothing, once.
type deadline struct {
	at      time.Time
	session *session.Session
}

// deadlines are those of all sessions, so that to look at one costs the same however many there are. Of a session only
// the earliest counts (of); others that are left in the heap are passed over.
type deadlines struct {
	heap deadlineHeap
	of   map[*session.Session]time.Time
	full time.Time // when all sessions are looked at
}

// add notes a deadline, unless the session has one that is not later.
func (d *deadlines) add(s *session.Session, at time.Time) {
	if known, ok := d.of[s]; ok && !at.Before(known) {
		return
	}
	if d.of == nil {
		d.of = map[*session.Session]time.Time{}
	}
	d.of[s] = at
	heap.Push(&d.heap, deadline{at, s})
}

// due takes out the sessions that have to be looked at.
func (d *deadlines) due(now time.Time) (list []*session.Session) {
	for len(d.heap) > 0 && !d.heap[0].at.After(now) {
		next, _ := heap.Pop(&d.heap).(deadline)
		if at, ok := d.of[next.session]; ok && at.Equal(next.at) {
			delete(d.of, next.session)
			list = append(list, next.session)
		}
	}
	return list
}

// next is when the reaper has to look again.
func (d *deadlines) next() time.Time {
	if len(d.heap) > 0 && d.heap[0].at.Before(d.full) {
		return d.heap[0].at
	}
	return d.full
}

// deadlineHeap has the earliest first (container/heap).
type deadlineHeap []deadline

func (h deadlineHeap) Len() int           { return len(h) }
func (h deadlineHeap) Less(i, j int) bool { return h[i].at.Before(h[j].at) }
func (h deadlineHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }

// Push is container/heap's.
func (h *deadlineHeap) Push(x any) {
	d, _ := x.(deadline)
	*h = append(*h, d)
}

// Pop is container/heap's.
func (h *deadlineHeap) Pop() any {
	last := len(*h) - 1
	d := (*h)[last]
	(*h)[last] = deadline{}
	*h = (*h)[:last]
	return d
}

// reap ends sessions when their time is over. It is a timer of its own: nothing has to be called for
// a session to end.
func (v *Supervisor) reap(ctx context.Context) {
	timer := time.NewTimer(reapAtLeast)
	defer timer.Stop()
	for {
		timer.Reset(v.endDue(time.Now()))
		select {
		case <-timer.C:
		case <-v.poke:
		case <-ctx.Done():
			return
		}
	}
}

// endDue starts the end of every session whose time is over and returns how long until the next is.
func (v *Supervisor) endDue(now time.Time) time.Duration {
	v.ended.Expire(now)
	var list []*session.Session
	v.mu.Lock()
	if v.deadlines.full.After(now) {
		list = v.deadlines.due(now)
	} else {
		v.deadlines = deadlines{full: now.Add(reapAtLeast)}
		list = v.allLocked()
	}
	v.mu.Unlock()
	for _, s := range list {
		if at := v.examineEnd(s, now); !at.IsZero() {
			v.mu.Lock()
			v.deadlines.add(s, at)
			v.mu.Unlock()
		}
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.nextLook = v.deadlines.next()
	return max(v.nextLook.Sub(now), 0)
}

// examineEnd begins the end of a session, or freezes it, if it is time for that, and returns when it is; zero: not
// before something happens that is told to due.
func (v *Supervisor) examineEnd(s *session.Session, now time.Time) (next time.Time) {
	at, why := s.Expiry()
	switch {
	case at.IsZero():
	case at.After(now):
		next = at
	default:
		v.work.Go(func() { _ = v.End(v.life, s, why) }) // logged where it fails
		return time.Time{}
	}
	idle := s.IdleAt()
	switch {
	case idle.IsZero():
	case idle.After(now):
		if next.IsZero() || idle.Before(next) {
			next = idle
		}
	default:
		v.work.Go(func() { v.freezeIdle(s) })
	}
	return next
}

// wakeReaper makes the reaper look at once.
func (v *Supervisor) wakeReaper() {
	select {
	case v.poke <- struct{}{}:
	default: // it has been told
	}
}

// due tells the reaper when a session has to be looked at, if it does not know of an earlier time; a zero time is now.
func (v *Supervisor) due(s *session.Session, at time.Time) {
	v.mu.Lock()
	v.deadlines.add(s, at)
	early := at.Before(v.nextLook)
	v.mu.Unlock()
	if early {
		v.wakeReaper()
	}
}
