// SPDX-License-Identifier: Apache-2.0

package egress_test

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation/egress"
)

func TestDomainNamesAreNormalized(t *testing.T) {
	t.Parallel()
	label := strings.Repeat("a", 63)
	long := strings.Join([]string{label, label, label, strings.Repeat("b", 61)}, ".") // 253 octets
	for in, want := range map[string]string{
		"pypi.org": "pypi.org", "PyPI.Org": "pypi.org", "pypi.org.": "pypi.org", "localhost": "localhost",
		"a-b.example": "a-b.example", "_srv.example": "_srv.example", "4chan.org": "4chan.org", "1.2.3.4.example": "1.2.3.4.example",
		"bücher.example": "xn--bcher-kva.example", "BÜCHER.example": "xn--bcher-kva.example", "xn--bcher-kva.example": "xn--bcher-kva.example",
		"XN--bcher-KVA.example": "xn--bcher-kva.example", "straße.example": "xn--strae-oqa.example", "例え.テスト": "xn--r8jz45g.xn--zckzah",
		label + ".org": label + ".org", long: long, long + ".": long, "0xg.example": "0xg.example", "a.0xg": "a.0xg",
	} {
		if got, err := egress.ParseName("f", in); err != nil || string(got) != want {
			t.Errorf("%q: got %q, err = %v, want no error and got == want", in, got, err)
		}
	}
	for _, in := range []string{
		"", ".", "..", "a..b", ".a", "a.b..", "a b", " a", "a\x00.org", "pypi.org\x00.evil.example", "a/b", "http://a.org", "a.org:443", "a@b", "-a.org", "a-.org",
		"*", "a.*.org", "a,b", "a\n", "é\x00.org", label + "a.org", long + "a", strings.Repeat("a.", 130) + "org",
		"127.0.0.1", "127.1", "2130706433", "0x7f000001", "0177.0.0.1", "0x7f.1", "a.0x", "1.2.3.4.", "a.1", "::1", "[::1]", "1.2.3.0x4",
		"ｅxample.org", "example。org", "exa\u00admple.org", "pypi\u200b.org", "xn--a.example", "xn--", "xn--zz--zz.example", "\xff.org", "①.org", "ﬁ.org",
	} {
		got, err := egress.ParseName("rules[0].name", in)
		f, ok := errors.AsType[*fault.Error](err)
		if !ok || f.Field != "rules[0].name" || f.Allowed == "" || fault.KindOf(err) != fault.Invalid {
			t.Errorf(`%q: got %q, err = %v, want ok == true and f.Field == "rules[0].name" and f.Allowed != "" and a fault.Invalid error`,
				in, got, err)
		}
	}
}

func TestNamesInDNSQueriesAreValidated(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{"PyPi.oRg.": "pypi.org", "a_b.c.": "a_b.c", "xn--whatever.org.": "xn--whatever.org"} {
		if got, ok := egress.FromQuery(in); !ok || string(got) != want {
			t.Errorf("%q: got %q, want ok == true and got == want", in, got)
		}
	}
	for _, in := range []string{"", ".", "a", "a..", "a b.org.", "a\x00.org.", "b\xfccher.example.", "1.2.3.4.", "*.org.", "0x7f.1.", "a..b."} {
		if got, ok := egress.FromQuery(in); ok {
			t.Errorf("%q is %q, want ok == false", in, got)
		}
	}
}

