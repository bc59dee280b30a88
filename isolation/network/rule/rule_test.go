// SPDX-License-Identifier: Apache-2.0

package rule

import (
	"errors"
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"
)

func TestMalformedRulesAreRefusedByName(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		cidr, protocol string
		ports          []string
		part           string // "": accepted
	}{
		{"1.2.3.0/24", "tcp", []string{"443"}, ""},
		{"1.2.3.4/32", "", nil, ""},
		{"0.0.0.0/0", "any", []string{"1-65535"}, ""},
		{"2606:4700::/32", "udp", []string{"443", "8000-8100"}, ""},
		{"169.254.169.254/32", "tcp", []string{"80"}, ""},
		{"", "tcp", nil, "cidr"},
		{"1.2.3.4", "tcp", nil, "cidr"},
		{"1.2.3.4/24", "tcp", nil, "cidr"},   // bits after the prefix
		{"1.2.3.0/33", "tcp", nil, "cidr"},   // there are not that many bits
		{"01.2.3.0/24", "tcp", nil, "cidr"},  // octal, to some programs
		{"0x1.2.3.0/24", "tcp", nil, "cidr"}, // hexadecimal
		{"16909060/32", "tcp", nil, "cidr"},  // one number
		{"1.2.3/24", "tcp", nil, "cidr"},
		{"1.2.3.0/024", "tcp", nil, "cidr"},
		{"1.2.3.0/24 ", "tcp", nil, "cidr"},
		{"1.2.3.0/24\x00", "tcp", nil, "cidr"},
		{"example.org", "tcp", nil, "cidr"},
		{"::ffff:1.2.3.0/120", "tcp", nil, "cidr"},
		{"::ffff:a9fe:a9fe/128", "tcp", nil, "cidr"},
		{"::a9fe:a9fe/128", "tcp", nil, "cidr"},
		{"fe80::1%eth0/128", "tcp", nil, "cidr"},
		{"fe80::/64", "tcp", nil, "cidr"},
		{"127.0.0.1/32", "tcp", nil, "cidr"},
		{"::1/128", "tcp", nil, "cidr"},
		{"224.0.0.251/32", "udp", nil, "cidr"},
		{"255.255.255.255/32", "udp", nil, "cidr"},
		{"ff02::1/128", "udp", nil, "cidr"},
		{"1.2.3.0/24", "icmp", nil, "protocol"},
		{"1.2.3.0/24", "TCP", nil, "protocol"},
		{"1.2.3.0/24", "tcp", []string{"0"}, "ports"},
		{"1.2.3.0/24", "tcp", []string{"65536"}, "ports"},
		{"1.2.3.0/24", "tcp", []string{"0443"}, "ports"},
		{"1.2.3.0/24", "tcp", []string{"+443"}, "ports"},
		{"1.2.3.0/24", "tcp", []string{"8100-8000"}, "ports"},
		{"1.2.3.0/24", "tcp", []string{"1-2-3"}, "ports"},
		{"1.2.3.0/24", "tcp", []string{""}, "ports"},
		{"1.2.3.0/24", "tcp", []string{"https"}, "ports"},
		{"1.2.3.0/24", "tcp", slices.Repeat([]string{"1"}, MaxPorts+1), "ports"},
	} {
		r, err := New(c.cidr, c.protocol, c.ports)
		refused, _ := errors.AsType[*Refusal](err)
		switch {
		case (refused != nil) != (c.part != ""), refused != nil && refused.Part != c.part, err != nil && refused == nil:
			t.Errorf("%q %q %q: %v", c.cidr, c.protocol, c.ports, err)
		case err == nil:
			if again, err := Parse(r.String()); err != nil || !reflect.DeepEqual(r, again) {
				t.Errorf("%q is read as %v, %v", r, again, err)
			}
		}
	}
}

func TestAWiderNetworkRuleCoversANarrowerOne(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		rule, of string
		want     bool
	}{
		{"10.1.0.0/16 tcp 443", "10.0.0.0/8 any", true},
		{"10.1.0.0/16 tcp", "10.0.0.0/8 tcp 443", false},
		{"10.1.0.0/16 tcp 80-90", "10.0.0.0/8 tcp 22 80-100", true},
		{"10.1.0.0/16 tcp 80-101", "10.0.0.0/8 tcp 22 80-100", false},
		{"10.1.0.0/16 udp", "10.0.0.0/8 tcp", false},
		{"10.1.0.0/16 any", "10.0.0.0/8 tcp", false},
		{"10.0.0.0/8 tcp", "10.1.0.0/16 tcp", false},
		{"2600::/16 tcp", "0.0.0.0/0 tcp", false},
	} {
		r, err := Parse(c.rule)
		o, oerr := Parse(c.of)
		if err != nil || oerr != nil || r.Within(o) != c.want {
			t.Errorf("%s within %s: r.Within(o) = %v, err = %v, oerr = %v, want no error and no error and r.Within(o) == %v",
				c.rule, c.of, r.Within(o), err, oerr, c.want)
		}
	}
}

