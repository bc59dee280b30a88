// SPDX-License-Identifier: Apache-2.0

package rule

import (
	"strconv"
)

// Caps are the network limits of one box. In the keeper's configuration they are the defaults for
// boxes that ask for none of their own.
type Caps struct {
	Connections int    // at a time; 0: no limit, or the keeper's default
	Bandwidth   uint64 // in each direction, in bytes per second; 0: no limit, or the keeper's default
}

// Words encodes the limits that are set.
func (c Caps) Words() (words []string) {
	if c.Connections > 0 {
		words = append(words, keyConnections+"="+strconv.Itoa(c.Connections))
	}
	if c.Bandwidth > 0 {
		words = append(words, keyBandwidth+"="+strconv.FormatUint(c.Bandwidth, 10))
	}
	return words
}

// take parses a word if it is that of a limit.
func (c *Caps) take(key, value string) (ok bool, err error) {
	switch key {
	case keyConnections:
		var n uint64
		n, err = number(value, 1, MaxConnections)
		c.Connections = int(n)
	case keyBandwidth:
		c.Bandwidth, err = number(value, LeastBandwidth, MaxBandwidth)
	default:
		return false, nil
	}
	return true, err
}

// Check refuses limits that the kernel cannot enforce.
func (c Caps) Check() error {
	if c.Connections < 0 || c.Connections > MaxConnections {
		return &Refusal{Part: "connections", Value: strconv.Itoa(c.Connections), Allowed: "0 to " + strconv.Itoa(MaxConnections)}
	}
	if c.Bandwidth > 0 && (c.Bandwidth < LeastBandwidth || c.Bandwidth > MaxBandwidth) {
		return &Refusal{Part: "bandwidth", Value: strconv.FormatUint(c.Bandwidth, 10), Allowed: "0, or " + strconv.Itoa(LeastBandwidth) + " to " + strconv.Itoa(MaxBandwidth)}
	}
	return nil
}

// Exceed names which limit is higher than limit allows.
func (c Caps) Exceed(limit Caps) (what string, exceeds bool) {
	switch {
	case limit.Connections > 0 && c.Connections > limit.Connections:
		return strconv.Itoa(c.Connections) + " connections", true
	case limit.Bandwidth > 0 && c.Bandwidth > limit.Bandwidth:
		return strconv.FormatUint(c.Bandwidth, 10) + " bytes a second", true
	}
	return "", false
}