func compile(t *testing.T, specs ...egress.Spec) *egress.Rules {
	t.Helper()
	r, err := egress.CompileRules("rules", specs)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestWhichNamesARuleCovers(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		pattern string
		yes, no []string
	}{
		{"pypi.org", []string{"pypi.org"}, []string{"www.pypi.org", "pypi.org.evil.example", "xpypi.org", "org", "ypi.org"}},
		{"*.example.org", []string{"a.example.org", "a.b.example.org", "_x.example.org"}, []string{"example.org", "aexample.org", "example.org.evil", "org"}},
		{"*.Bücher.example", []string{"a.xn--bcher-kva.example"}, []string{"xn--bcher-kva.example"}},
		{"*", []string{"pypi.org", "org", "metadata.google.internal"}, []string{"dns.google", "mozilla.cloudflare-dns.com", "use-application-dns.net", "_dns.resolver.arpa", "_dns.example.org", "dns9.quad9.net"}},
		{"*.google", []string{"about.google"}, []string{"dns.google"}},
		{"*.dns.google", nil, []string{"a.dns.google"}},
		{"dns.google", []string{"dns.google"}, nil},
	} {
		r := compile(t, egress.Spec{Name: tc.pattern})
		for _, n := range tc.yes {
			if len(r.Match(egress.Name(n))) != 1 {
				t.Errorf("%s does not cover %s", tc.pattern, n)
			}
		}
		for _, n := range tc.no {
			if len(r.Match(egress.Name(n))) != 0 {
				t.Errorf("%s covers %s", tc.pattern, n)
			}
		}
	}
}

func TestNoRulesAllowNothing(t *testing.T) {
	t.Parallel()
	var none *egress.Rules
	if none.Match("pypi.org") != nil || none.All() != nil || compile(t).Match("pypi.org") != nil {
		t.Error("a name is allowed without any rule")
	}
}

func TestRulesAreReadStrictly(t *testing.T) {
	t.Parallel()
	r := compile(t, egress.Spec{Name: "*.a.org", Ports: []string{"443", "8000-8003"}, Protocol: "any"}, egress.Spec{Name: "x.a.org"}, egress.Spec{Name: "*", Protocol: "udp", Ports: []string{"443"}})
	m := r.Match("x.a.org")
	if len(m) != 3 || m[0].Ports[1] != (egress.Ports{First: 8000, Last: 8003}) || m[0].Ports[0].String() != "443" || m[0].Ports[1].String() != "8000-8003" || m[0].Protocol != egress.Both || m[1].Protocol != egress.TCP {
		t.Errorf("m = %+v", m)
	}
	var opens []string
	for _, o := range egress.Openings(m) {
		opens = append(opens, fmt.Sprint(o.Protocol, o.Port))
	}
	slices.Sort(opens)
	if got, want := strings.Join(opens, " "), "tcp443 tcp80 tcp8000 tcp8001 tcp8002 tcp8003 udp443 udp8000 udp8001 udp8002 udp8003"; got != want {
		t.Errorf("%s, not %s", got, want)
	}
	for i, want := range []string{"*.a.org", "x.a.org", "*"} {
		if got := r.All()[i].Pattern(); got != want {
			t.Errorf("%q, not %q", got, want)
		}
	}
	for field, specs := range map[string][]egress.Spec{
		"rules[1].name":     {{Name: "a.org"}, {Name: "a*.org"}},
		"rules[0].name":     {{Name: "*.*.org"}},
		"rules[0].protocol": {{Name: "a.org", Protocol: "icmp"}},
		"rules[0].ports":    {{Name: "a.org", Ports: []string{"443", "0"}}},
		"rules":             make([]egress.Spec, egress.MaxRules+1),
	} {
		_, err := egress.CompileRules("rules", specs)
		if f, ok := errors.AsType[*fault.Error](err); !ok || f.Field != field || f.Allowed == "" {
			t.Errorf(`%s: err = %v, want ok == true and f.Field == field and f.Allowed != ""`, field, err)
		}
	}
	for _, name := range []string{"*.", "*..", "**", "*a.org", "a.*", "*.1.2.3.4", "*.org.*", ""} {
		if _, err := egress.CompileRules("rules", []egress.Spec{{Name: name}}); err == nil {
			t.Errorf("%q is a name", name)
		}
	}
	for _, p := range []string{"", "-", "0", "65536", "+1", "01", "1-", "-1", "2-1", "1-2-3", "http", "1 ", "1,2", "0-1", "53", "853", "50-60", "8000-8016", "1-65535"} {
		if _, err := egress.CompileRules("rules", []egress.Spec{{Name: "a.org", Ports: []string{p}}}); err == nil {
			t.Errorf("%q are ports", p)
		}
	}
}

