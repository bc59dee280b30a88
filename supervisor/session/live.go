// SPDX-License-Identifier: Apache-2.0

package session

import (
	"slices"

	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/supervisor/policy"
)

// Live lists the mounts added while the session lived, by target.
func (s *Session) Live() []policy.LiveMount {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.live)
}

// Mounting lists them too, and returns the change of them that is under way; nil: none.
func (s *Session) Mounting() ([]policy.LiveMount, *policy.MountChange) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.live), s.mounting
}

// SetMounting sets both. The caller must hold the session exclusively, and not modify change afterwards.
func (s *Session) SetMounting(list []policy.LiveMount, change *policy.MountChange) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.live, s.mounting = list, change
}

// Skills lists the skills of the session, including the missing ones it should have, by name.
func (s *Session) Skills() []policy.ActiveSkill {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.skills)
}

// SetSkills sets them. The caller must hold the session exclusively.
func (s *Session) SetSkills(list []policy.ActiveSkill) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.skills = list
}

// Drives lists the drives that the session has, or has had, by name.
func (s *Session) Drives() []policy.ActiveDrive {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.drives)
}

// SetDrives sets them. The caller must hold the session exclusively.
func (s *Session) SetDrives(list []policy.ActiveDrive) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drives = list
}

// Caller is the user the box is made for.
func (s *Session) Caller() isolation.Caller {
	return isolation.Caller{UID: s.Owner.UID, GID: s.Owner.GID, Groups: s.Owner.Groups}
}
