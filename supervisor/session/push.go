// SPDX-License-Identifier: Apache-2.0

package session

import "slices"

// Push is the output of an execution that is to be pushed to the bucket of its session, and has not been copied yet.
type Push struct {
	Version string `json:"version"`           // of the output
	Process string `json:"process,omitempty"` // of the execution, if it has an id: it may still be running
}

// Pushes lists the outputs that are yet to be copied.
func (s *Session) Pushes() []Push {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.pushes)
}

// AddPush notes an output to be copied. It reports whether that was new.
func (s *Session) AddPush(p Push) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if slices.Contains(s.pushes, p) {
		return false
	}
	s.pushes = append(slices.Clone(s.pushes), p)
	return true
}

// RemovePush notes that an output has been copied, or never will be.
func (s *Session) RemovePush(p Push) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pushes = slices.DeleteFunc(slices.Clone(s.pushes), func(o Push) bool { return o == p })
}
