// SPDX-License-Identifier: Apache-2.0

package session

import "slices"

// Push is the output of an execution that is to go to the bucket of its session, and has not been taken yet.
type Push struct {
	Version string `json:"version"`           // of the output
	Process string `json:"process,omitempty"` // the execution's, if it has an id: it may not have ended
}

// Pushes lists the outputs that are still to be taken.
func (s *Session) Pushes() []Push {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.pushes)
}

// AddPush notes an output that is to be taken. It reports whether that was new.
func (s *Session) AddPush(p Push) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if slices.Contains(s.pushes, p) {
		return false
	}
	s.pushes = append(slices.Clone(s.pushes), p)
	return true
}

// RemovePush notes that one has been taken, or never will be.
func (s *Session) RemovePush(p Push) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pushes = slices.DeleteFunc(slices.Clone(s.pushes), func(o Push) bool { return o == p })
}
