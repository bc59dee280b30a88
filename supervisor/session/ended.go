// SPDX-License-Identifier: Apache-2.0

// Why sessions end, and which have ended lately: a caller who asks for one of those hears why it is gone.

package session

import (
	"sync"
	"time"
)

// EndReason is why a session has ended. The set is closed.
type EndReason string

// The reasons.
const (
	EndDeleted     EndReason = "deleted"      // asked for
	EndIdle        EndReason = "idle"         // unused for its ttl
	EndLifetime    EndReason = "lifetime"     // max_lifetime is over
	EndEvicted     EndReason = "evicted"      // its owner's least recently used, when there was no room for another
	EndUnhealthy   EndReason = "unhealthy"    // PID 1 of the box has not answered
	EndLost        EndReason = "lost"         // PID 1 of the box was gone, or did not end a program when it was due
	EndFileLocks   EndReason = "file_locks"   // its programs held more file locks than limits.file_locks
	EndOneShot     EndReason = "one-shot"     // the one execution it was for is over
	EndStoppedAge  EndReason = "stopped_age"  // stopped for as long as one may be
	EndUnclaimed   EndReason = "unclaimed"    // its maker has gone without learning its id
	EndStartFailed EndReason = "start_failed" // there never was a box
	EndShutdown    EndReason = "shutdown"     // boxd stopped
)

// EndReasons returns all of them.
func EndReasons() []EndReason {
	return []EndReason{EndDeleted, EndIdle, EndLifetime, EndEvicted, EndUnhealthy, EndLost, EndFileLocks, EndOneShot, EndStoppedAge, EndUnclaimed, EndStartFailed, EndShutdown}
}

// Text says it to the owner of the session, as the rest of a sentence that begins with "it".
func (r EndReason) Text() string {
	switch r {
	case EndDeleted:
		return "was removed"
	case EndIdle:
		return "was not used for its ttl"
	case EndLifetime:
		return "was as old as max_lifetime allows"
	case EndEvicted:
		return "made room for another of yours, as the one that was not used for the longest time (sessions.evict)"
	case EndUnhealthy:
		return "did not answer (sessions.unhealthy)"
	case EndLost:
		return "lost its PID 1, which ended all programs of it"
	case EndFileLocks:
		return "held more file locks than a session may (limits.file_locks)"
	case EndOneShot:
		return "was for one execution"
	case EndStoppedAge:
		return "was stopped for as long as sessions.stopped_age allows"
	case EndUnclaimed:
		return "was made for a caller who has gone without learning its id"
	case EndStartFailed:
		return "could not start"
	case EndShutdown:
		return "ended with boxd"
	}
	return "ended"
}

// EndedSession is one that has ended.
type EndedSession struct {
	Reason EndReason
	At     time.Time
}

// Bounds of what is remembered.
const (
	MostEnded = 1024             // sessions
	KeepEnded = 10 * time.Minute // each
)

// EndedSessions is what is remembered of sessions that have ended, by their keys. Its zero value is empty.
type EndedSessions struct {
	mu    sync.Mutex // guards the fields below
	byKey map[string]EndedSession
	order []endedKey // oldest first; one that has ended again is there twice
}

// endedKey is the key of a session that ended at a time.
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

// Get returns the last end of a session of this key, if that is not too long ago.
func (m *EndedSessions) Get(key string, now time.Time) (EndedSession, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s, ok := m.byKey[key]
	if ok && now.Sub(s.At) >= KeepEnded {
		return EndedSession{}, false
	}
	return s, ok
}

// Expire forgets what is too old.
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

// forgetLocked drops the oldest entry. A session of that key that has ended again since is remembered by its own.
func (m *EndedSessions) forgetLocked() {
	if oldest := m.order[0]; m.byKey[oldest.key].At.Equal(oldest.at) {
		delete(m.byKey, oldest.key)
	}
	m.order = m.order[1:]
}
