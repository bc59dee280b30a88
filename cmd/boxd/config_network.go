// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/boxd-dev/boxd/isolation/network/rule"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/supervisor/policy"
)

// Network is the table for boxes with an egress network.
type Network struct {
	IPv4      string   `toml:"ipv4"` // a block of addresses
	IPv6      string   `toml:"ipv6"`
	Resolvers []string `toml:"resolvers"`

	Connections int           `toml:"connections"` // concurrent, of one box; 0: unlimited
	Bandwidth   quantity.Size `toml:"bandwidth"`   // of one box in each direction, per second; 0: unlimited
}

func defaultNetwork() Network {
	return Network{IPv4: "10.231.64.0/18", IPv6: "fd62:6f78:6400::/64", Resolvers: []string{}, Connections: policy.DefaultConnections}
}

func (n *Network) validate() error {
	var errs []error
	bad := func(key, value string, err error) {
		if refused, ok := errors.AsType[*rule.Refusal](err); ok {
			errs = append(errs, fmt.Errorf("network.%s = %q: must be %s", key, value, refused.Allowed))
		}
	}
	_, err := rule.Block(n.IPv4, true)
	bad("ipv4", n.IPv4, err)
	_, err = rule.Block(n.IPv6, false)
	bad("ipv6", n.IPv6, err)
	if len(n.Resolvers) > maxResolvers {
		errs = append(errs, fmt.Errorf("network.resolvers = %d addresses: must be at most %d", len(n.Resolvers), maxResolvers))
	}
	if n.Connections < 0 || n.Connections > rule.MaxConnections {
		errs = append(errs, fmt.Errorf("network.connections = %d: must be 0 to %d", n.Connections, rule.MaxConnections))
	}
	if n.Bandwidth != 0 && (n.Bandwidth < rule.LeastBandwidth || n.Bandwidth > rule.MaxBandwidth) {
		errs = append(errs, fmt.Errorf("network.bandwidth = %v: must be 0, or %v to %v", n.Bandwidth, quantity.Size(rule.LeastBandwidth), quantity.Size(rule.MaxBandwidth)))
	}
	for _, r := range n.Resolvers {
		_, err := rule.Resolver(r)
		bad("resolvers", r, err)
	}
	return errors.Join(errs...)
}

// maxResolvers is the maximum number of name servers that programs use (MAXNS, resolv.conf(5)).
const maxResolvers = 3

// networkWords returns the network settings for the keeper's flags.
func (c *Config) networkWords() []string {
	def := rule.Caps{Connections: c.Network.Connections, Bandwidth: uint64(c.Network.Bandwidth)}
	k := rule.Config{Caps: def, Most: def}
	var all []string
	for name, p := range c.Profiles {
		k.Most.Connections, k.Most.Bandwidth = larger(k.Most.Connections, p.NetworkConnections), larger(k.Most.Bandwidth, uint64(p.NetworkBandwidth))
		all = append(all, p.NetworkRules...)
		if p.Network == policy.NetworkHost {
			k.Shared = append(k.Shared, name)
		}
	}
	slices.Sort(k.Shared) // the keeper's flags are compared
	k.Named = policy.NamedRules(all)
	k.Block4, _ = rule.Block(c.Network.IPv4, true) // Check has parsed them
	k.Block6, _ = rule.Block(c.Network.IPv6, false)
	k.Resolvers = make([]netip.Addr, len(c.Network.Resolvers))
	for i, r := range c.Network.Resolvers {
		k.Resolvers[i], _ = rule.Resolver(r)
	}
	return k.Words()
}

// larger returns the larger of two limits; 0 is unlimited.
func larger[T cmp.Ordered](def, its T) T {
	var any T
	if def == any {
		return any
	}
	return max(def, its)
}

// defaultCaps sets the limits of profiles that set none.
func (c *Config) defaultCaps() {
	c.DefaultCaps = policy.NetworkCaps{Connections: c.Network.Connections, Bandwidth: c.Network.Bandwidth}
}

// resolvers returns the configured name servers of boxes.
func (c *Config) resolvers() (list []netip.Addr) {
	for _, text := range c.Network.Resolvers {
		if a, err := rule.Resolver(text); err == nil { // Check has parsed them
			list = append(list, a)
		}
	}
	return list
}
