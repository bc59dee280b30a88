// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/boxd-dev/boxd/internal/fdpass"
	"github.com/boxd-dev/boxd/isolation/egress"
)

// resolvedAddr is an address that a name resolved to.
type resolvedAddr struct {
	name egress.Name
	addr netip.Addr
}

// errNotLed means that the box did not get this address for the name.
var errNotLed = errors.New("the name does not resolve to this address")

// dial opens a connection for a box with a strict network, and passes it to the proxy.
func (d *Resolver) dial(ctx context.Context, conn *fdpass.Conn, m *egress.Dial) {
	ctx, cancel := context.WithTimeout(ctx, pinMost)
	defer cancel()
	done := &egress.Dialed{ID: m.ID}
	d.mu.Lock()
	e := d.boxes[m.Key]
	d.mu.Unlock()
	if e != nil { // or the rules from before a change could still allow it
		e.pinMu.RLock()
		defer e.pinMu.RUnlock()
	}
	var files []int
	err := d.mayDial(m)
	if err == nil {
		var fd int
		if fd, err = d.cfg.Dial(ctx, m.Key, m.To); err == nil {
			files = []int{fd}
			defer fdpass.CloseAll(files)
		}
	}
	if err != nil {
		done.Error, done.NotLed = err.Error(), errors.Is(err, errNotLed)
	}
	if body, err := egress.Encode(&egress.Request{Dialed: done}); err == nil {
		_ = conn.Send(body, files...)
	}
}

// mayDial checks a connection against the rules of the box and what its names resolved to: the proxy may be wrong, since it
// handles untrusted traffic.
func (d *Resolver) mayDial(m *egress.Dial) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	e := d.boxes[m.Key]
	if e == nil || !e.Strict {
		return errors.New("no such box")
	}
	name, ok := egress.FromQuery(string(m.Name) + ".")
	if !ok || !slices.Contains(egress.Openings(e.Rules.Match(name)), egress.Opening{Protocol: egress.TCP, Port: m.To.Port()}) {
		return fmt.Errorf("no rule allows %q", m.Name)
	}
	if !time.Now().Before(e.strict[resolvedAddr{name, m.To.Addr()}]) {
		return errNotLed
	}
	return nil
}