func TestPrivateAddressRangesAreBlockedByDefault(t *testing.T) {
	t.Parallel()
	blocked := func(a string) bool {
		addr := netip.MustParseAddr(a)
		return slices.ContainsFunc(Blocked(), func(p netip.Prefix) bool { return p.Contains(addr) })
	}
	for _, a := range []string{
		"0.0.0.0", "10.1.2.3", "100.64.0.1", "127.0.0.1", "168.63.129.16", "169.254.169.254", "172.31.255.255", "192.168.1.1", "224.0.0.1", "255.255.255.255",
		"::", "::1", "::7f00:1", "fd00:ec2::254", "fe80::1", "ff02::1", "64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::1", "2001:0:1::1",
	} {
		if !blocked(a) {
			t.Errorf("%s is not blocked", a)
		}
	}
	for _, a := range []string{"1.1.1.1", "8.8.8.8", "100.63.255.255", "168.63.129.15", "168.63.129.17", "172.32.0.0", "223.255.255.255", "2606:4700::1111", "2a00:1450::1"} {
		if blocked(a) {
			t.Errorf("%s is blocked", a)
		}
	}
	list := Blocked()
	for i, p := range list {
		if p != p.Masked() {
			t.Errorf("%v has bits that do not count", p)
		}
		for _, q := range list[:i] {
			if p.Overlaps(q) {
				t.Errorf("%v and %v overlap: the kernel takes neither", p, q)
			}
		}
	}
	for text, want := range map[string]bool{"0.0.0.0/0 tcp": false, "::/0 tcp": false, "8.8.8.8/32 tcp": false, "10.0.0.0/8 tcp": true, "169.254.169.254/32 tcp": true, "fd00::/8 tcp": true} {
		if r, err := Parse(text); err != nil || r.Named() != want {
			t.Errorf("%s: named %v, %v", text, r.Named(), err)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"1.2.3.0/24 tcp 443 8000-8100", "::/0 any", "::ffff:1.2.3.4/128 tcp", "010.0.0.0/8 udp", " ", "1.1.1.1/32  "} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		r, err := Parse(text)
		if err != nil {
			return
		}
		if r.String() != text {
			t.Errorf("%q is read as %q", text, r)
		}
		if slices.ContainsFunc(never(), func(p netip.Prefix) bool { return p.Contains(r.To.Addr()) && p.Bits() <= r.To.Bits() }) {
			t.Errorf("the string %q names a destination that no rule can", text)
		}
	})
}

func TestTheNetworkConfigurationOfTheKeeperIsParsed(t *testing.T) {
	t.Parallel()
	words := []string{"ipv4=10.77.0.0/24", "shared=near", "shared=other", "connections=7", "bandwidth=65536", "most-connections=9"}
	c, err := ParseConfig("/run/x", words)
	if err != nil || c.Connections != 7 || c.Most.Connections != 9 || c.Bandwidth != 65536 || !slices.Equal(c.Words(), words) {
		t.Errorf("c = %+v, err = %v, want no error and c.Connections == 7 and c.Most.Connections == 9 and c.Bandwidth == 65536 and c.Words() == %v",
			c, err, words)
	}
	for _, bad := range []string{"connections=0", "connections=-1", "connections=1048577", "connections=", "bandwidth=1", "bandwidth=1e9", "bandwidth=1099511627777", "other=1", "most-ipv4=1"} {
		if _, err := ParseConfig("/run/x", []string{bad}); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}

func TestOnlyPublicAddressesWithALifetimeArePinned(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		to, protocol string
		life         time.Duration
		fine         bool
	}{
		{"11.22.33.44:443", TCP, time.Second, true},
		{"[2606:4700::1111]:53", UDP, LongestPin, true},
		{"11.22.33.44:443", "icmp", time.Second, false},
		{"11.22.33.44:443", Any, time.Second, false},
		{"11.22.33.44:0", TCP, time.Second, false},
		{"11.22.33.44:443", TCP, 0, false},
		{"11.22.33.44:443", TCP, LongestPin + time.Second, false},
		{"169.254.169.254:80", TCP, time.Second, false},
		{"10.99.0.1:80", TCP, time.Second, false},
		{"[::ffff:11.22.33.44]:80", TCP, time.Second, false},
		{"127.0.0.1:80", TCP, time.Second, false},
	} {
		to := netip.MustParseAddrPort(c.to)
		p, err := NewPin(to, c.protocol, c.life)
		if want := (Pin{to.Addr(), c.protocol, to.Port(), c.life}); (err == nil) != c.fine || c.fine && p != want {
			t.Errorf("%s %s for %v: p = %+v, err = %v, want (err == nil) == %v and (c.fine == false or p == %+v)",
				c.to, c.protocol, c.life, p, err, c.fine, want)
		}
	}
	if _, err := NewPin(netip.AddrPort{}, TCP, time.Second); err == nil {
		t.Error("no error for an allow-set entry without an address")
	}
}

func TestCapsHaveBounds(t *testing.T) {
	t.Parallel()
	for c, fine := range map[Caps]bool{
		{}: true, {Connections: MaxConnections, Bandwidth: MaxBandwidth}: true, {Bandwidth: LeastBandwidth}: true,
		{Connections: -1}: false, {Connections: MaxConnections + 1}: false, {Bandwidth: LeastBandwidth - 1}: false, {Bandwidth: MaxBandwidth + 1}: false,
	} {
		if err := c.Check(); (err == nil) != fine {
			t.Errorf("%+v: err = %v, want (err == nil) == fine", c, err)
		}
	}
}
