// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"container/heap"
	"context"
	"time"

	"github.com/boxd-dev/boxd/supervisor/session"
)

// reapAtLeast bounds the sleep of the reaper. After that time it examines every session: that catches jumps of the wall clock,
// and retries ends that have failed.
const reapAtLeast = 30 * time.Second

// reapLate is how late the reaper may be on a host that is busy.
const reapLate = time.Minute

// deadline is when a session must be examined. If the session was used meanwhile its deadline has moved, and it is examined
// once for nothing.
type deadline struct {
	at      time.Time
	session *session.Session
}

// deadlines holds those of all sessions, so that examining one costs the same however many there are. Only the earliest
// deadline of a session counts (of); others left in the heap are skipped.
type deadlines struct {
	heap      deadlineHeap
	deadlines map[*session.Session]time.Time
	full      time.Time // when all sessions are examined
}

// add adds a deadline, unless the session has one at that time or earlier.
func (d *deadlines) add(s *session.Session, at time.Time) {
	if known, ok := d.deadlines[s]; ok && !at.Before(known) {
		return
	}
	if d.deadlines == nil {
		d.deadlines = map[*session.Session]time.Time{}
	}
	d.deadlines[s] = at
	heap.Push(&d.heap, deadline{at, s})
}

// due removes and returns the sessions that must be examined.
func (d *deadlines) due(now time.Time) (list []*session.Session) {
	for len(d.heap) > 0 && !d.heap[0].at.After(now) {
		next, _ := heap.Pop(&d.heap).(deadline)
		if at, ok := d.deadlines[next.session]; ok && at.Equal(next.at) {
			delete(d.deadlines, next.session)
			list = append(list, next.session)
		}
	}
	return list
}

// next is when the reaper must run again.
func (d *deadlines) next() time.Time {
	if len(d.heap) > 0 && d.heap[0].at.Before(d.full) {
		return d.heap[0].at
	}
	return d.full
}

// deadlineHeap is a container/heap with the earliest deadline first.
type deadlineHeap []deadline

func (h deadlineHeap) Len() int           { return len(h) }
func (h deadlineHeap) Less(i, j int) bool { return h[i].at.Before(h[j].at) }
func (h deadlineHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }

// Push implements heap.Interface.
func (h *deadlineHeap) Push(x any) {
	d, _ := x.(deadline)
	*h = append(*h, d)
}

// Pop implements heap.Interface.
func (h *deadlineHeap) Pop() any {
	last := len(*h) - 1
	d := (*h)[last]
	(*h)[last] = deadline{}
	*h = (*h)[:last]
	return d
}

// reap ends sessions when their time is over. It has its own timer: no call is needed for a session to end.
func (v *Supervisor) reap(ctx context.Context) {
	timer := time.NewTimer(reapAtLeast)
	defer timer.Stop()
	for {
		timer.Reset(v.endDue(time.Now()))
		select {
		case <-timer.C:
		case <-v.wakeup:
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
	v.nextCheck = v.deadlines.next()
	return max(v.nextCheck.Sub(now), 0)
}

// examineEnd ends or freezes a session if it is time for that, and returns when it must be examined again; zero: not before an
// event that is reported to due.
func (v *Supervisor) examineEnd(s *session.Session, now time.Time) (next time.Time) {
	at, reason := s.Expiry()
	switch {
	case at.IsZero():
	case at.After(now):
		next = at
	default:
		v.work.Go(func() { _ = v.End(v.baseCtx, s, reason) }) // End logs failures
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

// wakeReaper makes the reaper run at once.
func (v *Supervisor) wakeReaper() {
	select {
	case v.wakeup <- struct{}{}:
	default: // it is already pending
	}
}

// due tells the reaper when a session must be examined, unless it knows an earlier time; a zero time means now.
func (v *Supervisor) due(s *session.Session, at time.Time) {
	v.mu.Lock()
	v.deadlines.add(s, at)
	early := at.Before(v.nextCheck)
	v.mu.Unlock()
	if early {
		v.wakeReaper()
	}
}
