// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"slices"

	"github.com/boxd-dev/boxd/supervisor/policy/egress"
)

// mergeNetwork settles where programs may connect to.
func (s *Settings) mergeNetwork(p *Profile, asked []string) (err error) {
	if err := egress.Shared(s.Network, s.Profile, p.Network); err != nil {
		return err
	}
	s.NamesOnly, s.NetworkRules, err = egress.Settle(s.Network, s.Profile, p.NetworkRules, asked, slices.Contains(p.Locked, egress.Field), s.NetworkStrict)
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
func (s *Settings) KeeperNetwork() []string {
	return egress.Words(s.Network, s.rules(), s.NamesOnly, s.NetworkStrict)
}
