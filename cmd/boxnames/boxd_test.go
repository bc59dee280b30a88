// SPDX-License-Identifier: Apache-2.0

// Tests of boxd's end of the control socket against this program.

package main

import (
	"context"
	"errors"
	"io"
	"log"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/fdpass"
	"github.com/boxd-dev/boxd/isolation/egress"
	"github.com/boxd-dev/boxd/supervisor/driver"
)

// fixedUpstream answers every question for an IPv4 address with this one.
func fixedUpstream(t *testing.T, ip [4]byte) netip.AddrPort {
	t.Helper()
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() { pc.Close(); <-done })
	go func() {
		defer close(done)
		buf := make([]byte, 1500)
		for {
			n, from, err := pc.ReadFrom(buf)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if m.Unpack(buf[:n]) != nil {
				continue
			}
			m.Response = true
			m.Answers = []dnsmessage.Resource{{
				Header: dnsmessage.ResourceHeader{Name: m.Questions[0].Name, Class: dnsmessage.ClassINET, TTL: 60},
				Body:   &dnsmessage.AResource{A: ip},
			}}
			out, _ := m.Pack()
			pc.WriteTo(out, from)
		}
	}()
	return netip.MustParseAddrPort(pc.LocalAddr().String())
}

// boxdBench is boxd's end with its programs, and what it does in place of a keeper.
type boxdBench struct {
	t        *testing.T
	resolver *driver.Resolver
	at       netip.AddrPort // of the upstream

	mu       sync.Mutex
	programs []*fdpass.Conn    // boxd's ends belong to the resolver; these are the programs'
	where    map[string]string // where a box sends its questions
	pins     []string
	denials  []string
	refuse   error // answer of Pin
	heard    chan struct{}
	wg       sync.WaitGroup
}

func openBoxd(t *testing.T, ip [4]byte) *boxdBench {
	t.Helper()
	b := &boxdBench{t: t, at: fixedUpstream(t, ip), where: map[string]string{}, heard: make(chan struct{}, 100)}
	b.resolver = driver.OpenResolver(driver.ResolverConfig{
		Connect: b.connect, Sockets: b.sockets, Gone: func(error) bool { return false },
		Pin: func(_ context.Context, key string, to []netip.Addr, at []egress.Opening, life time.Duration) error {
			b.mu.Lock()
			defer b.mu.Unlock()
			var text []string
			for _, a := range to {
				text = append(text, a.String())
			}
			for _, o := range at {
				text = append(text, o.Protocol+":"+egress.Ports{First: o.Port, Last: o.Port}.String())
			}
			b.pins = append(b.pins, key+" "+strings.Join(text, " ")+" "+life.String())
			return b.refuse
		},
		Denied: func(d *egress.Denied) {
			b.mu.Lock()
			b.denials = append(b.denials, d.Key+" "+d.Reason+" "+d.Asked+" "+d.Setting)
			b.mu.Unlock()
			b.heard <- struct{}{}
		},
		Log: slog.New(slog.DiscardHandler),
	})
	t.Cleanup(func() { b.resolver.Close(); b.wg.Wait() })
	return b
}

func (b *boxdBench) connect(context.Context) (*fdpass.Conn, error) {
	conn, fd, err := fdpass.Pair(fdpass.MaxInline)
	if err != nil {
		return nil, err
	}
	theirs, err := fdpass.FromFD(fd, fdpass.MaxInline)
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	b.programs = append(b.programs, theirs)
	b.mu.Unlock()
	cfg := resolverConfig{Upstreams: func() []netip.AddrPort { return []netip.AddrPort{b.at} }}
	b.wg.Go(func() { serveBoxd(context.Background(), theirs, cfg, log.New(io.Discard, "", 0)) })
	return conn, nil
}

// sockets opens the sockets of a box, on loopback.
func (b *boxdBench) sockets(_ context.Context, key string, _ bool) ([]int, bool, error) {
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		return nil, false, err
	}
	defer pc.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, false, err
	}
	defer l.Close()
	var fds []int
	for _, s := range []interface{ File() (*os.File, error) }{pc.(*net.UDPConn), l.(*net.TCPListener)} {
		f, err := s.File()
		if err != nil {
			return nil, false, err
		}
		fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 3)
		f.Close()
		if err != nil {
			return nil, false, err
		}
		fds = append(fds, fd)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.where[key] = pc.LocalAddr().String()
	return fds, false, nil
}

// query asks as a box does; "" means no answer.
func (b *boxdBench) query(key, name string) string {
	b.t.Helper()
	b.mu.Lock()
	at := b.where[key]
	b.mu.Unlock()
	c, err := net.Dial("udp", at)
	if err != nil {
		b.t.Fatal(err)
	}
	defer c.Close()
	q := dnsmessage.Message{Header: dnsmessage.Header{ID: 9}, Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(name), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}}}
	msg, _ := q.Pack()
	c.Write(msg)
	c.SetDeadline(time.Now().Add(time.Minute))
	buf := make([]byte, 1500)
	n, err := c.Read(buf)
	var m dnsmessage.Message
	if err != nil || m.Unpack(buf[:n]) != nil {
		return ""
	}
	out := strings.TrimPrefix(m.RCode.String(), "RCode")
	for _, r := range m.Answers {
		out += " " + netip.AddrFrom4(r.Body.(*dnsmessage.AResource).A).String()
	}
	return out
}

