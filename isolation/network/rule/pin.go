// SPDX-License-Identifier: Apache-2.0

package rule

import (
	"fmt"
	"net/netip"
	"strconv"
	"time"
)

// LongestPin is the longest time that a pin lasts, even if the TTL is longer.
const LongestPin = time.Hour

// Pin lets a box connect to one address and port for a limited time.
type Pin struct {
	Addr     netip.Addr
	Protocol string // TCP or UDP
	Port     uint16
	For      time.Duration // whole seconds
}

// NewPin checks a pin. Its address must be one that an ordinary rule could be about: no name
// opens a blocked address.
func NewPin(to netip.AddrPort, protocol string, life time.Duration) (Pin, error) {
	r, err := New(netip.PrefixFrom(to.Addr(), to.Addr().BitLen()).String(), protocol, []string{strconv.Itoa(int(to.Port()))})
	if err == nil && (r.Named() || r.Protocol == Any) {
		err = &Refusal{Part: "pin", Value: to.String(), Allowed: "a public address, tcp or udp, and one port"}
	}
	if err != nil {
		return Pin{}, err
	}
	if life < time.Second || life > LongestPin {
		return Pin{}, &Refusal{Part: "pin", Value: life.String(), Allowed: fmt.Sprintf("1 to %d seconds", LongestPin/time.Second)}
	}
	return Pin{Addr: to.Addr(), Protocol: protocol, Port: to.Port(), For: life}, nil
}
