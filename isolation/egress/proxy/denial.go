// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/boxd-dev/boxd/isolation/egress"
)

// Denial is an answer that a box did not get.
type Denial struct {
	Reason    egress.Reason
	Asked     string       // the name; in quotes if it is none that a host can have
	Addresses []netip.Addr // that were left out, at most eight of them; or the one that was connected to
	Port      uint16       // that was connected to; 0: nobody has connected
	Setting   string       // the rules that would allow it; "" where none would
}

const maxShown = 8

func notAllowed(name egress.Name, asked string) Denial {
	if name == "" {
		return Denial{Reason: egress.NotAllowed, Asked: strconv.QuoteToASCII(asked)}
	}
	return Denial{Reason: egress.NotAllowed, Asked: string(name), Setting: strconv.Quote(string(name))}
}

func leadsAstray(name egress.Name, to []netip.Addr) Denial {
	d := Denial{Reason: egress.NotPublic, Asked: string(name), Addresses: to[:min(len(to), maxShown)]}
	var rules []string
	for _, ip := range d.Addresses {
		if !ip.Is4In6() {
			rules = append(rules, strconv.Quote(netip.PrefixFrom(ip, ip.BitLen()).String()))
		}
	}
	d.Setting = strings.Join(rules, ", ")
	return d
}

// Tally knows what was told a short time ago.
type Tally struct {
	mu   sync.Mutex
	told map[string]time.Time
}

const (
	maxTold  = 256
	tellOnce = time.Minute
)

// IsNew says that a text was not told in the last minute. When too many others were it says nothing: who asks for
// hundreds of names that are not allowed is known by then.
func (t *Tally) IsNew(text string, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if at, ok := t.told[text]; ok && now.Sub(at) < tellOnce {
		return false
	}
	if len(t.told) >= maxTold {
		for k, at := range t.told {
			if now.Sub(at) >= tellOnce {
				delete(t.told, k)
			}
		}
		if len(t.told) >= maxTold {
			return false
		}
	}
	if t.told == nil {
		t.told = map[string]time.Time{}
	}
	t.told[text] = now
	return true
}

// pace is how fast a box may ask: tokens that come back with time.
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
