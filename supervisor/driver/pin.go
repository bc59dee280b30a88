// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/boxd-dev/boxd/internal/fdpass"
	"github.com/boxd-dev/boxd/isolation/egress"
)

// pin makes addresses reachable that a rule's name resolved to, and answers the proxy.
func (d *Resolver) pin(ctx context.Context, conn *fdpass.Conn, p *egress.Pin) {
	ctx, cancel := context.WithTimeout(ctx, pinMost)
	defer cancel()
	done := &egress.Pinned{ID: p.ID}
	d.mu.Lock()
	e := d.boxes[p.Key]
	d.mu.Unlock()
	if e != nil {
		e.pinMu.RLock()
		defer e.pinMu.RUnlock()
	}
	at, err := d.check(p)
	if err == nil {
		err = d.cfg.Pin(ctx, p.Key, p.Addresses, at, time.Duration(p.Seconds)*time.Second)
	}
	if err == nil && e != nil {
		d.remember(e, p)
	}
	if err != nil {
		d.cfg.Log.Warn("cannot allow the addresses of a name", "box", p.Key, "name", p.Name, "error", err)
		done.Error = err.Error()
	}
	if body, err := egress.Encode(&egress.Request{Pinned: done}); err == nil {
		_ = conn.Send(body)
	}
}

// remember notes which name resolved to which addresses. When there are too many, all are forgotten.
func (d *Resolver) remember(e *entry, p *egress.Pin) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if e.resolved == nil || len(e.resolved)+len(p.Addresses) > maxResolved {
		e.resolved = map[netip.Addr]egress.Name{}
	}
	for _, a := range p.Addresses {
		e.resolved[a] = p.Name
	}
	if !e.Strict {
		return
	}
	now := time.Now()
	if len(e.strict)+len(p.Addresses) > maxStrict {
		maps.DeleteFunc(e.strict, func(_ resolvedAddr, end time.Time) bool { return now.After(end) })
	}
	if e.strict == nil || len(e.strict)+len(p.Addresses) > maxStrict {
		e.strict = map[resolvedAddr]time.Time{}
	}
	for _, a := range p.Addresses {
		e.strict[resolvedAddr{p.Name, a}] = now.Add(time.Duration(p.Seconds) * time.Second)
	}
}

// nameOf returns the last name that resolved to an address for a box, "" if none is known.
func (d *Resolver) nameOf(key string, a netip.Addr) egress.Name {
	d.mu.Lock()
	defer d.mu.Unlock()
	if e := d.boxes[key]; e != nil {
		return e.resolved[a]
	}
	return ""
}

// check checks a pin against the rules of the box: the proxy may be wrong, since it handles untrusted traffic.
func (d *Resolver) check(p *egress.Pin) ([]egress.Opening, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	e := d.boxes[p.Key]
	if e == nil {
		return nil, errors.New("no such box")
	}
	name, ok := egress.FromQuery(string(p.Name) + ".")
	if !ok {
		return nil, errors.New("no name")
	}
	at := egress.Openings(e.Rules.Match(name))
	switch {
	case len(at) == 0:
		return nil, fmt.Errorf("no rule allows %q", p.Name)
	case len(p.Addresses) == 0 || len(p.Addresses) > maxPinned || p.Seconds < 1 || p.Seconds > int64(longestPin/time.Second):
		return nil, errors.New("no address given")
	case slices.ContainsFunc(p.Addresses, func(a netip.Addr) bool { return !egress.Public(a) }):
		return nil, errors.New("an address is not public")
	}
	return at, nil
}
