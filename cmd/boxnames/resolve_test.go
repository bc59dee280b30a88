// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/boxd-dev/boxd/isolation/egress"
)

// upstream is an upstream resolver on loopback.
type upstream struct {
	at netip.AddrPort
	// reply returns what is sent for a question: messages, one packet each; over TCP they are
	// framed.
	reply func(u *upstream, id uint16, q dnsmessage.Question, tcp bool) [][]byte
	other net.PacketConn // another socket with the same address
	mu    sync.Mutex
	asked []string
	from  []string // source ports of its queries
	ids   []uint16
}

func newUpstream(t *testing.T, reply func(u *upstream, id uint16, q dnsmessage.Question, tcp bool) [][]byte) *upstream {
	t.Helper()
	var l net.Listener
	var pc net.PacketConn
	for range 20 { // until a port is free for both UDP and TCP
		var err error
		if pc, err = net.ListenPacket("udp", "127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
		if l, err = net.Listen("tcp", pc.LocalAddr().String()); err == nil {
			break
		}
		pc.Close()
	}
	other, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	u := &upstream{at: netip.MustParseAddrPort(pc.LocalAddr().String()), reply: reply, other: other}
	var wg sync.WaitGroup
	t.Cleanup(func() { pc.Close(); l.Close(); other.Close(); wg.Wait() })
	wg.Go(func() {
		buf := make([]byte, 4096)
		for {
			n, from, err := pc.ReadFrom(buf)
			if err != nil {
				return
			}
			for _, m := range u.answer(buf[:n], from, false) {
				pc.WriteTo(m, from)
			}
		}
	})
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.SetDeadline(time.Now().Add(time.Minute))
			var size [2]byte
			io.ReadFull(c, size[:])
			msg := make([]byte, binary.BigEndian.Uint16(size[:]))
			io.ReadFull(c, msg)
			for _, m := range u.answer(msg, c.RemoteAddr(), true) {
				c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(m))), m...))
			}
			c.Close()
		}
	})
	return u
}

func (u *upstream) answer(msg []byte, from net.Addr, tcp bool) [][]byte {
	var m dnsmessage.Message
	if m.Unpack(msg) != nil || len(m.Questions) != 1 {
		return nil
	}
	u.mu.Lock()
	u.asked = append(u.asked, m.Questions[0].Name.String()+" "+m.Questions[0].Type.String())
	u.from = append(u.from, from.String())
	u.ids = append(u.ids, m.ID)
	u.mu.Unlock()
	if u.reply == nil {
		return nil
	}
	return u.reply(u, m.ID, m.Questions[0], tcp)
}

func (u *upstream) questions() []string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Clone(u.asked)
}

// record parses a record of an answer: "name 60 A 1.2.3.4".
func record(text string) dnsmessage.Resource {
	f := strings.Fields(text)
	ttl := uint32(0)
	for _, c := range f[1] {
		ttl = ttl*10 + uint32(c-'0')
	}
	r := dnsmessage.Resource{Header: dnsmessage.ResourceHeader{Name: dnsmessage.MustNewName(f[0]), Class: dnsmessage.ClassINET, TTL: ttl}}
	switch f[2] {
	case "A":
		r.Body = &dnsmessage.AResource{A: netip.MustParseAddr(f[3]).As4()}
	case "AAAA":
		r.Body = &dnsmessage.AAAAResource{AAAA: netip.MustParseAddr(f[3]).As16()}
	case "CNAME":
		r.Body = &dnsmessage.CNAMEResource{CNAME: dnsmessage.MustNewName(f[3])}
	case "TXT":
		r.Body = &dnsmessage.TXTResource{TXT: []string{f[3]}}
	}
	return r
}

func message(id uint16, q dnsmessage.Question, change func(*dnsmessage.Message), records ...string) []byte {
	m := dnsmessage.Message{Header: dnsmessage.Header{ID: id, Response: true, RecursionAvailable: true}, Questions: []dnsmessage.Question{q}}
	for _, r := range records {
		m.Answers = append(m.Answers, record(r))
	}
	if change != nil {
		change(&m)
	}
	b, err := m.Pack()
	if err != nil {
		panic(err)
	}
	return b
}

