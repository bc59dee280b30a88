// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/internal/fdpass"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/client"
	"github.com/boxd-dev/boxd/isolation/egress"
	"github.com/boxd-dev/boxd/isolation/network/rule"
)

// Resolve resolves names for boxes with rules by name, through the proxy that connect reaches. It asks the given resolvers, or
// the host's if there are none. denied is called for refused names. Call it once, before the first box; StopResolving ends it.
func (d *Driver) Resolve(connect func(context.Context) (*fdpass.Conn, error), resolvers []netip.Addr, denied func(*egress.Denied), log *slog.Logger) {
	d.names = OpenResolver(ResolverConfig{
		Connect: connect, Resolvers: resolvers, Denied: denied, Log: log, Gone: isGone, Sockets: d.OpenSockets, Dial: d.Dial, Pin: d.pin,
	})
}

// pin lets a box connect to addresses.
func (d *Driver) pin(ctx context.Context, key string, to []netip.Addr, at []egress.Opening, life time.Duration) error {
	var pins []isolation.Pin
	for _, a := range to {
		for _, o := range at {
			pins = append(pins, isolation.Pin{To: isolation.Endpoint{Address: a.AsSlice(), Port: o.Port}, UDP: o.Protocol == egress.UDP, Seconds: uint32(life / time.Second)})
		}
	}
	for some := range slices.Chunk(pins, isolation.MaxPins) {
		if err := d.PinAddresses(ctx, key, some); err != nil {
			return err
		}
	}
	return nil
}

// isGone reports whether an error means that a box has ended, or has no network.
func isGone(err error) bool { return errors.Is(err, unix.ESRCH) || errors.Is(err, unix.ENONET) }

// StopResolving stops what Resolve and Watch began.
func (d *Driver) StopResolving() {
	if d.watched != nil {
		d.watched.stop()
		d.watched.done.Wait()
	}
	if d.names != nil {
		d.names.Close()
	}
}

// split separates the rules by name from a network: the keeper only learns that there are some. byName is nil if there are none,
// unless NamesOnly says that boxd resolves names all the same.
func split(network *isolation.NetworkSpec) (in isolation.NetworkSpec, byName *ResolverBox, err error) {
	in, byName = *network, &ResolverBox{Strict: network.Strict}
	in.Rules = nil
	var names []string
	for _, text := range network.Rules {
		if egress.Written(text) {
			names = append(names, text)
			continue
		}
		in.Rules = append(in.Rules, text)
		if r, err := rule.Parse(text); err == nil && r.Named() {
			byName.Reach = append(byName.Reach, r.To)
		}
	}
	if len(names) == 0 && !network.NamesOnly {
		in.Strict = false // there is nothing to filter
		return in, nil, nil
	}
	if byName.Rules, err = egress.ReadRules("network_rules", names); err != nil {
		return in, nil, err
	}
	in.NamesOnly, in.Names = true, byName.Rules.Digest()
	return in, byName, nil
}

// launch starts a box through the keeper, and begins to resolve its names.
func (d *Driver) launch(ctx context.Context, spec *isolation.Spec) (*client.Box, error) {
	network, byName, err := split(&spec.Network)
	if err != nil {
		return nil, err
	}
	if byName != nil && d.names == nil {
		return nil, errNoNames()
	}
	in := *spec
	in.Network = network
	box, err := d.Keeper.Launch(ctx, &in)
	if err != nil {
		return nil, err
	}
	d.watch(spec)
	if byName == nil {
		return box, nil
	}
	if err := d.names.Add(ctx, spec.Key, *byName); err != nil {
		box.Close()
		d.unwatch(ctx, spec.Key)
		if eerr := d.Keeper.End(context.WithoutCancel(ctx), spec.Key, !spec.Resume); eerr != nil && d.log != nil {
			d.log.Warn("cannot resolve names for a box", "error", eerr)
		}
		return nil, err
	}
	return box, nil
}

// SetNetwork replaces the rules of a running box with those of network, as in isolation.Spec.Network: the kernel cuts connections
// that they do not allow, and forgets earlier refusals, see Refusals. After an error either rules may be in force; a caller that
// must know calls it again.
func (d *Driver) SetNetwork(ctx context.Context, key string, network *isolation.NetworkSpec) error {
	in, byName, err := split(network)
	switch {
	case err != nil:
		return err
	case d.names == nil && byName != nil:
		return errNoNames()
	}
	known := false
	if d.names != nil { // first: from here on names are checked against the new rules
		box := ResolverBox{}
		if byName != nil {
			box = *byName
		}
		known = d.names.Change(key, box)
	}
	if err := d.Keeper.SetNetwork(ctx, key, &in); err != nil {
		return err
	}
	switch {
	case byName == nil && known:
		d.names.Remove(key)
	case byName != nil && !known:
		return d.names.Add(ctx, key, *byName)
	}
	return nil
}

func errNoNames() error {
	return fault.Errorf(fault.Unsupported, "rules with host names need boxnames, which this boxd has switched off").WithHint("use rules with networks (CIDR) instead")
}

// resume resolves names for a box that was taken over. Until the proxy is there, the box has no name resolution.
func (d *Driver) resume(spec *isolation.Spec) {
	d.watch(spec)
	if _, byName, err := split(&spec.Network); err == nil && byName != nil && d.names != nil {
		d.names.restore(spec.Key, *byName)
	}
}

// SetSecrets replaces the secrets that are put into a box's requests.
func (d *Driver) SetSecrets(m *egress.Secrets) {
	if d.names != nil {
		d.names.secrets(m)
	}
}

// forget stops resolving names for a box.
func (d *Driver) forget(key string) {
	d.SetSecrets(&egress.Secrets{Key: key})
	if d.names != nil {
		d.names.Remove(key)
	}
}
