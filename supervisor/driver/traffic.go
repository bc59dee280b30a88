// SPDX-License-Identifier: Apache-2.0

// Traffic counters of the boxes' networks and refused connections, reported as often as they are read.

package driver

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/egress"
	"github.com/boxd-dev/boxd/isolation/network/rule"
)

// TrafficUse is the network usage of a box since it was made.
type TrafficUse struct {
	Addresses       []netip.Addr     // of the box
	Received, Sent  isolation.Amount // by the box
	PacketsRejected uint64           // that no rule allowed
}

// Refused is a destination that a box may not connect to, and how many packets were sent to it.
type Refused struct {
	To       netip.AddrPort
	Protocol string // rule.TCP or rule.UDP
	Packets  uint64
}

// trafficUse converts the keeper's counters of a network.
func trafficUse(t *isolation.Traffic, r *isolation.Refusals) *TrafficUse {
	u := &TrafficUse{Received: t.Received, Sent: t.Sent, PacketsRejected: r.Packets}
	for _, b := range t.Addresses {
		if a, ok := netip.AddrFromSlice(b); ok {
			u.Addresses = append(u.Addresses, a)
		}
	}
	return u
}

// refusals has all refusals of a box since it was made.
type refusals struct {
	Packets uint64
	Crowded uint64    // of them: packets that would have exceeded the connection limit
	Lately  []Refused // recent destinations
}

// refusalsOf converts the keeper's refusals.
func refusalsOf(r *isolation.Refusals) *refusals {
	all := &refusals{Packets: r.Packets, Crowded: r.Crowded}
	for i := range r.Lately {
		d, protocol := &r.Lately[i], rule.TCP
		if d.UDP {
			protocol = rule.UDP
		}
		if a, ok := netip.AddrFromSlice(d.To.Address); ok {
			all.Lately = append(all.Lately, Refused{netip.AddrPortFrom(a, d.To.Port), protocol, d.Packets})
		}
	}
	return all
}

// setting returns what would allow a destination to a box with these rules: "" if nothing would. name is the one that resolved to
// the destination, "" if not known.
func (r *Refused) setting(rules []string, name egress.Name, strict bool) string {
	port := strconv.Itoa(int(r.To.Port()))
	byName := slices.ContainsFunc(rules, egress.Written)
	if byName && (r.To.Port() == 53 || r.To.Port() == 853) {
		return "" // such a box has only one resolver
	}
	unseen := strict && r.Protocol == rule.UDP && (r.To.Port() == 80 || r.To.Port() == 443) // QUIC, which rules by name never allow
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

// Text describes a refusal. name is the one that resolved to the destination, "" if not known.
func (r *Refused) Text(rules []string, name egress.Name, strict bool) string {
	text := fmt.Sprintf("a connection to %s port %d by %s", r.To.Addr(), r.To.Port(), r.Protocol)
	if name != "" {
		text = fmt.Sprintf("a connection to %s, of %s, port %d by %s", r.To.Addr(), name, r.To.Port(), r.Protocol)
	}
	if setting := r.setting(rules, name, strict); setting != "" {
		return text + " is allowed by no rule; " + setting + " would allow it"
	}
	return text + " is allowed by no rule, and none would allow it"
}

// Bounds of what is reported of one box.
const (
	reportInterval = time.Minute // of one destination
	maxReported    = 30          // destinations in that time
)

// trafficTally tracks what was reported of one box.
type trafficTally struct {
	mu       sync.Mutex
	reported map[destination]report
	since    time.Time // when counting of the reported ones began
	count    int

	crowded report // what was reported of connections over the limit
}

type destination struct {
	to       netip.AddrPort
	protocol string
}

type report struct {
	at      time.Time
	packets uint64
}

// Crowded returns how many packets exceeded the connection limit since the last report; 0: none, or the last report is less than
// a minute old. What an earlier boxd reported may be reported again.
func (t *trafficTally) Crowded(packets uint64, now time.Time) (more uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if packets <= t.crowded.packets || now.Sub(t.crowded.at) < reportInterval {
		return 0
	}
	more = packets - t.crowded.packets
	t.crowded = report{now, packets}
	return more
}

// fresh returns the refusals to report now: those not reported in the last minute, or that have happened since. More than 30 in a
// minute are not reported: by then such a box is conspicuous enough.
func (t *trafficTally) fresh(list []Refused, now time.Time) (unreported []Refused) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.reported == nil {
		t.reported = map[destination]report{}
	}
	if now.Sub(t.since) >= reportInterval {
		t.since, t.count = now, 0
	}
	seen := map[destination]bool{}
	for _, r := range list {
		d := destination{r.To, r.Protocol}
		seen[d] = true
		last, known := t.reported[d]
		if known && (r.Packets == last.packets || now.Sub(last.at) < reportInterval) {
			continue
		}
		if t.count >= maxReported {
			continue
		}
		t.count++
		t.reported[d] = report{now, r.Packets}
		unreported = append(unreported, r)
	}
	for d, last := range t.reported { // what the keeper no longer knows starts anew, after its minute
		if !seen[d] && now.Sub(last.at) >= reportInterval {
			delete(t.reported, d)
		}
	}
	return unreported
}
