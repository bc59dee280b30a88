// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"slices"

	"github.com/boxd-dev/boxd/supervisor/policy/egress"
	"github.com/boxd-dev/boxd/supervisor/policy/secret"
)

// mergeNetwork settles where programs may connect to.
func (s *Settings) mergeNetwork(p *Profile, asked []string) (err error) {
	if err := egress.Shared(s.Network, s.Profile, p.Network); err != nil {
		return err
	}
	s.NamesOnly, s.NetworkRules, err = egress.Settle(s.Network, s.Profile, p.NetworkRules, asked, slices.Contains(p.Locked, egress.Field), s.NetworkStrict)
	return err
}

// mergeCaps settles how much of the network the session may use.
func (s *Settings) mergeCaps(p *Profile, req *Request) error {
	w := egress.Wish{
		Network: s.Network, Profile: s.Profile, Most: egress.Caps{Connections: p.NetworkConnections, Bandwidth: p.NetworkBandwidth}, Now: egress.Caps{Connections: s.NetworkConnections, Bandwidth: s.NetworkBandwidth},
		Connections: req.NetworkConnections, Bandwidth: req.NetworkBandwidth, Locked: p.Locked,
	}
	got, cuts, err := w.Settle()
	s.NetworkConnections, s.NetworkBandwidth = got.Connections, got.Bandwidth
	s.Clamped = slices.DeleteFunc(slices.Clone(s.Clamped), func(c Clamp) bool { return w.Asks(c.Field) })
	for _, c := range cuts {
		s.Clamped = append(s.Clamped, Clamp(c))
	}
	return err
}

// mergeSecrets settles which secrets go with that.
func (s *Settings) mergeSecrets(c *Config, p *Profile, req *Request) (err error) {
	s.Secrets, s.NetworkStrict, err = secret.Settle(c.Secrets, &secret.Wish{
		Secrets: req.Secrets, Egress: s.Network == NetworkEgress, Strict: req.NetworkStrict, Locked: slices.Contains(p.Locked, egress.FieldStrict), Rules: s.NetworkRules, Env: req.Env,
	}, s.NetworkStrict)
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
	return egress.Words(s.Network, s.rules(), s.NamesOnly, s.NetworkStrict, egress.Caps{Connections: s.NetworkConnections, Bandwidth: s.NetworkBandwidth})
}
