// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"slices"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/supervisor/policy/egress"
)

// mergeNetwork settles where programs may connect to.
func (s *Settings) mergeNetwork(p *Profile, asked []string) (err error) {
	if s.Network == NetworkEgress {
		locked := slices.Contains(p.Locked, egress.Field)
		s.NamesOnly = locked && egress.ByName(p.NetworkRules) // or fewer rules would open a way to other resolvers
		s.NetworkRules, err = egress.Merge(s.Profile, p.NetworkRules, asked, locked)
	} else if asked != nil {
		err = fault.Field(egress.Field, len(asked), "left out of a session whose network is "+s.Network)
	}
	return err
}

// rules are those of an egress network, nil if there is none.
func (s *Settings) rules() []string {
	if s.Network != NetworkEgress {
		return nil
	}
	return append([]string{}, s.NetworkRules...) // none at all are rules too
}

// KeeperNetwork is what the driver of boxes is asked for.
func (s *Settings) KeeperNetwork() []string { return egress.Words(s.rules(), s.NamesOnly) }