// replies returns a reply of fixed records for any question; those of other types are left out.
func replies(records ...string) func(*upstream, uint16, dnsmessage.Question, bool) [][]byte {
	return func(_ *upstream, id uint16, q dnsmessage.Question, _ bool) [][]byte {
		return [][]byte{message(id, q, nil, records...)}
	}
}

// servedDNS is a box and what was done for it.
type servedDNS struct {
	udp, tcp string
	mu       sync.Mutex
	pins     []pinRequest
	denials  []denial
	rules    *egress.Rules
	failing  error
}

func serveDNS(t *testing.T, cfg resolverConfig, v6 bool, specs ...egress.Spec) *servedDNS {
	t.Helper()
	rules, err := egress.CompileRules("rules", specs)
	if err != nil {
		t.Fatal(err)
	}
	s := &servedDNS{rules: rules}
	box := &resolverBox{
		V6:    v6,
		Rules: func() *egress.Rules { s.mu.Lock(); defer s.mu.Unlock(); return s.rules },
		Pin: func(_ context.Context, p pinRequest) error {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.pins = append(s.pins, p)
			return s.failing
		},
		Denied: func(d denial) { s.mu.Lock(); defer s.mu.Unlock(); s.denials = append(s.denials, d) },
	}
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.udp, s.tcp = pc.LocalAddr().String(), l.Addr().String()
	ctx, cancel := context.WithCancelCause(context.Background())
	done := make(chan error, 1)
	go func() { done <- newResolver(cfg).Serve(ctx, box, pc, l) }()
	t.Cleanup(func() {
		cancel(errors.New("terminated signal received")) // as signal.NotifyContext has it
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return s
}

// refused returns the denials so far.
func (s *servedDNS) refused() []denial {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.denials)
}

// pinned returns the pins so far.
func (s *servedDNS) pinned() []pinRequest {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.pins)
}

// send sends bytes and returns the answer; nil if none comes within patience.
func send(t *testing.T, network, to string, msg []byte, patience time.Duration) []byte {
	t.Helper()
	c, err := net.Dial(network, to)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	if network == "tcp" {
		c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(msg))), msg...))
		var size [2]byte
		if _, err := io.ReadFull(c, size[:]); err != nil {
			return nil
		}
		back := make([]byte, binary.BigEndian.Uint16(size[:]))
		io.ReadFull(c, back)
		return back
	}
	c.Write(msg)
	buf := make([]byte, 65536)
	n, err := c.Read(buf)
	if err != nil {
		return nil
	}
	return buf[:n]
}

func ask(t *testing.T, network, to, name string, kind dnsmessage.Type) *dnsmessage.Message {
	t.Helper()
	q := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: 4711, RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(name), Type: kind, Class: dnsmessage.ClassINET}},
	}
	msg, err := q.Pack()
	if err != nil {
		t.Fatal(err)
	}
	back := send(t, network, to, msg, time.Minute)
	m := &dnsmessage.Message{}
	if err := m.Unpack(back); err != nil {
		t.Fatalf("%s: %v in %x", name, err, back)
	}
	if m.ID != 4711 || !m.Response || len(m.Questions) != 1 || m.Questions[0] != q.Questions[0] {
		t.Fatalf("%s: m = %+v, want m.ID == 4711 and m.Response == true and len(m.Questions) == 1 and m.Questions[0] == q.Questions[0]",
			name, m)
	}
	return m
}

// text returns an answer in one line: the code, and addresses with their TTLs.
func text(m *dnsmessage.Message) string {
	out := []string{strings.TrimPrefix(m.RCode.String(), "RCode")}
	if m.Truncated {
		out = append(out, "truncated")
	}
	for _, r := range m.Answers {
		switch b := r.Body.(type) {
		case *dnsmessage.AResource:
			out = append(out, netip.AddrFrom4(b.A).String())
		case *dnsmessage.AAAAResource:
			out = append(out, netip.AddrFrom16(b.AAAA).String())
		default:
			out = append(out, r.Header.Type.String())
		}
		out = append(out, (time.Duration(r.Header.TTL) * time.Second).String())
	}
	return strings.Join(out, " ")
}

// takePins returns the pins so far, each as "name ttl address…".
func (s *servedDNS) takePins() (out []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.pins {
		line := string(p.Name) + " " + p.TTL.String()
		for _, a := range p.Addresses {
			line += " " + a.String()
		}
		out = append(out, line)
	}
	s.pins = nil
	return out
}

