// SPDX-License-Identifier: Apache-2.0

package rule

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"
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

// String is the one form that ParsePin reads.
func (p Pin) String() string {
	return fmt.Sprintf("%s %s %d %d", p.Addr, p.Protocol, p.Port, int64(p.For/time.Second))
}

// ParsePin reads what String has written. A pin is about an address that a rule could be about which is not named:
// no name leads to a blocked one.
func ParsePin(text string) (Pin, error) {
	var p Pin
	parts := strings.Split(text, " ")
	if len(parts) != 4 {
		return p, errors.New("not a pin")
	}
	addr, err := netip.ParseAddr(parts[0])
	if err != nil || addr.Zone() != "" {
		return p, &Refusal{Part: "pin", Value: text, Allowed: "an address"}
	}
	r, err := New(netip.PrefixFrom(addr, addr.BitLen()).String(), parts[1], []string{parts[2]})
	if err == nil && (r.Named() || r.Protocol == Any || r.Ports[0].First != r.Ports[0].Last) {
		err = &Refusal{Part: "pin", Value: text, Allowed: "a public address, tcp or udp, and one port"}
	}
	if err != nil {
		return p, err
	}
	life, err := time.ParseDuration(parts[3] + "s")
	p = Pin{Addr: addr, Protocol: r.Protocol, Port: r.Ports[0].First, For: life}
	if err != nil || life < time.Second || life > LongestPin || p.String() != text {
		return p, &Refusal{Part: "pin", Value: text, Allowed: fmt.Sprintf("1 to %d seconds", LongestPin/time.Second)}
	}
	return p, nil
}
