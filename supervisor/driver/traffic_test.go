// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/egress"
)

func TestAnswersOfTheKeeper(t *testing.T) {
	t.Parallel()
	four, six := netip.MustParseAddrPort("1.2.3.4:22"), netip.MustParseAddrPort("[2001:db8::1]:443")
	r := &isolation.Refusals{Packets: 7, Crowded: 5, Lately: []isolation.RefusedDestination{
		{To: isolation.Endpoint{Address: four.Addr().AsSlice(), Port: 22}, Packets: 3}, {To: isolation.Endpoint{Address: six.Addr().AsSlice(), Port: 443}, UDP: true, Packets: 4},
	}}
	all := refusalsOf(r)
	if want := (&refusals{Packets: 7, Crowded: 5, Lately: []Refused{{four, "tcp", 3}, {six, "udp", 4}}}); !reflect.DeepEqual(all, want) {
		t.Errorf("all = %+v, want %+v", all, want)
	}
	u := trafficUse(&isolation.Traffic{Addresses: [][]byte{four.Addr().AsSlice(), six.Addr().AsSlice()}, Received: isolation.Amount{Bytes: 1, Packets: 2}, Sent: isolation.Amount{Bytes: 3, Packets: 4}}, r)
	want := &TrafficUse{Addresses: []netip.Addr{four.Addr(), six.Addr()}, Received: isolation.Amount{Bytes: 1, Packets: 2}, Sent: isolation.Amount{Bytes: 3, Packets: 4}, PacketsRejected: 7}
	if !reflect.DeepEqual(u, want) {
		t.Errorf("u = %+v, want %+v", u, want)
	}
}

// Any refusals that a keeper reports can be converted to text.
func FuzzRefusals(f *testing.F) {
	f.Add(isolation.EncodeKeeperReply(1, &isolation.Refusals{Packets: 7, Lately: []isolation.RefusedDestination{{To: isolation.Endpoint{Address: []byte{1, 2, 3, 4}, Port: 22}, Packets: 3}}}))
	f.Fuzz(func(t *testing.T, data []byte) {
		_, reply, err := isolation.DecodeKeeperReply(data)
		r, ok := reply.(*isolation.Refusals)
		if err != nil || !ok {
			return
		}
		for _, r := range refusalsOf(r).Lately {
			if !r.To.Addr().IsValid() || r.Text(nil, "", false) == "" {
				t.Errorf(`r = %+v, err = %v, want r.To.Addr().IsValid() and r.Text(nil, "", false) != ""`, r, err)
			}
		}
	})
}