func TestAnswersArePinnedAndGiven(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		records []string
		kind    dnsmessage.Type
		ask     string
		want    string
		pins    []string
	}{
		"one":        {[]string{"pypi.org. 60 A 151.101.0.223"}, dnsmessage.TypeA, "pypi.org.", "Success 151.101.0.223 1m0s", []string{"pypi.org 1m10s 151.101.0.223"}},
		"v6":         {[]string{"pypi.org. 60 AAAA 2a04:4e42::223"}, dnsmessage.TypeAAAA, "pypi.org.", "Success 2a04:4e42::223 1m0s", []string{"pypi.org 1m10s 2a04:4e42::223"}},
		"case":       {[]string{"pypi.org. 60 A 151.101.0.223"}, dnsmessage.TypeA, "PyPI.oRG.", "Success 151.101.0.223 1m0s", []string{"pypi.org 1m10s 151.101.0.223"}},
		"TTL 0":      {[]string{"pypi.org. 0 A 151.101.0.223"}, dnsmessage.TypeA, "pypi.org.", "Success 151.101.0.223 30s", []string{"pypi.org 40s 151.101.0.223"}},
		"TTL huge":   {[]string{"pypi.org. 2147483647 A 151.101.0.223"}, dnsmessage.TypeA, "pypi.org.", "Success 151.101.0.223 30m0s", []string{"pypi.org 30m10s 151.101.0.223"}},
		"TTL below":  {[]string{"pypi.org. 4294967295 A 151.101.0.223"}, dnsmessage.TypeA, "pypi.org.", "Success 151.101.0.223 30s", []string{"pypi.org 40s 151.101.0.223"}},
		"least TTL":  {[]string{"pypi.org. 600 A 151.101.0.223", "pypi.org. 45 A 151.101.64.223"}, dnsmessage.TypeA, "pypi.org.", "Success 151.101.0.223 45s 151.101.64.223 45s", []string{"pypi.org 55s 151.101.0.223 151.101.64.223"}},
		"chain":      {[]string{"pypi.org. 600 CNAME A.cdn.example.", "a.cdn.example. 50 CNAME b.cdn.example.", "b.cdn.example. 60 A 151.101.0.223"}, dnsmessage.TypeA, "pypi.org.", "Success 151.101.0.223 50s", []string{"pypi.org 1m0s 151.101.0.223"}},
		"loop":       {[]string{"pypi.org. 60 CNAME a.example.", "a.example. 60 CNAME pypi.org.", "b.example. 60 A 151.101.0.223"}, dnsmessage.TypeA, "pypi.org.", "ServerFailure", nil},
		"itself":     {[]string{"pypi.org. 60 CNAME pypi.org."}, dnsmessage.TypeA, "pypi.org.", "ServerFailure", nil},
		"two names":  {[]string{"pypi.org. 60 CNAME a.example.", "pypi.org. 60 CNAME b.example.", "b.example. 60 A 151.101.0.223"}, dnsmessage.TypeA, "pypi.org.", "ServerFailure", nil},
		"to nothing": {[]string{"pypi.org. 60 CNAME a.example."}, dnsmessage.TypeA, "pypi.org.", "Success", nil},
		"stranger":   {[]string{"evil.example. 60 A 151.101.0.223"}, dnsmessage.TypeA, "pypi.org.", "Success", nil},
		"with both":  {[]string{"evil.example. 60 A 151.101.0.223", "pypi.org. 60 A 151.101.64.223", "pypi.org. 60 TXT x", "pypi.org. 60 AAAA 2a04:4e42::223"}, dnsmessage.TypeA, "pypi.org.", "Success 151.101.64.223 1m0s", []string{"pypi.org 1m10s 151.101.64.223"}},
		"wildcard":   {[]string{"a.b.example.net. 60 A 151.101.64.223"}, dnsmessage.TypeA, "a.b.example.net.", "Success 151.101.64.223 1m0s", []string{"a.b.example.net 1m10s 151.101.64.223"}},
		"twice":      {[]string{"pypi.org. 60 A 151.101.0.223", "pypi.org. 60 A 151.101.0.223"}, dnsmessage.TypeA, "pypi.org.", "Success 151.101.0.223 1m0s", []string{"pypi.org 1m10s 151.101.0.223"}},
		"nothing":    {nil, dnsmessage.TypeA, "pypi.org.", "Success", nil},
		"other type": {[]string{"pypi.org. 60 TXT x"}, dnsmessage.TypeTXT, "pypi.org.", "Success", nil},
		"HTTPS":      {nil, 65, "pypi.org.", "Success", nil},
		"SVCB":       {nil, 64, "pypi.org.", "Success", nil},
		"ANY":        {nil, dnsmessage.TypeALL, "pypi.org.", "Success", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u := newUpstream(t, replies(tc.records...))
			s := serveDNS(t, resolverConfig{Upstreams: list(u.at)}, true, egress.Spec{Name: "pypi.org"}, egress.Spec{Name: "*.example.net"})
			for _, network := range []string{"udp", "tcp"} {
				to := map[string]string{"udp": s.udp, "tcp": s.tcp}[network]
				if got := text(ask(t, network, to, tc.ask, tc.kind)); got != tc.want {
					t.Errorf("%s: %q, not %q", network, got, tc.want)
				}
				if got := s.takePins(); !slices.Equal(got, tc.pins) {
					t.Errorf("%s: pinned %q, not %q", network, got, tc.pins)
				}
			}
			if other := tc.kind != dnsmessage.TypeA && tc.kind != dnsmessage.TypeAAAA; other && len(u.questions()) > 0 {
				t.Errorf("queries to the resolver of the host: %q", u.questions())
			}
			if len(s.refused()) > 0 {
				t.Errorf("s.refused() = %+v, want len(s.refused()) == 0", s.refused())
			}
		})
	}
}

