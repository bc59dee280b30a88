// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"slices"

	"github.com/boxd-dev/boxd/isolation"
)

// mergeNetwork sets where programs may connect to.
func (s *Settings) mergeNetwork(p *Profile, requested []string) (err error) {
	if err := checkHostNetwork(s.Network, s.Profile, p.Network); err != nil {
		return err
	}
	s.NamesOnly, s.NetworkRules, err = resolveRules(s.Network, s.Profile, p.NetworkRules, requested, slices.Contains(p.Locked, fieldRules), s.NetworkStrict)
	return err
}

// mergeCaps sets how much of the network the session may use.
func (s *Settings) mergeCaps(p *Profile, req *Request) error {
	w := networkRequest{
		Network: s.Network, Profile: s.Profile, Most: NetworkCaps{Connections: p.NetworkConnections, Bandwidth: p.NetworkBandwidth}, Now: NetworkCaps{Connections: s.NetworkConnections, Bandwidth: s.NetworkBandwidth},
		Connections: req.NetworkConnections, Bandwidth: req.NetworkBandwidth, Locked: p.Locked,
	}
	got, cuts, err := w.Resolve()
	s.NetworkConnections, s.NetworkBandwidth = got.Connections, got.Bandwidth
	s.Clamped = slices.DeleteFunc(slices.Clone(s.Clamped), func(c Clamp) bool { return w.asks(c.Field) })
	for _, c := range cuts {
		s.Clamped = append(s.Clamped, Clamp(c))
	}
	return err
}

// mergeSecrets sets the secrets of the session, and whether its network is strict.
func (s *Settings) mergeSecrets(c *Config, p *Profile, req *Request) (err error) {
	s.Secrets, s.NetworkStrict, err = resolveSecrets(c.Secrets, &SecretRequest{
		Secrets: req.Secrets, Egress: s.Network == NetworkEgress, Strict: req.NetworkStrict, Locked: slices.Contains(p.Locked, fieldStrict), Rules: s.NetworkRules, Env: req.Env,
	}, s.NetworkStrict)
	return err
}

// rules returns the rules of an egress network, nil for another network.
func (s *Settings) rules() []string {
	if s.Network != NetworkEgress {
		return nil
	}
	return append([]string{}, s.NetworkRules...) // an empty list is a valid set of rules
}

// KeeperNetwork returns the network to request from the driver.
func (s *Settings) KeeperNetwork() isolation.NetworkSpec {
	switch s.Network {
	case NetworkHost:
		return isolation.NetworkSpec{Kind: isolation.NetworkHost}
	case NetworkEgress:
		return isolation.NetworkSpec{
			Kind: isolation.NetworkEgress, NamesOnly: s.NamesOnly, Strict: s.NetworkStrict,
			Connections: uint32(max(s.NetworkConnections, 0)), Bandwidth: uint64(max(s.NetworkBandwidth, 0)), Rules: s.NetworkRules,
		}
	}
	return isolation.NetworkSpec{}
}
