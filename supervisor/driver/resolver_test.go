// SPDX-License-Identifier: Apache-2.0

package driver_test

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
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/fdpass"
	"github.com/boxd-dev/boxd/isolation/egress"
	"github.com/boxd-dev/boxd/isolation/egress/proxy"

	"github.com/boxd-dev/boxd/supervisor/driver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// upstream answers every question for an address of IPv4 with this one.
func upstream(t *testing.T, ip [4]byte) netip.AddrPort {
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

// bench is a Desk, programs for it, and what it does for a keeper.
type bench struct {
	t    *testing.T
	desk *driver.Resolver
	at   netip.AddrPort // of the upstream

	mu       sync.Mutex
	programs []*fdpass.Conn    // boxd's ends are the Desk's; these are theirs
	where    map[string]string // where a box asks
	pins     []string
	denials  []string
	refuse   error // what Pin answers
	heard    chan struct{}
	all      sync.WaitGroup
}

func open(t *testing.T, ip [4]byte) *bench {
	t.Helper()
	b := &bench{t: t, at: upstream(t, ip), where: map[string]string{}, heard: make(chan struct{}, 100)}
	b.desk = driver.OpenResolver(driver.ResolverConfig{
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
	t.Cleanup(func() { b.desk.Close(); b.all.Wait() })
	return b
}

func (b *bench) connect(context.Context) (*fdpass.Conn, error) {
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
	cfg := proxy.ResolverConfig{Upstreams: func() []netip.AddrPort { return []netip.AddrPort{b.at} }}
	b.all.Go(func() { proxy.Serve(context.Background(), theirs, cfg, log.New(io.Discard, "", 0)) })
	return conn, nil
}

// sockets opens those of a box, on loopback.
func (b *bench) sockets(_ context.Context, key string, _ bool) ([]int, bool, error) {
	if strings.HasPrefix(key, "gone") {
		return nil, false, errors.New("no such box")
	}
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

// ask asks as a box does; "" is no answer.
func (b *bench) ask(key, name string) string {
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

func rules(t *testing.T, list ...string) *egress.Rules {
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

func TestABoxIsServed(t *testing.T) {
	t.Parallel()
	b := open(t, [4]byte{151, 101, 0, 223})
	if err := b.desk.Add(t.Context(), "one", driver.ResolverBox{Rules: rules(t, "pypi.org")}); err != nil {
		t.Fatal(err)
	}
	if err := b.desk.Add(t.Context(), "two", driver.ResolverBox{Rules: rules(t, "*.example.net")}); err != nil {
		t.Fatal(err)
	}
	for _, tc := range [][3]string{
		{"one", "pypi.org.", "Success 151.101.0.223"}, {"one", "a.example.net.", "NameError"}, {"two", "pypi.org.", "NameError"}, {"two", "a.example.net.", "Success 151.101.0.223"},
	} {
		if got := b.ask(tc[0], tc[1]); got != tc[2] {
			t.Errorf("%s asks for %s: %q", tc[0], tc[1], got)
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
	if got := b.ask("one", "pypi.org."); got != "ServerFailure" {
		t.Errorf("without a pin: %q", got)
	}
}

func TestRulesOfALivingBoxChange(t *testing.T) {
	t.Parallel()
	b := open(t, [4]byte{10, 1, 2, 3})
	if err := b.desk.Add(t.Context(), "one", driver.ResolverBox{Rules: rules(t, "pypi.org")}); err != nil {
		t.Fatal(err)
	}
	if got := b.ask("one", "pypi.org."); got != "Success" { // its address is not public
		t.Errorf("%q", got)
	}
	<-b.heard
	b.desk.Change("one", driver.ResolverBox{Rules: rules(t, "pypi.org"), Reach: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}})
	await(t, func() bool { return b.ask("one", "pypi.org.") == "Success 10.1.2.3" })
	if !b.desk.Change("one", driver.ResolverBox{Rules: rules(t)}) {
		t.Error("the box is not known")
	}
	await(t, func() bool { return b.ask("one", "pypi.org.") == "NameError" })
	if b.desk.Change("nobody", driver.ResolverBox{Rules: rules(t)}) {
		t.Error("a box that was never added is known")
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.pins) > 0 {
		t.Errorf("%q", b.pins) // a rule by cidr leads there
	}
}

func TestBoxesAreHandedToTheNextProgram(t *testing.T) {
	t.Parallel()
	b := open(t, [4]byte{151, 101, 0, 223})
	for _, key := range []string{"one", "two"} {
		if err := b.desk.Add(t.Context(), key, driver.ResolverBox{Rules: rules(t, "pypi.org")}); err != nil {
			t.Fatal(err)
		}
	}
	b.desk.Remove("two")
	b.mu.Lock()
	b.programs[0].Close() // as if it had died
	delete(b.where, "one")
	delete(b.where, "two")
	b.mu.Unlock()
	await(t, func() bool { b.mu.Lock(); defer b.mu.Unlock(); return b.where["one"] != "" })
	if got := b.ask("one", "pypi.org."); got != "Success 151.101.0.223" {
		t.Errorf("%q", got)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.where["two"] != "" {
		t.Error("a box that was removed is handed in")
	}
}

func TestABoxThatCannotBeServedIsRefused(t *testing.T) {
	t.Parallel()
	b := open(t, [4]byte{})
	if err := b.desk.Add(t.Context(), "gone", driver.ResolverBox{}); err == nil {
		t.Error("a box without sockets is served")
	}
	b.desk.Remove("gone")
	b.desk.Close()
	if err := b.desk.Add(t.Context(), "one", driver.ResolverBox{}); err == nil {
		t.Error("a box is served by nobody")
	}
}

// scripted is a Desk with a program that does nothing but what hear does.
func scripted(t *testing.T, sockets func() ([]int, bool, error), hear func(*fdpass.Conn, *egress.Request)) (desk *driver.Resolver, stop func()) {
	t.Helper()
	var all sync.WaitGroup
	desk = driver.OpenResolver(driver.ResolverConfig{
		Connect: func(context.Context) (*fdpass.Conn, error) {
			conn, fd, err := fdpass.Pair(fdpass.MaxInline)
			if err != nil {
				return nil, err
			}
			theirs, err := fdpass.FromFD(fd, fdpass.MaxInline)
			if err != nil {
				return nil, err
			}
			all.Go(func() {
				defer theirs.Close()
				for {
					body, files, err := theirs.RecvContext(context.Background(), true)
					fdpass.CloseAll(files)
					if err != nil {
						return
					}
					if m, err := egress.Decode[egress.Request](body); err == nil {
						hear(theirs, m)
					}
				}
			})
			return conn, nil
		},
		Sockets: func(context.Context, string, bool) ([]int, bool, error) { return sockets() },
		Gone:    func(error) bool { return false }, Log: slog.New(slog.DiscardHandler),
	})
	stop = func() { desk.Close(); all.Wait() }
	t.Cleanup(stop)
	return desk, stop
}

// A box that the program gives back at once is not handed in without a pause.
func TestABoxThatIsGivenBackWaits(t *testing.T) {
	t.Parallel()
	opened := make(chan struct{}, 1000)
	desk, _ := scripted(t, func() ([]int, bool, error) { opened <- struct{}{}; return nil, false, nil }, func(c *fdpass.Conn, m *egress.Request) {
		if m.Add != nil {
			body, _ := egress.Encode(&egress.Report{Ended: &egress.Ended{Key: m.Add.Key, Error: "no"}})
			_ = c.Send(body)
		}
	})
	begun := time.Now()
	if err := desk.Add(t.Context(), "a", driver.ResolverBox{Rules: rules(t, "a.example")}); err != nil {
		t.Fatal(err)
	}
	for range 4 {
		<-opened
	}
	if took := time.Since(begun); took < 350*time.Millisecond { // 50 + 100 + 200
		t.Errorf("four times in %v", took)
	}
}

// A box that is removed while it is handed in is not left with the program.
func TestABoxThatIsRemovedMeanwhileIsNotHandedIn(t *testing.T) {
	t.Parallel()
	opening, removed := make(chan struct{}), make(chan struct{})
	heard := make(chan *egress.Request, 100)
	desk, stop := scripted(t, func() ([]int, bool, error) { close(opening); <-removed; return nil, false, nil }, func(_ *fdpass.Conn, m *egress.Request) { heard <- m })
	done := make(chan error)
	go func() { done <- desk.Add(t.Context(), "a", driver.ResolverBox{Rules: rules(t, "a.example")}) }()
	<-opening
	desk.Remove("a")
	close(removed)
	if err := <-done; err == nil || strings.Contains(err.Error(), "deadline") {
		t.Errorf("a box that is gone: %v", err)
	}
	stop()
	close(heard)
	with := false
	for m := range heard {
		with = (with || m.Add != nil) && m.Remove == ""
	}
	if with {
		t.Error("the program has a box that is gone")
	}
}

// The program has spoken with strangers: what it wants is held against the rules.
func TestPinsThatNoRuleAllowsAreRefused(t *testing.T) {
	t.Parallel()
	b := open(t, [4]byte{})
	mine, fd, err := fdpass.Pair(fdpass.MaxInline)
	if err != nil {
		t.Fatal(err)
	}
	evil, err := fdpass.FromFD(fd, fdpass.MaxInline)
	if err != nil {
		t.Fatal(err)
	}
	defer evil.Close()
	var pinned atomic.Int32 // pins are made side by side
	once := make(chan struct{}, 1)
	once <- struct{}{}
	desk := driver.OpenResolver(driver.ResolverConfig{
		Connect: func(ctx context.Context) (*fdpass.Conn, error) {
			select {
			case <-once:
				return mine, nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		},
		Sockets: b.sockets, Gone: func(error) bool { return false },
		Pin: func(context.Context, string, []netip.Addr, []egress.Opening, time.Duration) error {
			pinned.Add(1)
			return nil
		},
		Denied: func(d *egress.Denied) { t.Errorf("told: %+v", d) }, Log: slog.New(slog.DiscardHandler),
	})
	defer desk.Close()
	if err := desk.Add(t.Context(), "one", driver.ResolverBox{Rules: rules(t, "pypi.org")}); err != nil {
		t.Fatal(err)
	}
	_, files, err := evil.RecvContext(t.Context(), false)
	fdpass.CloseAll(files)
	if err != nil || len(files) != 2 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, d := range []egress.Denied{{Key: "one", Asked: "a\x1b[2J"}, {Key: "one", Setting: strings.Repeat("x", 2000)}, {Key: "one", Asked: "a\nb"}, {Key: "one", Addresses: make([]netip.Addr, 9)}} {
		body, err := egress.Encode(&egress.Report{Denied: &d})
		if err == nil {
			err = evil.Send(body)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	public, private := netip.MustParseAddr("151.101.0.223"), netip.MustParseAddr("10.0.0.1")
	for i, tc := range []struct {
		pin  egress.Pin
		good bool
	}{
		{egress.Pin{Key: "one", Name: "pypi.org", Seconds: 60, Addresses: []netip.Addr{public}}, true},
		{egress.Pin{Key: "two", Name: "pypi.org", Seconds: 60, Addresses: []netip.Addr{public}}, false},
		{egress.Pin{Key: "one", Name: "evil.org", Seconds: 60, Addresses: []netip.Addr{public}}, false},
		{egress.Pin{Key: "one", Name: "PYPI.org", Seconds: 60, Addresses: []netip.Addr{public}}, true},
		{egress.Pin{Key: "one", Name: "", Seconds: 60, Addresses: []netip.Addr{public}}, false},
		{egress.Pin{Key: "one", Name: "pypi.org", Seconds: 60, Addresses: []netip.Addr{public, private}}, false},
		{egress.Pin{Key: "one", Name: "pypi.org", Seconds: 60, Addresses: []netip.Addr{{}}}, false},
		{egress.Pin{Key: "one", Name: "pypi.org", Seconds: 60}, false},
		{egress.Pin{Key: "one", Name: "pypi.org", Seconds: 0, Addresses: []netip.Addr{public}}, false},
		{egress.Pin{Key: "one", Name: "pypi.org", Seconds: 1 << 40, Addresses: []netip.Addr{public}}, false},
	} {
		tc.pin.ID = uint64(i)
		body, err := egress.Encode(&egress.Report{Pin: &tc.pin})
		if err != nil {
			t.Fatal(err)
		}
		if err := evil.Send(body); err != nil {
			t.Fatal(err)
		}
		body, _, err = evil.RecvContext(t.Context(), false)
		if err != nil {
			t.Fatal(err)
		}
		m, err := egress.Decode[egress.Request](body)
		if err != nil || m.Pinned == nil || m.Pinned.ID != uint64(i) || (m.Pinned.Error == "") != tc.good {
			t.Errorf("%+v: %v, %s", tc.pin, err, body)
		}
	}
	if pinned := pinned.Load(); pinned != 2 {
		t.Errorf("%d pins", pinned)
	}
}

func await(t *testing.T, done func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for late := time.After(time.Minute); !done(); {
		select {
		case <-tick.C:
		case <-late:
			t.Fatal("it does not happen")
		}
	}
}