// The keeper gets the rules of a network without those by name, and learns only that there are some.
func TestTheKeeperGetsNoRulesByName(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		asked, want isolation.NetworkSpec
		byName      bool
	}{
		"none": {},
		"by cidr": {
			asked:  isolation.NetworkSpec{Kind: isolation.NetworkEgress, Connections: 5, Rules: []string{"11.0.0.0/8 tcp"}},
			want:   isolation.NetworkSpec{Kind: isolation.NetworkEgress, Connections: 5, Rules: []string{"11.0.0.0/8 tcp"}},
			byName: false,
		},
		"strict, with nothing to look at": {
			asked:  isolation.NetworkSpec{Kind: isolation.NetworkEgress, Strict: true, Bandwidth: 1 << 20, Rules: []string{"11.0.0.0/8 tcp"}},
			want:   isolation.NetworkSpec{Kind: isolation.NetworkEgress, Bandwidth: 1 << 20, Rules: []string{"11.0.0.0/8 tcp"}},
			byName: false,
		},
		"by name": {
			asked:  isolation.NetworkSpec{Kind: isolation.NetworkEgress, Strict: true, Rules: []string{"www.example", "11.0.0.0/8 tcp"}},
			want:   isolation.NetworkSpec{Kind: isolation.NetworkEgress, Strict: true, NamesOnly: true, Rules: []string{"11.0.0.0/8 tcp"}},
			byName: true,
		},
		"names only": {
			asked:  isolation.NetworkSpec{Kind: isolation.NetworkEgress, NamesOnly: true},
			want:   isolation.NetworkSpec{Kind: isolation.NetworkEgress, NamesOnly: true},
			byName: true,
		},
		"that of the host": {asked: isolation.NetworkSpec{Kind: isolation.NetworkHost}, want: isolation.NetworkSpec{Kind: isolation.NetworkHost}},
	} {
		got, byName, err := split(&c.asked)
		if err != nil || (byName != nil) != c.byName || (got.Names != 0) != c.byName || byName != nil && byName.Strict != c.asked.Strict {
			t.Errorf("%s: got %+v, byName = %+v, err = %v, want no error and (byName != nil) == %v and (got.Names != 0) == c.byName and (byName == nil or byName.Strict == %v)",
				name, got, byName, err, c.byName, c.asked.Strict)
		}
		got.Names = 0
		if !got.Equal(&c.want) {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

func TestADenialNamesTheRuleThatWouldAllowIt(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		to, protocol string
		rules        []string
		name         egress.Name
		want         string
	}{
		{"11.22.33.44:443", "udp", []string{"www.example"}, "www.example", `network_rules with "www.example udp 443" would`},
		{"11.22.33.44:443", "udp", []string{"www.example", "strict"}, "www.example", `network_rules with "11.22.33.44/32 udp 443" would`},
		{"11.22.33.44:443", "tcp", []string{"www.example", "strict"}, "www.example", `network_rules with "www.example tcp 443" would`},
		{"11.22.33.44:22", "tcp", nil, "", `network_rules with "11.22.33.44/32 tcp 22" would`},
		{"11.22.33.44:22", "tcp", []string{"www.example"}, "www.example", `network_rules with "www.example tcp 22" would`},
		{"10.0.0.1:80", "udp", nil, "", `a profile whose network_rules have "10.0.0.1/32 udp 80" would`},
		{"127.0.0.2:80", "tcp", nil, "", "none would"},
		{"11.22.33.44:53", "udp", []string{"www.example"}, "", "none would"},
		{"11.22.33.44:853", "tcp", []string{"www.example"}, "www.example", "none would"},
		{"11.22.33.44:53", "udp", []string{"1.2.3.0/24 tcp"}, "", `network_rules with "11.22.33.44/32 udp 53" would`},
		{"11.22.33.44:0", "tcp", nil, "", "none would"},
	} {
		r := Refused{netip.MustParseAddrPort(c.to), c.protocol, 1}
		if got := r.Text(c.rules, c.name, slices.Contains(c.rules, "strict")); !strings.Contains(got, c.want) || !strings.Contains(got, string(c.name)) {
			t.Errorf("%s: got %q, want got containing %q and got containing string(c.name)", c.to, got, c.want)
		}
	}
}

func TestRefusedConnectionsAreReportedOnceAMinute(t *testing.T) {
	t.Parallel()
	var tally trafficTally
	now := time.Unix(1e9, 0)
	one := Refused{netip.MustParseAddrPort("11.22.33.44:22"), "tcp", 1}
	news := func(after time.Duration, list ...Refused) int {
		now = now.Add(after)
		return len(tally.fresh(list, now))
	}
	if n := news(0, one); n != 1 {
		t.Errorf("at first: n = %d, want 1", n)
	}
	one.Packets++
	if n := news(time.Second, one); n != 0 {
		t.Errorf("a second later: n = %d, want 0", n)
	}
	if n := news(time.Minute, one); n != 1 {
		t.Errorf("a minute later: n = %d, want 1", n)
	}
	if n := news(2*time.Minute, one); n != 0 {
		t.Errorf("without any traffic since: n = %d, want 0", n)
	}
	if n := news(2 * time.Minute); n != 0 || len(tally.reported) != 0 {
		t.Errorf("stored: n = %d, tally.reported = %v, want n == 0 and len(tally.reported) == 0", n, tally.reported)
	}
	if n := news(time.Second, one); n != 1 {
		t.Errorf("after the start of a new count: n = %d, want 1", n)
	}
	var many []Refused
	for i := range 100 {
		many = append(many, Refused{netip.MustParseAddrPort(fmt.Sprintf("11.22.34.%d:80", i)), "tcp", 1})
	}
	if n := news(time.Minute, many...); n != maxReported {
		t.Errorf("of many: n = %d, want maxReported", n)
	}
	if n := news(time.Second, many...); n != 0 {
		t.Errorf("of many, again: n = %d, want 0", n)
	}
	if n := news(time.Minute, many...); n != maxReported {
		t.Errorf("of many, a minute later: n = %d, want maxReported", n)
	}
}

// A box that reaches its connection cap is reported at most once a minute, and again only if it has reached the cap since.
func TestAReachedConnectionCapIsReportedOnceAMinute(t *testing.T) {
	t.Parallel()
	var tally trafficTally
	now := time.Unix(1e9, 0)
	for i, step := range []struct {
		after         time.Duration
		packets, want uint64
	}{{0, 0, 0}, {0, 3, 3}, {time.Second, 9, 0}, {time.Minute, 9, 6}, {2 * time.Minute, 9, 0}, {time.Second, 10, 1}} {
		now = now.Add(step.after)
		if got := tally.Crowded(step.packets, now); got != step.want {
			t.Errorf("step %d: %d, not %d", i, got, step.want)
		}
	}
	for by, c := range map[string]Crowded{
		"policy.ci.ceilings.network_connections of more than 5 would": {Packets: 2, Most: 5, By: "policy.ci.ceilings.network_connections", Profile: "p"},
		"network_connections = 5: more connections":                   {Packets: 2, Most: 5, Profile: "p"},
		"more network.connections would":                              {Packets: 2, Profile: "p"},
		"profiles.p or network.connections would":                     {Packets: 2, Most: 5, Profile: "p"},
	} {
		if text := c.Text(); !strings.Contains(text, by) {
			t.Errorf("%q is not in %q", by, text)
		}
	}
}
