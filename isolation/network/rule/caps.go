// SPDX-License-Identifier: Apache-2.0

package rule

import (
	"strconv"
)

// Caps are the most of the network that one box may use. Their words are in the configuration of the keeper, which
// says what boxes have that ask for none of their own.
type Caps struct {
	Connections int    // at a time; 0: any number, or the keeper's
	Bandwidth   uint64 // in each direction, in bytes a second; 0: any, or the keeper's
}

// Words are those of what c says.
func (c Caps) Words() (words []string) {
	if c.Connections > 0 {
		words = append(words, keyConnections+"="+strconv.Itoa(c.Connections))
	}
	if c.Bandwidth > 0 {
		words = append(words, keyBandwidth+"="+strconv.FormatUint(c.Bandwidth, 10))
	}
	return words
}

// take reads a word if it is one of caps.
func (c *Caps) take(key, value string) (taken bool, err error) {
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

// Check refuses caps that the kernel cannot keep.
func (c Caps) Check() error {
	if c.Connections < 0 || c.Connections > MaxConnections {
		return &Refusal{Part: "connections", Value: strconv.Itoa(c.Connections), Allowed: "0 to " + strconv.Itoa(MaxConnections)}
	}
	if c.Bandwidth > 0 && (c.Bandwidth < LeastBandwidth || c.Bandwidth > MaxBandwidth) {
		return &Refusal{Part: "bandwidth", Value: strconv.FormatUint(c.Bandwidth, 10), Allowed: "0, or " + strconv.Itoa(LeastBandwidth) + " to " + strconv.Itoa(MaxBandwidth)}
	}
	return nil
}

// Exceed names what of c is more than most lets a box have.
func (c Caps) Exceed(most Caps) (what string, exceeds bool) {
	switch {
	case most.Connections > 0 && c.Connections > most.Connections:
		return strconv.Itoa(c.Connections) + " connections", true
	case most.Bandwidth > 0 && c.Bandwidth > most.Bandwidth:
		return strconv.FormatUint(c.Bandwidth, 10) + " bytes a second", true
	}
	return "", false
}
