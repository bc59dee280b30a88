// SPDX-License-Identifier: Apache-2.0

package egress_test

import (
	"net/netip"
	"reflect"
	"testing"

	"github.com/boxd-dev/boxd/isolation/egress"
)

func TestEgressMessagesRoundTrip(t *testing.T) {
	t.Parallel()
	for _, m := range []egress.Request{
		{Add: &egress.Box{Key: "k", V6: true, Rules: []egress.Spec{{Name: "*.org", Protocol: "udp", Ports: []string{"1-2"}}}, Reach: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}},
		{Change: &egress.Box{Key: "k", Rules: []egress.Spec{}}},
		{Remove: "k"},
		{Pinned: &egress.Pinned{ID: 7, Error: "no"}},
	} {
		b, err := egress.Encode(&m)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := egress.Decode[egress.Request](b); err != nil || !reflect.DeepEqual(*got, m) {
			t.Errorf("%s: got %+v, err = %v, want no error and *got == m", b, got, err)
		}
	}
	for _, text := range []string{"", "{", `{"add":{"keys":"k"}}`, `{"remove":"k"}{}`, `{"remove":"k"} x`, `[]`, `{"remove":1}`} {
		if m, err := egress.Decode[egress.Request]([]byte(text)); err == nil {
			t.Errorf("%s is %+v, want an error", text, m)
		}
	}
}

func TestEgressRulesOfABoxAreCompiled(t *testing.T) {
	t.Parallel()
	b := egress.Box{Rules: []egress.Spec{{Name: "a.org"}}, Reach: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}
	r, err := b.Compile()
	if err != nil || len(r.Match("a.org")) != 1 || !r.Permits(netip.MustParseAddr("10.1.1.1")) {
		t.Errorf(`r = %+v, err = %v, want no error and len(r.Match("a.org")) == 1 and r.Permits(netip.MustParseAddr("10.1.1.1"))`,
			r, err)
	}
	b.Rules[0].Name = "a b"
	if _, err := b.Compile(); err == nil {
		t.Error("no error for an invalid name")
	}
}

// FuzzReport checks that nothing the program sends makes boxd panic.
func FuzzReport(f *testing.F) {
	f.Add([]byte(`{"pin":{"id":1,"key":"k","name":"a.org","seconds":60,"addresses":["1.1.1.1"]}}`))
	f.Add([]byte(`{"denied":{"key":"k","addresses":["::ffff:1.1.1.1","fe80::1%0"]}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := egress.Decode[egress.Report](b)
		if err != nil {
			return
		}
		if _, err := egress.Encode(m); err != nil {
			t.Fatal(err)
		}
	})
}
