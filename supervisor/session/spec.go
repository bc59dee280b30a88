// SPDX-License-Identifier: Apache-2.0

package session

import (
	"slices"

	"github.com/boxd-dev/boxd/cgroup"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/supervisor/policy"
	"github.com/boxd-dev/boxd/supervisor/quota"
)

// Spec is the specification of the box for the keeper.
func (s *Session) Spec() *isolation.Spec {
	spec := policy.BoxSpec(&s.Settings, s.enforced, s.Owner.Name)
	spec.Key, spec.Hostname, spec.Caller = s.BoxKey(), s.Hostname, s.Caller()
	spec.Resume = s.stopped != nil
	if spec.Grouped {
		spec.Owner = s.total()
	}
	return spec
}

// total is what all sessions of the owner may use together, by the present configuration.
func (s *Session) total() cgroup.Owner {
	effective := s.hooks.Config().PolicyOf(s.Owner)
	return quota.OwnerOf(s.Owner, &effective.Policy)
}

// Totals returns those of the owners of sessions. If an owner has several, that of the latest session comes last, and holds.
func Totals(all []*Session) []quota.Total {
	slices.SortFunc(all, func(a, b *Session) int { return a.Created.Compare(b.Created) })
	var list []quota.Total
	for _, s := range all {
		if state, _, _ := s.State(); state == StateReady && s.Grouped() {
			list = append(list, quota.Total{UID: s.Owner.UID, Owner: s.total()})
		}
	}
	return list
}
