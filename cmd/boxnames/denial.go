// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/boxd-dev/boxd/isolation/egress"
)

// denial is something a box was denied: a name, addresses or a connection.
type denial struct {
	Reason    egress.Reason
	Asked     string       // the name; in quotes if it is not a valid host name
	Addresses []netip.Addr // addresses that were left out, at most eight of them; or the one of the connection
	Port      uint16       // port of the connection; 0: there was none
	Setting   string       // the rules that would allow it; "" if none would
}

const maxShown = 8

func notAllowed(name egress.Name, requested string) denial {
	if name == "" {
		return denial{Reason: egress.NotAllowed, Asked: strconv.QuoteToASCII(requested)}
	}
	return denial{Reason: egress.NotAllowed, Asked: string(name), Setting: strconv.Quote(string(name))}
}

func badAddress(name egress.Name, to []netip.Addr) denial {
	d := denial{Reason: egress.NotPublic, Asked: string(name), Addresses: to[:min(len(to), maxShown)]}
	var rules []string
	for _, ip := range d.Addresses {
		if !ip.Is4In6() {
			rules = append(rules, strconv.Quote(netip.PrefixFrom(ip, ip.BitLen()).String()))
		}
	}
	d.Setting = strings.Join(rules, ", ")
	return d
}

// tally remembers what was reported recently.
type tally struct {
	mu       sync.Mutex
	reported map[string]time.Time
}

const (
	maxReported = 256
	reportOnce  = time.Minute
)

// isNew reports whether a text was not reported in the last minute. If too many others were, it
// returns false: a box that asks for hundreds of names it may not resolve is known by then.
func (t *tally) isNew(text string, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if at, ok := t.reported[text]; ok && now.Sub(at) < reportOnce {
		return false
	}
	if len(t.reported) >= maxReported {
		for k, at := range t.reported {
			if now.Sub(at) >= reportOnce {
				delete(t.reported, k)
			}
		}
		if len(t.reported) >= maxReported {
			return false
		}
	}
	if t.reported == nil {
		t.reported = map[string]time.Time{}
	}
	t.reported[text] = now
	return true
}

// pace limits how fast a box may send queries: tokens that come back with time.
type pace struct {
	mu   sync.Mutex
	left float64
	at   time.Time
}

func (p *pace) take(rate int, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	burst := float64(10 * rate)
	if p.at.IsZero() {
		p.left = burst
	} else {
		p.left = min(burst, p.left+now.Sub(p.at).Seconds()*float64(rate))
	}
	p.at = now
	if p.left < 1 {
		return false
	}
	p.left--
	return true
}
