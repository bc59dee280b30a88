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

// What caps are called in profiles and requests.
const (
	FieldConnections = "network_connections"
	FieldBandwidth   = "network_bandwidth"
)

// NetworkCaps are the most of the network that a box may use: connections at a time, and bytes a second in each direction. 0
// is what everybody has, or any.
type NetworkCaps struct {
	Connections int
	Bandwidth   quantity.Size
}

// DefaultConnections is how many every box has unless the operator says otherwise.
const DefaultConnections = 1024

// Check refuses what the kernel cannot keep.
func (c NetworkCaps) Check() error {
	switch {
	case c.Connections < 0 || c.Connections > rule.MaxConnections:
		return fault.Field(FieldConnections, c.Connections, fmt.Sprintf("0 to %d", rule.MaxConnections))
	case c.Bandwidth != 0 && (c.Bandwidth < rule.LeastBandwidth || c.Bandwidth > rule.MaxBandwidth):
		return fault.Field(FieldBandwidth, c.Bandwidth, fmt.Sprintf("0, or %v to %v a second", quantity.Size(rule.LeastBandwidth), quantity.Size(rule.MaxBandwidth)))
	}
	return nil
}

// NetworkRequest is what a request makes of the caps of a session.
type NetworkRequest struct {
	Network, Profile string
	Most             NetworkCaps // the profile's
	Now              NetworkCaps // what the session has if it asks for nothing
	Connections      *int
	Bandwidth        *quantity.Size
	Locked           []string // fields of the profile's
}

// Cut says that less was given than asked for, and by which key of box.toml.
type Cut struct{ Field, Asked, Got, By string }

// Asks reports whether a field is asked for.
func (w *NetworkRequest) Asks(field string) bool {
	return field == FieldConnections && w.Connections != nil || field == FieldBandwidth && w.Bandwidth != nil
}

// Resolve returns the caps of the session. What is asked for above the profile's is cut to that.
func (w *NetworkRequest) Resolve() (got NetworkCaps, cuts []Cut, err error) {
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

// shut refuses what is asked for where there are no caps, or the profile locks them.
func (w *NetworkRequest) shut(field string, asked bool, value, now any) error {
	switch {
	case !asked:
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

func (w *NetworkRequest) cut(field string, asked, got any) Cut {
	return Cut{field, fmt.Sprint(asked), fmt.Sprint(got), "profiles." + w.Profile + "." + field}
}

// above reports whether a value is more than the most there may be; 0 is more than all others.
func above[T cmp.Ordered](value, most T) bool {
	var endless T
	return most != endless && (value == endless || value > most)
}
