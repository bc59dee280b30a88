// SPDX-License-Identifier: Apache-2.0

// Why sessions end, and which have ended lately: a caller that asks for one of those is told why it is gone.

package session

import (
	"sync"
	"time"
)

// EndReason is why a session has ended. The set is closed.
type EndReason string

// Reasons for the end of a session.
const (
	EndDeleted     EndReason = "deleted"      // requested
	EndIdle        EndReason = "idle"         // unused for its ttl
	EndLifetime    EndReason = "lifetime"     // max_lifetime is over
	EndEvicted     EndReason = "evicted"      // its owner's least recently used, when there was no room for another
	EndUnhealthy   EndReason = "unhealthy"    // PID 1 of the box has not answered
	EndLost        EndReason = "lost"         // PID 1 of the box was gone, or did not end a program in time
	EndFileLocks   EndReason = "file_locks"   // its programs held more file locks than limits.file_locks
	EndOneShot     EndReason = "one-shot"     // the one execution it was for is over
	EndStoppedAge  EndReason = "stopped_age"  // for longer than sessions.stopped_age
	EndUnclaimed   EndReason = "unclaimed"    // its creator hung up before it got the id
	EndStartFailed EndReason = "start_failed" // there was never a box
	EndShutdown    EndReason = "shutdown"     // boxd stopped
)

// EndReasons returns all reasons.
func EndReasons() []EndReason {
	return []EndReason{EndDeleted, EndIdle, EndLifetime, EndEvicted, EndUnhealthy, EndLost, EndFileLocks, EndOneShot, EndStoppedAge, EndUnclaimed, EndStartFailed, EndShutdown}
}

// Text is the reason as the rest of a sentence that begins with "it", for the owner of the session.
func (r EndReason) Text() string {
	switch r {
	case EndDeleted:
		return "was removed"
	case EndIdle:
		return "was idle for its ttl"
	case EndLifetime:
		return "was as old as max_lifetime allows"
	case EndEvicted:
		return "made room for another session of yours, as the least recently used one (sessions.evict)"
	case EndUnhealthy:
		return "did not answer (sessions.unhealthy)"
	case EndLost:
		return "lost its PID 1, which ended all its programs"
	case EndFileLocks:
		return "held more file locks than a session may (limits.file_locks)"
	case EndOneShot:
		return "was for one execution"
	case EndStoppedAge:
		return "was stopped for as long as sessions.stopped_age allows"
	case EndUnclaimed:
		return "was created for a caller that left before getting its id"
	case EndStartFailed:
		return "could not start"
	case EndShutdown:
		return "ended with boxd"
	}
	return "ended"
}

// EndedSession is a session that has ended.
type EndedSession struct {
	Reason EndReason
	At     time.Time
}

// Limits of what is remembered.
const (
	MostEnded = 1024             // sessions
	KeepEnded = 10 * time.Minute // each
)

// EndedSessions remembers sessions that have ended, by their keys. Its zero value is empty.
type EndedSessions struct {
	mu    sync.Mutex // guards the fields below
	byKey map[string]EndedSession
	order []endedKey // oldest first; a key that has ended twice is in it twice
}

// endedKey is the key of a session, and when it ended.
type endedKey struct {
	key string
	at  time.Time
}

// Add remembers a session that has just ended.
func (m *EndedSessions) Add(key string, reason EndReason, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.byKey == nil {
		m.byKey = map[string]EndedSession{}
	}
	m.byKey[key] = EndedSession{reason, now}
	m.order = append(m.order, endedKey{key, now})
	for len(m.order) > MostEnded {
		m.forgetLocked()
	}
}

// Get returns the last end of a session of this key, unless that was KeepEnded or more ago.
func (m *EndedSessions) Get(key string, now time.Time) (EndedSession, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s, ok := m.byKey[key]
	if ok && now.Sub(s.At) >= KeepEnded {
		return EndedSession{}, false
	}
	return s, ok
}

// Expire forgets sessions that ended too long ago.
func (m *EndedSessions) Expire(now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for len(m.order) > 0 {
		if now.Sub(m.order[0].at) < KeepEnded {
			return
		}
		m.forgetLocked()
	}
}

// forgetLocked drops the oldest entry. If its key has ended again since, that later end is still remembered.
func (m *EndedSessions) forgetLocked() {
	if oldest := m.order[0]; m.byKey[oldest.key].At.Equal(oldest.at) {
		delete(m.byKey, oldest.key)
	}
	m.order = m.order[1:]
}
