// SPDX-License-Identifier: Apache-2.0

// Package ended knows why sessions end, and remembers for a while those that have.
package ended

import (
	"slices"
	"sync"
	"time"
)

// Reason is why a session has ended. The set is closed.
type Reason string

// The reasons.
const (
	Deleted     Reason = "deleted"      // asked for
	Idle        Reason = "idle"         // unused for its ttl
	Lifetime    Reason = "lifetime"     // max_lifetime is over
	Evicted     Reason = "evicted"      // its owner's least recently used, when there was no room for another
	Unhealthy   Reason = "unhealthy"    // PID 1 of the box has not answered
	Lost        Reason = "lost"         // PID 1 of the box was gone, or did not end a program when it was due
	OneShot     Reason = "one-shot"     // the one execution it was for is over
	Unclaimed   Reason = "unclaimed"    // its maker has gone without learning its id
	StartFailed Reason = "start_failed" // there never was a box
	Shutdown    Reason = "shutdown"     // boxd stopped
)

// Reasons returns all of them.
func Reasons() []Reason {
	return []Reason{Deleted, Idle, Lifetime, Evicted, Unhealthy, Lost, OneShot, Unclaimed, StartFailed, Shutdown}
}

// Text says it to the owner of the session, as the rest of a sentence that begins with "it".
func (r Reason) Text() string {
	switch r {
	case Deleted:
		return "was removed"
	case Idle:
		return "was not used for its ttl"
	case Lifetime:
		return "was as old as max_lifetime allows"
	case Evicted:
		return "made room for another of yours, as the one that was not used for the longest time (sessions.evict)"
	case Unhealthy:
		return "did not answer (sessions.unhealthy)"
	case Lost:
		return "lost its PID 1, and everything with that"
	case OneShot:
		return "was for one execution"
	case Unclaimed:
		return "was made for a caller who has gone without learning its id"
	case StartFailed:
		return "could not start"
	case Shutdown:
		return "ended with boxd"
	}
	return "ended"
}

// Session is one that has ended.
type Session struct {
	Reason Reason
	At     time.Time
}

// Bounds of what is remembered.
const (
	Most = 1024             // sessions
	Keep = 10 * time.Minute // each
)

// Memory is what is remembered of sessions that have ended, by their keys. Its zero value is empty.
type Memory struct {
	mu    sync.Mutex // guards the fields below
	byKey map[string]Session
	order []string // keys, oldest first; one that has ended again is there twice
}

// Add remembers a session that has just ended.
func (m *Memory) Add(key string, reason Reason, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.byKey == nil {
		m.byKey = map[string]Session{}
	}
	m.byKey[key] = Session{reason, now}
	m.order = append(m.order, key)
	for len(m.order) > Most {
		m.forgetLocked()
	}
}

// Get returns the last end of a session of this key, if that is not too long ago.
func (m *Memory) Get(key string, now time.Time) (Session, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s, ok := m.byKey[key]
	if ok && now.Sub(s.At) >= Keep {
		return Session{}, false
	}
	return s, ok
}

// Expire forgets what is too old.
func (m *Memory) Expire(now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for len(m.order) > 0 {
		key := m.order[0]
		if s, ok := m.byKey[key]; ok && now.Sub(s.At) < Keep && !m.againLocked(key) {
			return
		}
		m.forgetLocked()
	}
}

// againLocked reports whether the session of the oldest key has ended again since.
func (m *Memory) againLocked(key string) bool {
	return slices.Contains(m.order[1:], key)
}

// forgetLocked drops the oldest entry.
func (m *Memory) forgetLocked() {
	key := m.order[0]
	if !m.againLocked(key) {
		delete(m.byKey, key)
	}
	m.order = m.order[1:]
}
