// SPDX-License-Identifier: Apache-2.0

package session

import (
	"slices"

	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/supervisor/policy"
)

// Live lists the mounts that the session has been given while it lives, by their targets.
func (s *Session) Live() []policy.LiveMount {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.live)
}

// Mounting lists them too, and says which change of them is under way; nil: none.
func (s *Session) Mounting() ([]policy.LiveMount, *policy.MountChange) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.live), s.mounting
}

// SetMounting says which they are. Only who has the session exclusively may, and the change is not changed after that.
func (s *Session) SetMounting(list []policy.LiveMount, change *policy.MountChange) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.live, s.mounting = list, change
}

// Skills lists the skills of the session, and those it was to have, by their names.
func (s *Session) Skills() []policy.ActiveSkill {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.skills)
}

// SetSkills says which they are. Only who has the session exclusively may.
func (s *Session) SetSkills(list []policy.ActiveSkill) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.skills = list
}

// Drives lists the drives of the session, and those it has had, by their names.
func (s *Session) Drives() []policy.ActiveDrive {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.drives)
}

// SetDrives says which they are. Only who has the session exclusively may.
func (s *Session) SetDrives(list []policy.ActiveDrive) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drives = list
}

// Caller is who the box is made for.
func (s *Session) Caller() isolation.Caller {
	return isolation.Caller{UID: s.Owner.UID, GID: s.Owner.GID, Groups: s.Owner.Groups}
}