func TestNamesThatAreNotAllowedLeaveNoTrace(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, replies("a. 60 A 151.101.0.223"))
	s := serveDNS(t, resolverConfig{Upstreams: list(u.at)}, true, egress.Spec{Name: "pypi.org"}, egress.Spec{Name: "*.example.net"})
	for _, n := range []string{"evil.example.", "www.pypi.org.", "example.net.", "org.", ".", "pypi.org.evil.example.", "a\x00.example.net.", "a b.example.net.", "1.2.3.4.", "4.3.2.1.in-addr.arpa."} {
		for _, kind := range []dnsmessage.Type{dnsmessage.TypeA, dnsmessage.TypeAAAA, dnsmessage.TypeTXT, 65} {
			if got := text(ask(t, "udp", s.udp, n, kind)); got != "NameError" {
				t.Errorf(`%q: got %s, want "NameError"`, n, got)
			}
		}
	}
	if q := u.questions(); len(q) > 0 {
		t.Errorf("queries to the resolver of the host: %q", q)
	}
	if len(s.refused()) != 9 { // each name once; reverse lookups are no denials
		t.Errorf("%d denials: s.refused() = %+v, want len(s.refused()) == 9", len(s.refused()), s.refused())
	}
	if d := s.refused()[0]; d.Reason != egress.NotAllowed || d.Asked != "evil.example" || d.Setting != `"evil.example"` {
		t.Errorf("d = %+v, want d.Reason == egress.NotAllowed and d.Asked == \"evil.example\" and d.Setting == `\"evil.example\"`",
			d)
	}
	if d := s.refused()[6]; d.Asked != `"a\x00.example.net."` || d.Setting != "" {
		t.Errorf("d = %+v, want d.Asked == `\"a\\x00.example.net.\"` and d.Setting == \"\"", d)
	}
}

