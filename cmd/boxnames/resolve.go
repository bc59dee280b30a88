// SPDX-License-Identifier: Apache-2.0

// The only DNS resolver of a box. It answers queries for names that the box may resolve, on
// sockets that boxd has opened, and has every address allowed for the box before it sends it to
// the box.
//
// It parses the question of a query and the addresses of an answer, and forwards neither message:
// both the query to the host's resolvers and the answer to the box are built here. So a name that
// is not allowed leaves the host in no form, and nothing but addresses from an upstream answer
// reaches a box.

package main

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/boxd-dev/boxd/isolation/egress"
)

// resolverConfig applies to all boxes. Zero values are replaced by defaults.
type resolverConfig struct {
	Upstreams func() []netip.AddrPort // upstream recursive resolvers, in the order they are tried; default: none
	Attempt   time.Duration           // timeout of one question to one of them; default 1.5 s
	Total     time.Duration           // timeout of a whole query; default 4.5 s, less than programs wait
	MinTTL    time.Duration           // shortest time an address is allowed, whatever its TTL; default 30 s
	MaxTTL    time.Duration           // longest such time; default 30 min
	Grace     time.Duration           // how much longer an address is allowed than the TTL the box was told; default 10 s
	InFlight  int                     // queries of all boxes at a time; default 2048, so that a few boxes cannot use them up
	PerBox    int                     // queries of one box at a time; default 32
	Rate      int                     // queries of one box per second, with bursts of ten times as many; default 50
	Idle      time.Duration           // idle timeout of a TCP connection of a box; default 10 s
}

// pinRequest is the addresses a box is about to get for a name.
type pinRequest struct {
	Name      egress.Name // as in the query; aliases on the way are not listed
	TTL       time.Duration
	Addresses []netip.Addr // public ones, at least one
}

// resolverBox is a box whose queries are answered.
type resolverBox struct {
	// Rules returns the rules in force when a query comes.
	Rules func() *egress.Rules
	// V6 says that the box has IPv6 addresses. Without it answers contain none.
	V6 bool
	// Pin allows the box to connect to addresses. If it fails the box does not get them.
	Pin func(context.Context, pinRequest) error
	// Denied is called for what was refused, for a name at most once a minute. It must not block.
	Denied func(denial)
}

// resolver queries the upstream resolvers for all boxes.
type resolver struct {
	cfg  resolverConfig
	busy chan struct{}
}

// newResolver returns a resolver that sends nothing until Serve is called.
func newResolver(cfg resolverConfig) *resolver {
	duration := func(d *time.Duration, def time.Duration) {
		if *d <= 0 {
			*d = def
		}
	}
	number := func(n *int, def int) {
		if *n <= 0 {
			*n = def
		}
	}
	duration(&cfg.Attempt, 1500*time.Millisecond)
	duration(&cfg.Total, 4500*time.Millisecond)
	duration(&cfg.MinTTL, 30*time.Second)
	duration(&cfg.MaxTTL, 30*time.Minute)
	duration(&cfg.Grace, 10*time.Second)
	duration(&cfg.Idle, 10*time.Second)
	if cfg.Upstreams == nil {
		cfg.Upstreams = func() []netip.AddrPort { return nil }
	}
	number(&cfg.InFlight, 2048)
	number(&cfg.PerBox, 32)
	number(&cfg.Rate, 50)
	return &resolver{cfg: cfg, busy: make(chan struct{}, cfg.InFlight)}
}

// dnsServer serves one resolverBox.
type dnsServer struct {
	*resolver
	box    *resolverBox
	busy   chan struct{} // bounds its queries
	conns  chan struct{} // bounds its TCP connections
	pace   pace
	denied tally
	wg     sync.WaitGroup
}

// maxAddresses bounds one answer. Further ones are left out: no program needs them.
const maxAddresses = 16

// answer returns the answer to a query, nil if it is no query.
func (s *dnsServer) answer(ctx context.Context, query []byte, overUDP bool) []byte {
	q, ok := readQuery(query)
	if !ok {
		return nil
	}
	if q.code == dnsmessage.RCodeSuccess {
		s.resolve(ctx, q)
	}
	return q.reply(overUDP)
}

// find resolves a name as if the box had asked, to IPv6 addresses if ipv6 is set and otherwise to
// IPv4 addresses, and pins what it finds. It returns false if no resolver has answered.
func (r *resolver) find(ctx context.Context, box *resolverBox, name egress.Name, ipv6 bool) bool {
	q := &query{q: dnsmessage.Question{Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}}
	if ipv6 {
		q.q.Type = dnsmessage.TypeAAAA
	}
	var err error
	if q.q.Name, err = dnsmessage.NewName(string(name) + "."); err != nil {
		return false
	}
	select {
	case r.busy <- struct{}{}:
	default:
		return false
	}
	defer func() { <-r.busy }()
	(&dnsServer{resolver: r, box: box}).resolve(ctx, q)
	return q.code != dnsmessage.RCodeServerFailure
}

// resolve fills in code, addresses and TTL for a well-formed question.
func (s *dnsServer) resolve(ctx context.Context, q *query) {
	name, ok := egress.FromQuery(q.q.Name.String())
	rules := s.box.Rules()
	if !ok || len(rules.Match(name)) == 0 {
		q.code = dnsmessage.RCodeNameError
		if !strings.HasSuffix(string(name), ".arpa") { // reverse lookups are made by habit; there is nothing to allow
			s.refuse(notAllowed(name, q.q.Name.String()))
		}
		return
	}
	if q.q.Type != dnsmessage.TypeA && (q.q.Type != dnsmessage.TypeAAAA || !s.box.V6) {
		return // the name exists and has no records of this type
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Total)
	defer cancel()
	found, err := s.query(ctx, name, q.q.Type)
	if err != nil {
		q.code = dnsmessage.RCodeServerFailure
		return
	}
	if q.code = found.code; q.code != dnsmessage.RCodeSuccess {
		return
	}
	pin := pinRequest{Name: name, TTL: min(max(found.ttl, s.cfg.MinTTL), s.cfg.MaxTTL)}
	q.ttl = pin.TTL
	pin.TTL += s.cfg.Grace
	var refused []netip.Addr
	for i, ip := range found.addresses {
		if slices.Contains(found.addresses[:i], ip) {
			continue
		}
		switch {
		case !rules.Permits(ip):
			refused = append(refused, ip)
		case len(q.addresses) < maxAddresses:
			q.addresses = append(q.addresses, ip)
			if egress.Public(ip) { // a rule by CIDR may allow the others
				pin.Addresses = append(pin.Addresses, ip)
			}
		}
	}
	if len(refused) > 0 {
		s.refuse(badAddress(name, refused))
	}
	if len(pin.Addresses) == 0 {
		return
	}
	if err := s.box.Pin(ctx, pin); err != nil {
		q.code, q.addresses = dnsmessage.RCodeServerFailure, nil
	}
}

func (s *dnsServer) refuse(d denial) {
	if s.denied.isNew(d.Asked+" "+string(d.Reason), time.Now()) {
		s.box.Denied(d)
	}
}
