// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation/network/rule"
	"github.com/boxd-dev/boxd/quantity"
)

// Names of the caps in profiles and requests.
const (
	FieldConnections = "network_connections"
	FieldBandwidth   = "network_bandwidth"
)

// NetworkCaps limit a box's use of the network: concurrent connections, and bytes per second in each direction. 0 is the default
// number of connections, or any bandwidth.
type NetworkCaps struct {
	Connections int
	Bandwidth   quantity.Size
}

// DefaultConnections is every box's limit unless the operator sets another.
const DefaultConnections = 1024

// Check refuses what the kernel cannot enforce.
func (c NetworkCaps) Check() error {
	switch {
	case c.Connections < 0 || c.Connections > rule.MaxConnections:
		return fault.Field(FieldConnections, c.Connections, fmt.Sprintf("0 to %d", rule.MaxConnections))
	case c.Bandwidth != 0 && (c.Bandwidth < rule.LeastBandwidth || c.Bandwidth > rule.MaxBandwidth):
		return fault.Field(FieldBandwidth, c.Bandwidth, fmt.Sprintf("0, or %v to %v a second", quantity.Size(rule.LeastBandwidth), quantity.Size(rule.MaxBandwidth)))
	}
	return nil
}

// networkRequest is what Resolve needs to determine the caps of a session.
type networkRequest struct {
	Network, Profile string
	Most             NetworkCaps // the profile's
	Now              NetworkCaps // for fields that are not asked for
	Connections      *int
	Bandwidth        *quantity.Size
	Locked           []string // fields of the profile's
}

// Cut says that less was given than requested, and which key of box.toml reduced it.
type Cut struct{ Field, Asked, Got, By string }

// asks reports whether a field was requested.
func (w *networkRequest) asks(field string) bool {
	return field == FieldConnections && w.Connections != nil || field == FieldBandwidth && w.Bandwidth != nil
}

// Resolve returns the caps of the session. Requests above the profile's caps are reduced to them.
func (w *networkRequest) Resolve() (got NetworkCaps, cuts []Cut, err error) {
	got = w.Now
	if w.Connections != nil {
		got.Connections = *w.Connections
	}
	if w.Bandwidth != nil {
		got.Bandwidth = *w.Bandwidth
	}
	if err := cmp.Or(w.shut(FieldConnections, w.Connections != nil, got.Connections, w.Now.Connections), w.shut(FieldBandwidth, w.Bandwidth != nil, got.Bandwidth, w.Now.Bandwidth), got.Check()); err != nil {
		return w.Now, nil, err
	}
	if w.Connections != nil && above(got.Connections, w.Most.Connections) {
		cuts = append(cuts, w.cut(FieldConnections, got.Connections, w.Most.Connections))
		got.Connections = w.Most.Connections
	}
	if w.Bandwidth != nil && above(got.Bandwidth, w.Most.Bandwidth) {
		cuts = append(cuts, w.cut(FieldBandwidth, got.Bandwidth, w.Most.Bandwidth))
		got.Bandwidth = w.Most.Bandwidth
	}
	return got, cuts, nil
}

// shut refuses a requested cap where the network has none, or the profile locks it.
func (w *networkRequest) shut(field string, requested bool, value, now any) error {
	switch {
	case !requested:
		return nil
	case w.Network != rule.Egress:
		return fault.Field(field, value, "left out with network = "+strconv.Quote(w.Network)).WithText("%s: needs a network, and this session has network = %q", field, w.Network)
	case value != now && slices.Contains(w.Locked, field):
		rule := "profiles." + w.Profile + ".locked"
		f := fault.Field(field, value, fmt.Sprint(now))
		return f.WithText("%w, as profile %q locks it", f.Err, w.Profile).Of(fault.Denied).
			WithHint("leave it out, or use another profile").
			By(fault.Denial{Layer: fault.LayerNetwork, Rule: rule, Allowed: fmt.Sprint(now), Setting: rule + " without " + strconv.Quote(field)})
	}
	return nil
}

func (w *networkRequest) cut(field string, requested, got any) Cut {
	return Cut{field, fmt.Sprint(requested), fmt.Sprint(got), "profiles." + w.Profile + "." + field}
}

// above reports whether a value exceeds the maximum; 0 is more than any other value.
func above[T cmp.Ordered](value, limit T) bool {
	var endless T
	return limit != endless && (value == endless || value > limit)
}