func TestPrivateAddressesAreLeftOut(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, replies("a.org. 60 A 10.1.2.3", "a.org. 60 A 151.101.0.223", "a.org. 60 A 169.254.169.254", "a.org. 60 AAAA ::ffff:10.1.2.3", "a.org. 60 AAAA 64:ff9b::a01:203", "a.org. 60 AAAA 2002:a01:203::1", "a.org. 60 AAAA fd00::1", "a.org. 60 AAAA ::1"))
	s := serveDNS(t, resolverConfig{Upstreams: list(u.at)}, true, egress.Spec{Name: "a.org"})
	if got := text(ask(t, "udp", s.udp, "a.org.", dnsmessage.TypeA)); got != "Success 151.101.0.223 1m0s" {
		t.Error(got)
	}
	if got := s.takePins(); !slices.Equal(got, []string{"a.org 1m10s 151.101.0.223"}) {
		t.Errorf(`got %q, want []string{"a.org 1m10s 151.101.0.223"}`, got)
	}
	if len(s.refused()) != 1 || s.refused()[0].Reason != egress.NotPublic || len(s.refused()[0].Addresses) != 2 ||
		s.refused()[0].Setting != `"10.1.2.3/32", "169.254.169.254/32"` {
		t.Errorf("s.refused() = %+v", s.refused())
	}
	if got := text(ask(t, "udp", s.udp, "a.org.", dnsmessage.TypeAAAA)); got != "Success" {
		t.Error(got)
	}
	if got := s.takePins(); got != nil {
		t.Errorf("got %q, want nil", got)
	}

	// A rule by CIDR allows these anyway.
	s = serveDNS(t, resolverConfig{Upstreams: list(u.at)}, true, egress.Spec{Name: "a.org"})
	s.mu.Lock()
	s.rules = s.rules.Reaching([]netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")})
	s.mu.Unlock()
	if got := text(ask(t, "udp", s.udp, "a.org.", dnsmessage.TypeA)); got != "Success 10.1.2.3 1m0s 151.101.0.223 1m0s" {
		t.Error(got)
	}
	if got := s.takePins(); !slices.Equal(got, []string{"a.org 1m10s 151.101.0.223"}) {
		t.Errorf(`got %q, want []string{"a.org 1m10s 151.101.0.223"}`, got)
	}
}

func list(at ...netip.AddrPort) func() []netip.AddrPort {
	return func() []netip.AddrPort { return at }
}

func TestABoxWithoutIPv6GetsNoneOfItsAddresses(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, replies("a.org. 60 AAAA 2a04:4e42::223"))
	s := serveDNS(t, resolverConfig{Upstreams: list(u.at)}, false, egress.Spec{Name: "a.org"})
	if got := text(ask(t, "udp", s.udp, "a.org.", dnsmessage.TypeAAAA)); got != "Success" || len(u.questions()) != 0 {
		t.Errorf(`got = %v, u.questions() = %v, want got == "Success" and len(u.questions()) == 0`, got, u.questions())
	}
}

func TestAnAddressThatCannotBePinnedIsNotAnswered(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, replies("a.org. 60 A 151.101.0.223"))
	s := serveDNS(t, resolverConfig{Upstreams: list(u.at)}, true, egress.Spec{Name: "a.org"})
	s.mu.Lock()
	s.failing = errors.New("no")
	s.mu.Unlock()
	if got := text(ask(t, "udp", s.udp, "a.org.", dnsmessage.TypeA)); got != "ServerFailure" {
		t.Error(got)
	}
}

func TestDNSQueriesAreHeldToTheCurrentRules(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, replies("a.org. 60 A 151.101.0.223"))
	s := serveDNS(t, resolverConfig{Upstreams: list(u.at)}, true, egress.Spec{Name: "a.org"})
	ask(t, "udp", s.udp, "a.org.", dnsmessage.TypeA)
	s.mu.Lock()
	s.rules = nil
	s.mu.Unlock()
	if got := text(ask(t, "udp", s.udp, "a.org.", dnsmessage.TypeA)); got != "NameError" {
		t.Error(got)
	}
}

