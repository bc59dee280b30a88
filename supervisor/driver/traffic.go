// SPDX-License-Identifier: Apache-2.0

// Traffic counters of the boxes' networks and the connections that were refused, as the keeper reports them.

package driver

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/egress"
	"github.com/boxd-dev/boxd/isolation/network/rule"
)

// TrafficUse is what has gone over the network of a box since it was made.
type TrafficUse struct {
	Addresses       []netip.Addr // of the box
	Received, Sent  Amount       // by the box
	PacketsRejected uint64       // that no rule let through
}

// Amount is an amount of traffic.
type Amount struct{ Bytes, Packets uint64 }

// Refused is a destination that a box may not connect to, and how many packets have tried.
type Refused struct {
	To       netip.AddrPort
	Protocol string // rule.TCP or rule.UDP
	Packets  uint64
}

// figures are how many numbers are behind the addresses of a look.
const figures = 4

// ReadTraffic reads the keeper's answer about a link. The error is isolation.ErrMalformed.
func ReadTraffic(words []string) (*TrafficUse, error) {
	if len(words) < figures {
		return nil, isolation.ErrMalformed
	}
	u := &TrafficUse{}
	for _, word := range words[:len(words)-figures] {
		a, err := netip.ParseAddr(word)
		if err != nil {
			return nil, isolation.ErrMalformed
		}
		u.Addresses = append(u.Addresses, a)
	}
	for i, to := range []*uint64{&u.Received.Bytes, &u.Received.Packets, &u.Sent.Bytes, &u.Sent.Packets} {
		var err error
		if *to, err = strconv.ParseUint(words[len(words)-figures+i], 10, 64); err != nil {
			return nil, isolation.ErrMalformed
		}
	}
	return u, nil
}

// Refusals are all that a box was refused since it was made.
type Refusals struct {
	Packets uint64
	Crowded uint64    // of them: packets that would have begun one connection more than the box may have
	Lately  []Refused // where to
}

// ReadRefused reads the keeper's answer about refusals. The error is isolation.ErrMalformed.
func ReadRefused(words []string) (*Refusals, error) {
	const numbers = 2
	if len(words) < numbers {
		return nil, isolation.ErrMalformed
	}
	all := &Refusals{}
	for i, to := range []*uint64{&all.Packets, &all.Crowded} {
		var err error
		if *to, err = strconv.ParseUint(words[i], 10, 64); err != nil {
			return nil, isolation.ErrMalformed
		}
	}
	for _, word := range words[numbers:] {
		r, ok := readRefused(word)
		if !ok {
			return nil, isolation.ErrMalformed
		}
		all.Lately = append(all.Lately, r)
	}
	return all, nil
}

func readRefused(word string) (r Refused, ok bool) {
	parts := strings.Split(word, " ")
	if len(parts) != 4 || parts[1] != rule.TCP && parts[1] != rule.UDP {
		return r, false
	}
	a, err := netip.ParseAddr(parts[0])
	port, perr := strconv.ParseUint(parts[2], 10, 16)
	n, nerr := strconv.ParseUint(parts[3], 10, 64)
	return Refused{netip.AddrPortFrom(a, uint16(port)), parts[1], n}, err == nil && perr == nil && nerr == nil && a.Zone() == ""
}

// Setting is what would allow a destination to a box that has these rules: "" where nothing would. name is what has
// led there, "" if that is not known.
func (r *Refused) Setting(rules []string, name egress.Name, strict bool) string {
	port := strconv.Itoa(int(r.To.Port()))
	byName := slices.ContainsFunc(rules, egress.Written)
	if byName && (r.To.Port() == 53 || r.To.Port() == 853) {
		return "" // such a box has one resolver
	}
	unseen := strict && r.Protocol == rule.UDP && (r.To.Port() == 80 || r.To.Port() == 443) // QUIC, which no rule by name lets through
	if name != "" && !unseen {
		return "network_rules with " + strconv.Quote(string(name)+" "+r.Protocol+" "+port)
	}
	one, err := rule.New(netip.PrefixFrom(r.To.Addr(), r.To.Addr().BitLen()).String(), r.Protocol, []string{port})
	switch {
	case err != nil:
		return ""
	case one.Named():
		return "a profile whose network_rules have " + strconv.Quote(one.String())
	}
	return "network_rules with " + strconv.Quote(one.String())
}

// Text says of a refusal what it was. name is what has led there, "" if that is not known.
func (r *Refused) Text(rules []string, name egress.Name, strict bool) string {
	text := fmt.Sprintf("a connection to %s port %d by %s", r.To.Addr(), r.To.Port(), r.Protocol)
	if name != "" {
		text = fmt.Sprintf("a connection to %s, of %s, port %d by %s", r.To.Addr(), name, r.To.Port(), r.Protocol)
	}
	if setting := r.Setting(rules, name, strict); setting != "" {
		return text + " is allowed by no rule; " + setting + " would allow it"
	}
	return text + " is allowed by no rule, and none would allow it"
}

// Bounds of what is told of one box.
const (
	tellOnce = time.Minute // of one destination
	tellMost = 30          // destinations in that time
)

// TrafficTally knows what was told of one box.
type TrafficTally struct {
	mu    sync.Mutex
	told  map[destination]said
	since time.Time // when the count of those that were told began
	count int

	crowded said // what was told of connections that were too many
}

type destination struct {
	to       netip.AddrPort
	protocol string
}

type said struct {
	at      time.Time
	packets uint64
}

// Crowded says how many packets there were since it was last told that the box has met its cap on connections; 0: none,
// or that was in the last minute. What an earlier boxd may have told is told once more.
func (t *TrafficTally) Crowded(packets uint64, now time.Time) (more uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if packets <= t.crowded.packets || now.Sub(t.crowded.at) < tellOnce {
		return 0
	}
	more = packets - t.crowded.packets
	t.crowded = said{now, packets}
	return more
}

// News returns those of the refusals that are to be told now: that were not told in the last minute, or have not
// happened since. Of more than 30 in a minute nothing is told: whoever tries so many is known by then.
func (t *TrafficTally) News(list []Refused, now time.Time) (tell []Refused) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.told == nil {
		t.told = map[destination]said{}
	}
	if now.Sub(t.since) >= tellOnce {
		t.since, t.count = now, 0
	}
	there := map[destination]bool{}
	for _, r := range list {
		d := destination{r.To, r.Protocol}
		there[d] = true
		last, known := t.told[d]
		if known && (r.Packets == last.packets || now.Sub(last.at) < tellOnce) {
			continue
		}
		if t.count >= tellMost {
			continue
		}
		t.count++
		t.told[d] = said{now, r.Packets}
		tell = append(tell, r)
	}
	for d, last := range t.told { // what the keeper does not know any more begins anew, after its minute
		if !there[d] && now.Sub(last.at) >= tellOnce {
			delete(t.told, d)
		}
	}
	return tell
}
