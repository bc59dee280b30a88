// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"testing"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/boxd-dev/boxd/isolation/egress"
)

// FuzzQuery checks that nothing a box sends makes the resolver panic, that what goes back is an
// answer that fits, and that nothing is sent upstream and nothing pinned when nothing is allowed.
func FuzzQuery(f *testing.F) {
	q := dnsmessage.Message{Header: dnsmessage.Header{ID: 1}, Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName("a.org."), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}}}
	good, err := q.Pack()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add(good[:12])
	f.Add(append(good, 0, 0, 41, 255, 255, 0, 0, 0, 0, 0, 0))
	rules, err := egress.CompileRules("rules", []egress.Spec{{Name: "b.example"}})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, msg []byte) {
		s := &dnsServer{resolver: newResolver(resolverConfig{}), box: &resolverBox{
			Rules: func() *egress.Rules { return rules },
			Pin: func(context.Context, pinRequest) error {
				t.Error("a query without an answer added an address to the allowed ones")
				return nil
			},
			Denied: func(denial) {},
		}}
		back := s.answer(t.Context(), msg, true)
		if back == nil {
			return
		}
		var m dnsmessage.Message
		if err := m.Unpack(back); err != nil || !m.Response || len(m.Answers) > 0 || len(back) > maxUDP {
			t.Fatalf("%x: err = %v, m = %+v, want no error and m.Response == true and len(m.Answers) == 0 and len(back) <= maxUDP",
				back, err, m)
		}
	})
}

// FuzzAnswer checks that nothing an upstream resolver sends makes ours panic, and that every
// address of an answer can be given to a box.
func FuzzAnswer(f *testing.F) {
	q, err := newQuestion("a.org", dnsmessage.TypeA)
	if err != nil {
		f.Fatal(err)
	}
	q.id = 7
	h := dnsmessage.ResourceHeader{Name: q.q.Name, Class: dnsmessage.ClassINET, TTL: 60}
	m := dnsmessage.Message{Header: dnsmessage.Header{ID: 7, Response: true}, Questions: []dnsmessage.Question{q.q}, Answers: []dnsmessage.Resource{
		{Header: h, Body: &dnsmessage.CNAMEResource{CNAME: dnsmessage.MustNewName("b.org.")}},
		{Header: dnsmessage.ResourceHeader{Name: dnsmessage.MustNewName("b.org."), Class: dnsmessage.ClassINET, TTL: 60}, Body: &dnsmessage.AResource{A: [4]byte{1, 1, 1, 1}}},
	}}
	good, err := m.Pack()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add(good[:len(good)-3])
	f.Fuzz(func(t *testing.T, msg []byte) {
		if !q.isAnsweredBy(msg) || truncated(msg) {
			return
		}
		found, err := q.read(msg)
		if err != nil {
			return
		}
		if found.ttl < 0 || len(found.addresses) > maxRecords {
			t.Fatalf("found = %+v, want found.ttl >= 0 and len(found.addresses) <= maxRecords", found)
		}
		out := &query{q: q.q, parsed: true, addresses: found.addresses[:min(len(found.addresses), maxAddresses)], ttl: found.ttl}
		if len(out.reply(true)) > maxUDP || out.reply(false) == nil {
			t.Fatal("no reply over TCP, or one over UDP that is too long")
		}
	})
}