func TestResolversThatMisbehave(t *testing.T) {
	t.Parallel()
	const good = "a.org. 60 A 151.101.0.223"
	tooMany := slices.Repeat([]string{"a.org. 60 TXT x"}, 300)
	one := func(f func(id uint16, q dnsmessage.Question, tcp bool) [][]byte) func(*upstream, uint16, dnsmessage.Question, bool) [][]byte {
		return func(_ *upstream, id uint16, q dnsmessage.Question, tcp bool) [][]byte { return f(id, q, tcp) }
	}
	for name, tc := range map[string]struct {
		reply func(*upstream, uint16, dnsmessage.Question, bool) [][]byte
		want  string
	}{
		"silent": {nil, "ServerFailure"},
		"wrong id": {one(func(id uint16, q dnsmessage.Question, _ bool) [][]byte {
			return [][]byte{message(id+1, q, nil, "a.org. 60 A 6.6.6.6"), message(id, q, nil, good)}
		}), "Success 151.101.0.223 1m0s"},
		"wrong question": {one(func(id uint16, q dnsmessage.Question, _ bool) [][]byte {
			bad := q
			bad.Name = dnsmessage.MustNewName("b.org.")
			kind := q
			kind.Type = dnsmessage.TypeAAAA
			none := func(m *dnsmessage.Message) { m.Questions = nil }
			two := func(m *dnsmessage.Message) { m.Questions = append(m.Questions, q) }
			no := func(m *dnsmessage.Message) { m.Response = false }
			const evil = "a.org. 60 A 6.6.6.6"
			return [][]byte{
				message(id, bad, nil, evil), message(id, kind, nil, evil), message(id, q, none, evil), message(id, q, two, evil), message(id, q, no, evil),
				{},
				{1, 2, 3},
				message(id, q, nil, good),
			}
		}), "Success 151.101.0.223 1m0s"},
		"strays alone": {one(func(id uint16, q dnsmessage.Question, _ bool) [][]byte {
			return slices.Repeat([][]byte{message(id+1, q, nil, "a.org. 60 A 6.6.6.6")}, 40)
		}), "ServerFailure"},
		"from another socket": {func(u *upstream, id uint16, q dnsmessage.Question, _ bool) [][]byte {
			u.mu.Lock()
			from, _ := net.ResolveUDPAddr("udp", u.from[len(u.from)-1])
			u.mu.Unlock()
			u.other.WriteTo(message(id, q, nil, "a.org. 60 A 6.6.6.6"), from)
			return [][]byte{message(id, q, nil, good)}
		}, "Success 151.101.0.223 1m0s"},
		"truncated": {one(func(id uint16, q dnsmessage.Question, tcp bool) [][]byte {
			if tcp {
				return [][]byte{message(id, q, nil, good)}
			}
			return [][]byte{message(id, q, func(m *dnsmessage.Message) { m.Truncated = true }, "a.org. 60 A 6.6.6.6")}
		}), "Success 151.101.0.223 1m0s"},
		"truncated twice": {one(func(id uint16, q dnsmessage.Question, _ bool) [][]byte {
			return [][]byte{message(id, q, func(m *dnsmessage.Message) { m.Truncated = true }, good)}
		}), "ServerFailure"},
		"wrong id over TCP": {one(func(id uint16, q dnsmessage.Question, tcp bool) [][]byte {
			if tcp {
				return [][]byte{message(id+1, q, nil, good)}
			}
			return [][]byte{message(id, q, func(m *dnsmessage.Message) { m.Truncated = true })}
		}), "ServerFailure"},
		"too long over TCP": {one(func(id uint16, q dnsmessage.Question, tcp bool) [][]byte {
			if tcp {
				return [][]byte{make([]byte, 60000)}
			}
			return [][]byte{message(id, q, func(m *dnsmessage.Message) { m.Truncated = true })}
		}), "ServerFailure"},
		"cut": {one(func(id uint16, q dnsmessage.Question, _ bool) [][]byte {
			m := message(id, q, nil, good)
			return [][]byte{m[:len(m)-2]}
		}), "ServerFailure"},
		"too many records": {one(func(id uint16, q dnsmessage.Question, _ bool) [][]byte {
			return [][]byte{message(id, q, nil, append(tooMany, good)...)}
		}), "ServerFailure"},
		"server failure": {one(func(id uint16, q dnsmessage.Question, _ bool) [][]byte {
			return [][]byte{message(id, q, code(2), good)}
		}), "ServerFailure"},
		"refused": {one(func(id uint16, q dnsmessage.Question, _ bool) [][]byte {
			return [][]byte{message(id, q, code(5), good)}
		}), "ServerFailure"},
		"no such name": {one(func(id uint16, q dnsmessage.Question, _ bool) [][]byte {
			return [][]byte{message(id, q, code(3), good)}
		}), "NameError"},
		"nothing at once": {one(func(uint16, dnsmessage.Question, bool) [][]byte { return [][]byte{nil} }), "ServerFailure"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u := newUpstream(t, tc.reply)
			cfg := resolverConfig{Upstreams: list(u.at), Attempt: 20 * time.Second, Total: time.Minute}
			if tc.want == "ServerFailure" {
				cfg.Attempt = 200 * time.Millisecond // no good answer will come
			}
			s := serveDNS(t, cfg, true, egress.Spec{Name: "a.org"})
			if got := text(ask(t, "udp", s.udp, "a.org.", dnsmessage.TypeA)); got != tc.want {
				t.Errorf("%q, not %q", got, tc.want)
			}
			if pins := s.takePins(); strings.Contains(strings.Join(pins, " "), "6.6.6.6") || tc.want == "ServerFailure" && pins != nil {
				t.Errorf("pinned %q", pins)
			}
		})
	}
}

