// SPDX-License-Identifier: Apache-2.0

// The only DNS resolver of a box. It answers queries for names that the box may resolve, on sockets that boxd has
// opened, and has every address allowed for the box before it tells the box.
//
// It parses the question of a query and the addresses of an answer, and passes on neither: the query that goes to
// the host's resolvers and the answer that goes to the box are made here. So a name that is not allowed leaves the
// host in no form, and nothing but addresses of a stranger's answer reaches a box.

package proxy

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

// ResolverConfig is what holds for all boxes. Zero values are replaced by defaults.
type ResolverConfig struct {
	Upstreams func() []netip.AddrPort // recursive resolvers, in the order they are asked; default: none
	Attempt   time.Duration           // for one question to one of them; default 1.5 s
	Total     time.Duration           // for all of a query; default 4.5 s, less than programs wait
	MinTTL    time.Duration           // no pin is shorter, whatever the answer says; default 30 s
	MaxTTL    time.Duration           // nor longer; default 30 min
	Grace     time.Duration           // for how long a pin outlives what the box was told; default 10 s
	InFlight  int                     // queries of all boxes at a time; default 2048, so that no few boxes can have them all
	PerBox    int                     // queries of one box at a time; default 32
	Rate      int                     // queries of one box per second, ten times as many at once; default 50
	Idle      time.Duration           // for how long a connection of a box may be silent; default 10 s
}

// Pin is what a box is about to be told.
type Pin struct {
	Name      egress.Name // as it was asked; names that it led to are not named
	TTL       time.Duration
	Addresses []netip.Addr // public ones, at least one
}

// ResolverBox is whom questions come from.
type ResolverBox struct {
	// Rules are those that hold when a question comes.
	Rules func() *egress.Rules
	// V6 says that the box has addresses of IPv6. Without it there are none in answers.
	V6 bool
	// Pin makes addresses reachable for the box. The box is told nothing of them if it fails.
	Pin func(context.Context, Pin) error
	// Denied is told what was refused, a name at most once a minute. It must not block.
	Denied func(Denial)
}

// Resolver asks for all boxes.
type Resolver struct {
	cfg  ResolverConfig
	busy chan struct{}
}

// NewResolver returns a Resolver that asks nobody until Serve is called.
func NewResolver(cfg ResolverConfig) *Resolver {
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
	return &Resolver{cfg: cfg, busy: make(chan struct{}, cfg.InFlight)}
}

// server is a Box while it is served.
type server struct {
	*Resolver
	box    *ResolverBox
	busy   chan struct{} // its own queries
	conns  chan struct{} // its own connections
	pace   pace
	denied Tally
	wg     sync.WaitGroup
}

// maxAddresses of one answer. More of them are left out: no program needs them.
const maxAddresses = 16

// answer is what a query comes to; nil for what is no query.
func (s *server) answer(ctx context.Context, query []byte, overUDP bool) []byte {
	q, ok := readQuery(query)
	if !ok {
		return nil
	}
	if q.code == dnsmessage.RCodeSuccess {
		s.resolve(ctx, q)
	}
	return q.reply(overUDP)
}

// Find asks for a name as if the box had, for addresses of IPv6 or for those of IPv4: what it leads to is pinned.
// It is false where nobody has answered.
func (r *Resolver) Find(ctx context.Context, box *ResolverBox, name egress.Name, six bool) bool {
	q := &query{q: dnsmessage.Question{Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}}
	if six {
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
	(&server{Resolver: r, box: box}).resolve(ctx, q)
	return q.code != dnsmessage.RCodeServerFailure
}

// resolve fills in code, addresses and TTL of a question that is well formed.
func (s *server) resolve(ctx context.Context, q *query) {
	name, ok := egress.FromQuery(q.q.Name.String())
	rules := s.box.Rules()
	if !ok || len(rules.Match(name)) == 0 {
		q.code = dnsmessage.RCodeNameError
		if !strings.HasSuffix(string(name), ".arpa") { // whose address it is: asked by habit, and nothing to allow
			s.refuse(notAllowed(name, q.q.Name.String()))
		}
		return
	}
	if q.q.Type != dnsmessage.TypeA && (q.q.Type != dnsmessage.TypeAAAA || !s.box.V6) {
		return // there is such a name, and it has nothing of this type
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Total)
	defer cancel()
	found, err := s.ask(ctx, name, q.q.Type)
	if err != nil {
		q.code = dnsmessage.RCodeServerFailure
		return
	}
	if q.code = found.code; q.code != dnsmessage.RCodeSuccess {
		return
	}
	pin := Pin{Name: name, TTL: min(max(found.ttl, s.cfg.MinTTL), s.cfg.MaxTTL)}
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
			if egress.Public(ip) { // a rule by cidr leads to the others
				pin.Addresses = append(pin.Addresses, ip)
			}
		}
	}
	if len(refused) > 0 {
		s.refuse(leadsAstray(name, refused))
	}
	if len(pin.Addresses) == 0 {
		return
	}
	if err := s.box.Pin(ctx, pin); err != nil {
		q.code, q.addresses = dnsmessage.RCodeServerFailure, nil
	}
}

func (s *server) refuse(d Denial) {
	if s.denied.IsNew(d.Asked+" "+string(d.Reason), time.Now()) {
		s.box.Denied(d)
	}
}
