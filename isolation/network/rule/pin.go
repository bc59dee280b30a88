// SPDX-License-Identifier: Apache-2.0

package rule

import (
	"fmt"
	"net/netip"
	"strconv"
	"time"

	"github.com/boxd-dev/boxd/isolation"
)

// LongestPin is how long a pin lasts at most. A name server may say more.
const LongestPin = time.Hour

// Pin lets a box connect to one address and port for a time.
type Pin struct {
	Addr     netip.Addr
	Protocol string // TCP or UDP
	Port     uint16
	For      time.Duration // whole seconds
}

// ReadPin checks a pin that somebody asks for. It is about an address that a rule could be about which is not named:
// no name leads to a blocked one.
func ReadPin(p *isolation.Pin) (Pin, error) {
	to, protocol := AddrPort(&p.To), TCP
	if p.UDP {
		protocol = UDP
	}
	r, err := New(netip.PrefixFrom(to.Addr(), to.Addr().BitLen()).String(), protocol, []string{strconv.Itoa(int(to.Port()))})
	if err == nil && r.Named() {
		err = &Refusal{Part: "pin", Value: to.String(), Allowed: "a public address, tcp or udp, and one port"}
	}
	if err != nil {
		return Pin{}, err
	}
	life := time.Duration(p.Seconds) * time.Second
	if life < time.Second || life > LongestPin {
		return Pin{}, &Refusal{Part: "pin", Value: life.String(), Allowed: fmt.Sprintf("1 to %d seconds", LongestPin/time.Second)}
	}
	return Pin{Addr: to.Addr(), Protocol: protocol, Port: to.Port(), For: life}, nil
}

// AddrPort is an endpoint of a message, in the form in which it is used. It is not valid where that has no address.
func AddrPort(e *isolation.Endpoint) netip.AddrPort {
	a, _ := netip.AddrFromSlice(e.Address)
	return netip.AddrPortFrom(a, e.Port)
}