// An answer too long for a packet is truncated, and complete over TCP; sixteen addresses are the
// most.
func TestLongAnswers(t *testing.T) {
	t.Parallel()
	name := strings.Repeat("a", 60) + "." + strings.Repeat("b", 60) + ".org."
	many := make([]string, 40)
	for i := range many {
		many[i] = name + " 60 AAAA 2a04:4e42::" + strconv.Itoa(i+1)
	}
	u := newUpstream(t, func(_ *upstream, id uint16, q dnsmessage.Question, tcp bool) [][]byte {
		return [][]byte{message(id, q, nil, many...)}
	})
	s := serveDNS(t, resolverConfig{Upstreams: list(u.at)}, true, egress.Spec{Name: "*"})
	if got := text(ask(t, "udp", s.udp, name, dnsmessage.TypeAAAA)); got != "Success truncated" {
		t.Error(got)
	}
	if m := ask(t, "tcp", s.tcp, name, dnsmessage.TypeAAAA); len(m.Answers) != 16 || m.Truncated {
		t.Errorf("%d answers", len(m.Answers))
	}
	for _, p := range s.pinned() {
		if len(p.Addresses) != 16 {
			t.Errorf("%d pins", len(p.Addresses))
		}
	}
}

func code(c dnsmessage.RCode) func(*dnsmessage.Message) {
	return func(m *dnsmessage.Message) { m.RCode = c }
}

func TestTheNextResolverIsAsked(t *testing.T) {
	t.Parallel()
	gone, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := netip.MustParseAddrPort(gone.LocalAddr().String())
	gone.Close()
	silent := newUpstream(t, nil)
	good := newUpstream(t, replies("a.org. 60 A 151.101.0.223"))
	s := serveDNS(t, resolverConfig{Upstreams: list(nobody, silent.at, good.at), Attempt: 2 * time.Second, Total: time.Minute}, true, egress.Spec{Name: "a.org"})
	if got := text(ask(t, "udp", s.udp, "a.org.", dnsmessage.TypeA)); got != "Success 151.101.0.223 1m0s" || len(silent.questions()) == 0 { // more, if the good one needs longer than an attempt once
		t.Errorf(`got = %v, silent.questions() = %v, want got == "Success 151.101.0.223 1m0s" and len(silent.questions()) != 0`, got, silent.questions())
	}
	s = serveDNS(t, resolverConfig{}, true, egress.Spec{Name: "a.org"})
	if got := text(ask(t, "udp", s.udp, "a.org.", dnsmessage.TypeA)); got != "ServerFailure" {
		t.Errorf(`without resolvers: got %s, want "ServerFailure"`, got)
	}
}

func TestEveryQuestionHasAnIDAndAPortOfItsOwn(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, replies("a.org. 60 A 151.101.0.223"))
	s := serveDNS(t, resolverConfig{Upstreams: list(u.at)}, true, egress.Spec{Name: "a.org"})
	const n = 20
	for range n {
		ask(t, "udp", s.udp, "a.org.", dnsmessage.TypeA)
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	slices.Sort(u.ids)
	slices.Sort(u.from)
	if ids, ports := len(slices.Compact(u.ids)), len(slices.Compact(u.from)); ids < n-2 || ports < n-2 {
		t.Errorf("%d ids and %d ports for %d questions", ids, ports, n)
	}
}

