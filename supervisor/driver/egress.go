// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/internal/fdpass"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/client"
	"github.com/boxd-dev/boxd/isolation/egress"
	"github.com/boxd-dev/boxd/isolation/network/rule"
)

// Resolve has the names of boxes with rules by name resolved, by the program that connect leads to, which asks the
// resolvers, or those of the host if there are none. denied is told what
// they are refused. It is called once, before the first box; StopResolving ends it.
func (d *Driver) Resolve(connect func(context.Context) (*fdpass.Conn, error), resolvers []netip.Addr, denied func(*egress.Denied), log *slog.Logger) {
	d.names = OpenResolver(ResolverConfig{
		Connect: connect, Resolvers: resolvers, Denied: denied, Log: log, Gone: isGone, Sockets: d.sockets,
		Dial: d.dial,
		Pin: func(ctx context.Context, key string, to []netip.Addr, at []egress.Opening, life time.Duration) error {
			return d.pin(ctx, key, to, at, int64(life/time.Second))
		},
	})
}

// Words of the keeper about names, as isolation/network has them: that is not linked here.
const (
	wordSockets = "sockets"
	wordDial    = "dial"
	wordPins    = "pins"
	wordRules   = "rules"
	pinsAtOnce  = 200
)

// sockets opens what a box with rules by name asks at, and where the connections of a strict one are looked at.
func (d *Driver) sockets(ctx context.Context, key string, strict bool) (files []int, six bool, err error) {
	ask := []string{wordSockets}
	if strict {
		ask = append(ask, rule.Strict)
	}
	words, files, err := d.Network(ctx, key, ask)
	if err == nil && (len(files) < 2 || strict != (len(files) > 2)) {
		fdpass.CloseAll(files)
		err = fmt.Errorf("sockets: %w", isolation.ErrMalformed)
	}
	if err != nil {
		return nil, false, err
	}
	for _, word := range words {
		addr, err := netip.ParseAddr(word)
		six = six || err == nil && addr.Is6()
	}
	return files, six, nil
}

// dial begins a connection out of a box.
func (d *Driver) dial(ctx context.Context, key string, to netip.AddrPort) (int, error) {
	_, files, err := d.Network(ctx, key, []string{wordDial, to.Addr().String(), strconv.Itoa(int(to.Port()))})
	if err == nil && len(files) != 1 {
		err = fmt.Errorf("connection: %w", isolation.ErrMalformed)
	}
	if err != nil {
		fdpass.CloseAll(files)
		return -1, err
	}
	return files[0], nil
}

// pin lets a box connect to addresses.
func (d *Driver) pin(ctx context.Context, key string, to []netip.Addr, at []egress.Opening, seconds int64) error {
	var words []string
	for _, a := range to {
		for _, o := range at {
			words = append(words, fmt.Sprintf("%s %s %d", a, o, seconds))
		}
	}
	for some := range slices.Chunk(words, pinsAtOnce) {
		_, files, err := d.Network(ctx, key, append([]string{wordPins}, some...))
		fdpass.CloseAll(files)
		if err != nil {
			return err
		}
	}
	return nil
}

// isGone reports whether an error says that a box has ended, or has no network.
func isGone(err error) bool { return errors.Is(err, unix.ESRCH) || errors.Is(err, unix.ENONET) }

// StopResolving ends what Resolve and Watch have begun.
func (d *Driver) StopResolving() {
	if d.watched != nil {
		d.watched.stop()
		d.watched.done.Wait()
	}
	if d.names != nil {
		d.names.Close()
	}
}

// split takes the rules by name out of a specification: the keeper is told that there are some, and no more. byName is
// nil if there are none, and the word rule.Names does not say that names are boxd's to resolve all the same.
func split(spec *isolation.Spec) (in *isolation.Spec, byName *ResolverBox, err error) {
	var texts, others []string
	only := false
	byName = &ResolverBox{}
	for i, text := range spec.Network {
		switch {
		case i == 0:
		case text == rule.Names:
			only = true
		case text == rule.Strict:
			byName.Strict = true
		case rule.IsCap(text):
			others = append(others, text)
		case egress.Written(text):
			texts = append(texts, text)
		default:
			others = append(others, text)
			if r, err := rule.Parse(text); err == nil && r.Named() {
				byName.Reach = append(byName.Reach, r.To)
			}
		}
	}
	own := *spec
	if len(texts) == 0 && !only {
		if byName.Strict { // there is nothing to look at
			own.Network = append([]string{spec.Network[0]}, others...)
		}
		return &own, nil, nil
	}
	if byName.Rules, err = egress.ReadRules("network_rules", texts); err != nil {
		return nil, nil, err
	}
	words := []string{spec.Network[0], rule.Names + byName.Rules.Digest()}
	if byName.Strict {
		words = append(words, rule.Strict)
	}
	own.Network = append(words, others...)
	return &own, byName, nil
}

// launch starts a box by the keeper, and has its names resolved.
func (d *Driver) launch(ctx context.Context, spec *isolation.Spec) (*client.Box, error) {
	in, byName, err := split(spec)
	if err != nil {
		return nil, err
	}
	if byName != nil && d.names == nil {
		return nil, errNoNames()
	}
	box, err := d.Keeper.Launch(ctx, in)
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
		if eerr := d.Keeper.End(context.WithoutCancel(ctx), spec.Key, true); eerr != nil && d.log != nil {
			d.log.Warn("box whose names are not resolved", "error", eerr)
		}
		return nil, err
	}
	return box, nil
}

// SetNetwork gives a living box the rules of network, as isolation.Spec.Network has them, instead of those it has: the
// kernel cuts what they do not let through, and forgets where it has refused the box to go, see Refusals. After an error it may have either: whoever has to know calls it again.
func (d *Driver) SetNetwork(ctx context.Context, key string, network []string) error {
	in, byName, err := split(&isolation.Spec{Key: key, Network: network})
	switch {
	case err != nil:
		return err
	case d.names == nil && byName != nil:
		return errNoNames()
	}
	known := false
	if d.names != nil { // first: what a name leads to from here on is held against the new rules
		box := ResolverBox{}
		if byName != nil {
			box = *byName
		}
		known = d.names.Change(key, box)
	}
	_, files, err := d.Network(ctx, key, append([]string{wordRules}, in.Network[1:]...))
	fdpass.CloseAll(files)
	switch {
	case err != nil:
		return err
	case byName == nil && known:
		d.names.Remove(key)
	case byName != nil && !known:
		return d.names.Add(ctx, key, *byName)
	}
	return nil
}

func errNoNames() error {
	return fault.Errorf(fault.Unsupported, "rules by name: boxd resolves no names").WithHint("name networks instead")
}

// resume has the names of a box resolved that was taken over. It lives without them until the program is there.
func (d *Driver) resume(spec *isolation.Spec) {
	d.watch(spec)
	if _, byName, err := split(spec); err == nil && byName != nil && d.names != nil {
		d.names.Restore(spec.Key, *byName)
	}
}

// SetSecrets gives a box the secrets that are put into its requests, in the place of those that it has.
func (d *Driver) SetSecrets(m *egress.Secrets) {
	if d.names != nil {
		d.names.Secrets(m)
	}
}

// forget has the names of a box resolved no more.
func (d *Driver) forget(key string) {
	d.SetSecrets(&egress.Secrets{Key: key})
	if d.names != nil {
		d.names.Remove(key)
	}
}