func compileRules(t *testing.T, list ...string) *egress.Rules {
	t.Helper()
	var specs []egress.Spec
	for _, n := range list {
		specs = append(specs, egress.Spec{Name: n, Ports: []string{"443"}})
	}
	r, err := egress.CompileRules("rules", specs)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestBoxnamesResolvesByTheRulesOfTheBox(t *testing.T) {
	t.Parallel()
	b := openBoxd(t, [4]byte{151, 101, 0, 223})
	if err := b.resolver.Add(t.Context(), "one", driver.ResolverBox{Rules: compileRules(t, "pypi.org")}); err != nil {
		t.Fatal(err)
	}
	if err := b.resolver.Add(t.Context(), "two", driver.ResolverBox{Rules: compileRules(t, "*.example.net")}); err != nil {
		t.Fatal(err)
	}
	for _, tc := range [][3]string{
		{"one", "pypi.org.", "Success 151.101.0.223"}, {"one", "a.example.net.", "NameError"}, {"two", "pypi.org.", "NameError"}, {"two", "a.example.net.", "Success 151.101.0.223"},
	} {
		if got := b.query(tc[0], tc[1]); got != tc[2] {
			t.Errorf("%s asks for %s: got %q, want tc[2]", tc[0], tc[1], got)
		}
	}
	<-b.heard
	<-b.heard
	b.mu.Lock()
	if got := strings.Join(b.pins, "; "); got != "one 151.101.0.223 tcp:443 1m10s; two 151.101.0.223 tcp:443 1m10s" {
		t.Error(got)
	}
	if got := strings.Join(b.denials, "; "); got != `one name a.example.net "a.example.net"; two name pypi.org "pypi.org"` {
		t.Error(got)
	}
	b.refuse = errors.New("no")
	b.mu.Unlock()
	if got := b.query("one", "pypi.org."); got != "ServerFailure" {
		t.Errorf(`without a pin: got %q, want "ServerFailure"`, got)
	}
}

func TestRulesOfALivingBoxChange(t *testing.T) {
	t.Parallel()
	b := openBoxd(t, [4]byte{10, 1, 2, 3})
	if err := b.resolver.Add(t.Context(), "one", driver.ResolverBox{Rules: compileRules(t, "pypi.org")}); err != nil {
		t.Fatal(err)
	}
	if got := b.query("one", "pypi.org."); got != "Success" { // its address is not public
		t.Errorf(`got %q, want "Success"`, got)
	}
	<-b.heard
	b.resolver.Change("one", driver.ResolverBox{Rules: compileRules(t, "pypi.org"), Reach: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}})
	await(t, func() bool { return b.query("one", "pypi.org.") == "Success 10.1.2.3" })
	if !b.resolver.Change("one", driver.ResolverBox{Rules: compileRules(t)}) {
		t.Error("the rules of a known box could not be changed")
	}
	await(t, func() bool { return b.query("one", "pypi.org.") == "NameError" })
	if b.resolver.Change("nobody", driver.ResolverBox{Rules: compileRules(t)}) {
		t.Error("the rules of a box that was never added were changed")
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.pins) > 0 {
		t.Errorf("b.pins = %q, want len(b.pins) == 0", b.pins) // a CIDR rule covers it
	}
}

func TestBoxesAreHandedToTheNextBoxnames(t *testing.T) {
	t.Parallel()
	b := openBoxd(t, [4]byte{151, 101, 0, 223})
	for _, key := range []string{"one", "two"} {
		if err := b.resolver.Add(t.Context(), key, driver.ResolverBox{Rules: compileRules(t, "pypi.org")}); err != nil {
			t.Fatal(err)
		}
	}
	b.resolver.Remove("two")
	b.mu.Lock()
	b.programs[0].Close() // as if it had died
	delete(b.where, "one")
	delete(b.where, "two")
	b.mu.Unlock()
	await(t, func() bool { b.mu.Lock(); defer b.mu.Unlock(); return b.where["one"] != "" })
	if got := b.query("one", "pypi.org."); got != "Success 151.101.0.223" {
		t.Errorf(`got %q, want "Success 151.101.0.223"`, got)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.where["two"] != "" {
		t.Error("a removed box was handed to the next program")
	}
}

func await(t *testing.T, done func() bool) {
	t.Helper()
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for late := time.After(time.Minute); !done(); {
		select {
		case <-ticker.C:
		case <-late:
			t.Fatal("timed out after a minute")
		}
	}
}