func TestWhichAddressesArePublic(t *testing.T) {
	t.Parallel()
	for _, a := range []string{"1.1.1.1", "8.8.8.8", "93.184.216.34", "172.15.0.1", "172.32.0.1", "100.63.0.1", "100.128.0.1", "2606:4700::1", "2a00:1450::1", "223.255.255.255"} {
		if !egress.Public(netip.MustParseAddr(a)) {
			t.Errorf("%s is not public", a)
		}
	}
	for _, a := range []string{
		"0.0.0.0", "0.1.2.3", "10.0.0.1", "100.64.0.1", "100.127.255.255", "127.0.0.1", "127.255.255.255", "169.254.169.254", "172.16.0.1", "172.31.255.255",
		"192.168.0.1", "198.18.0.1", "192.0.2.1", "224.0.0.1", "239.1.1.1", "240.0.0.1", "255.255.255.255", "168.63.129.16", "192.0.0.192",
		"::", "::1", "fe80::1", "fe80::1%eth0", "fc00::1", "fd00:ec2::254", "ff02::1", "fec0::1", "::ffff:8.8.8.8", "::ffff:127.0.0.1", "::127.0.0.1", "::8.8.8.8",
		"2002:7f00:1::", "2002:0808:0808::1", "64:ff9b::127.0.0.1", "64:ff9b::8.8.8.8", "64:ff9b::169.254.169.254", "64:ff9b:1::8.8.8.8", "2001:0:1::", "2001:db8::1", "100::1", "4000::1",
	} {
		if egress.Public(netip.MustParseAddr(a)) {
			t.Errorf("%s is public", a)
		}
	}
	if egress.Public(netip.Addr{}) {
		t.Error("the zero address counts as public")
	}
}

func TestWhichAddressesRulesPermit(t *testing.T) {
	t.Parallel()
	var none *egress.Rules
	any := compile(t)
	some := none.Reaching([]netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("fd00:1::/64")})
	for a, want := range map[string][2]bool{
		"1.1.1.1": {true, true}, "10.1.2.3": {false, true}, "10.2.0.1": {false, false}, "::ffff:10.1.2.3": {false, false}, "fd00:1::1": {false, true}, "fd00:2::1": {false, false},
	} {
		addr := netip.MustParseAddr(a)
		if any.Permits(addr) != want[0] || some.Permits(addr) != want[1] {
			t.Errorf("%s: any.Permits(addr) = %t, some.Permits(addr) = %t, want any.Permits(addr) == want[0] and some.Permits(addr) == want[1]",
				a, any.Permits(addr), some.Permits(addr))
		}
	}
	if r := compile(t, egress.Spec{Name: "a.org"}).Reaching(nil); len(r.Match("a.org")) != 1 {
		t.Error("a rule by name is lost by Reaching")
	}
}

// FuzzParse checks that an accepted name is in canonical form, that it is found in a query, and
// that parsing it again changes nothing.
func FuzzParse(f *testing.F) {
	for _, s := range []string{"pypi.org", "Bücher.example.", "xn--bcher-kva.example", "127.0.0.1", "a\x00b", "*.a", "例え.テスト", "ｅ.org", "0x7f.1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		n, err := egress.ParseName("f", text)
		if err != nil {
			return
		}
		again, err := egress.ParseName("f", string(n))
		if err != nil || again != n {
			t.Fatalf("%q became %q, and that %q, %v", text, n, again, err)
		}
		if q, ok := egress.FromQuery(string(n) + "."); !ok || q != n {
			t.Fatalf("%q is not found as %q", n, q)
		}
		if len(n) > 253 || strings.ContainsAny(string(n), "\x00 *:/") || strings.ToLower(string(n)) != string(n) {
			t.Fatalf(`n = %q, want len(n) <= 253 and not strings.ContainsAny(string(n), "\x00 *:/") and strings.ToLower(string(n)) == string(n)`,
				n)
		}
		if _, err := netip.ParseAddr(string(n)); err == nil {
			t.Fatalf("%q is an address", n)
		}
	})
}