func TestMalformedDNSQueriesAreRejected(t *testing.T) {
	t.Parallel()
	s := serveDNS(t, resolverConfig{Rate: 1000}, true, egress.Spec{Name: "*"})
	q := dnsmessage.Question{Name: dnsmessage.MustNewName("a.org."), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}
	pack := func(h dnsmessage.Header, qs ...dnsmessage.Question) []byte {
		m := dnsmessage.Message{Header: h, Questions: qs}
		b, err := m.Pack()
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	chaos := q
	chaos.Class = dnsmessage.ClassCHAOS
	for name, tc := range map[string]struct {
		msg  []byte
		want string // "" means no answer
	}{
		"empty":     {[]byte{}, ""},
		"short":     {[]byte{1, 2, 3}, ""},
		"an answer": {pack(dnsmessage.Header{ID: 1, Response: true}, q), ""},
		"update":    {pack(dnsmessage.Header{ID: 1, OpCode: 5}, q), "NotImplemented"},
		"none":      {pack(dnsmessage.Header{ID: 1}), "FormatError"},
		"two":       {pack(dnsmessage.Header{ID: 1}, q, q), "FormatError"},
		"chaos":     {pack(dnsmessage.Header{ID: 1}, chaos), "Refused"},
		"cut":       {pack(dnsmessage.Header{ID: 1}, q)[:20], "FormatError"},
		"pointer":   {append(pack(dnsmessage.Header{ID: 1})[:4], 0, 1, 0, 0, 0, 0, 0, 0, 0xc0, 12, 0, 1, 0, 1), "FormatError"},
		"huge":      {append(pack(dnsmessage.Header{ID: 1}, q), make([]byte, 30000)...), "ServerFailure"},
	} {
		patience := time.Minute
		if tc.want == "" {
			patience = 100 * time.Millisecond
		}
		back := send(t, "udp", s.udp, tc.msg, patience)
		if tc.want == "" {
			if back != nil {
				t.Errorf("%s: back = %x, want nil", name, back)
			}
			continue
		}
		var m dnsmessage.Message
		if err := m.Unpack(back); err != nil || text(&m) != tc.want || len(back) > 512 {
			t.Errorf("%s: err = %v, text(&m) = %s, want no error and text(&m) == %v and len(back) <= 512",
				name, err, text(&m), tc.want)
		}
	}
	if back := send(t, "tcp", s.tcp, make([]byte, 40000), time.Minute); back != nil {
		t.Errorf("back = %x, want nil", back)
	}
}

func TestDNSQueriesOverTheLimitOfABoxGetServerFailure(t *testing.T) {
	t.Parallel()
	hold := make(chan struct{})
	var once sync.Once
	u := newUpstream(t, func(_ *upstream, id uint16, q dnsmessage.Question, _ bool) [][]byte {
		<-hold
		return [][]byte{message(id, q, nil, q.Name.String()+" 60 A 151.101.0.223")}
	})
	t.Cleanup(func() { once.Do(func() { close(hold) }) })
	s := serveDNS(t, resolverConfig{Upstreams: list(u.at), PerBox: 2, Attempt: time.Minute, Total: time.Minute}, true, egress.Spec{Name: "*.org"})
	results := make(chan string, 3)
	for _, n := range []string{"a.org.", "b.org.", "c.org."} {
		go func() { results <- text(ask(t, "udp", s.udp, n, dnsmessage.TypeA)) }()
	}
	if got := <-results; got != "ServerFailure" { // whichever came third; the others are still waiting
		t.Error(got)
	}
	once.Do(func() { close(hold) })
	for range 2 {
		if got := <-results; got != "Success 151.101.0.223 1m0s" {
			t.Error(got)
		}
	}

	s = serveDNS(t, resolverConfig{Rate: 1}, true, egress.Spec{Name: "a.org"})
	reported := map[string]int{}
	for range 40 {
		reported[text(ask(t, "udp", s.udp, "b.org.", dnsmessage.TypeA))]++
	}
	if reported["NameError"] < 10 || reported["ServerFailure"] == 0 {
		t.Errorf(`reported = %v, want reported["NameError"] >= 10 and reported["ServerFailure"] != 0`, reported)
	}
}

// A box may have eight silent connections open; further ones are closed.
func TestConnectionsAreCounted(t *testing.T) {
	t.Parallel()
	s := serveDNS(t, resolverConfig{Idle: time.Minute}, true)
	var conns []net.Conn
	closed := make(chan struct{}, 20)
	for range 20 {
		c, err := net.Dial("tcp", s.tcp)
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
		go func() {
			c.Read(make([]byte, 1))
			closed <- struct{}{}
		}()
	}
	for range 12 {
		<-closed
	}
	select {
	case <-closed:
		t.Error("a ninth connection was closed")
	default:
	}
	for _, c := range conns {
		c.Close()
	}
	for range 8 {
		<-closed
	}
}