// FuzzCompile checks that a rule turns back into the text it was parsed from.
func FuzzCompile(f *testing.F) {
	f.Add("*.a.org", "443-444", "udp")
	f.Fuzz(func(t *testing.T, name, ports, protocol string) {
		r, err := egress.CompileRules("f", []egress.Spec{{Name: name, Ports: []string{ports}, Protocol: protocol}})
		if err != nil {
			return
		}
		spec := r.All()[0].Spec()
		again, err := egress.CompileRules("f", []egress.Spec{spec})
		if err != nil {
			t.Fatal(err)
		}
		if got := again.All()[0].Spec(); got.Name != spec.Name || !slices.Equal(got.Ports, spec.Ports) || got.Protocol != spec.Protocol {
			t.Fatalf("%+v, not %+v", got, spec)
		}
		if n := len(egress.Openings(r.All())); n < 1 || n > 32 {
			t.Fatalf("%d ports", n)
		}
	})
}

func TestRulesAreWrittenAsText(t *testing.T) {
	t.Parallel()
	r, err := egress.ReadRules("network_rules", []string{"PyPI.org", "*.Bücher.example  any 443 8000-8003", "* udp 443"})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, rule := range r.All() {
		got = append(got, rule.String())
	}
	want := []string{"pypi.org tcp 80 443", "*.xn--bcher-kva.example any 443 8000-8003", "* udp 443"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	again, err := egress.ReadRules("f", got)
	if err != nil || again.Digest() != r.Digest() || r.Digest() == 0 {
		t.Errorf("err = %v, again.Digest() = %d and r.Digest() = %d, want no error and again.Digest() == r.Digest() and r.Digest() != 0",
			err, again.Digest(), r.Digest())
	}
	for _, text := range []string{"", " ", "a b", "a.org icmp", "a.org tcp 53", "a.org tcp x", "10.0.0.1", "1.1"} {
		_, err := egress.ReadRules("network_rules", []string{"a.org", text})
		if f, ok := errors.AsType[*fault.Error](err); !ok || f.Field != "network_rules[1]" || f.Allowed == "" {
			t.Errorf(`%q: err = %v, want ok == true and f.Field == "network_rules[1]" and f.Allowed != ""`, text, err)
		}
	}
	for text, want := range map[string]bool{"pypi.org": true, "*": true, "10.0.0.0/8": false, "::/0 tcp": false, "a.org tcp 1/2": true, "10.0.0.1": true} {
		if egress.Written(text) != want {
			t.Errorf("%q: !want = %t, want egress.Written(text) == want", text, !want)
		}
	}
}

func TestARuleWithinAnother(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		r, o string
		want bool
	}{
		{"pypi.org", "pypi.org", true},
		{"a.pypi.org", "*.pypi.org", true},
		{"pypi.org", "*.pypi.org", false},
		{"*.pypi.org", "pypi.org", false},
		{"*.a.org", "*.org", true},
		{"*.org", "*.a.org", false},
		{"*", "*", true},
		{"*", "*.org", false},
		{"*.org", "*", true},
		{"pypi.org", "*", true},
		{"*.xa.org", "*.a.org", false},
		{"dns.google", "*", false},
		{"dns.google", "dns.google", true},
		{"a.org tcp 443", "a.org", true},
		{"a.org tcp 8443", "a.org", false},
		{"a.org udp 443", "a.org", false},
		{"a.org", "a.org any 80 443", true},
		{"a.org any", "a.org", false},
	} {
		r, err := egress.ReadRules("f", []string{tc.r, tc.o})
		if err != nil {
			t.Fatal(err)
		}
		if l := r.All(); l[0].Within(&l[1]) != tc.want {
			t.Errorf("%q within %q: !tc.want = %t, want l[0].Within(&l[1]) == tc.want", tc.r, tc.o, !tc.want)
		}
	}
}
