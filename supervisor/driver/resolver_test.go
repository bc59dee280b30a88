// SPDX-License-Identifier: Apache-2.0

package driver_test

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/fdpass"
	"github.com/boxd-dev/boxd/isolation/egress"
	"github.com/boxd-dev/boxd/supervisor/driver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

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

func TestABoxThatCannotBeServedIsRefused(t *testing.T) {
	t.Parallel()
	gone := atomic.Bool{}
	gone.Store(true)
	resolver, _ := scripted(t, func() ([]int, bool, error) {
		if gone.Load() {
			return nil, false, errors.New("no such box")
		}
		return nil, false, nil
	}, func(*fdpass.Conn, *egress.Request) {})
	if err := resolver.Add(t.Context(), "gone", driver.ResolverBox{}); err == nil {
		t.Error("no error for a box without sockets")
	}
	resolver.Remove("gone")
	gone.Store(false)
	if err := resolver.Add(t.Context(), "here", driver.ResolverBox{}); err != nil {
		t.Errorf("a box with sockets: %v", err)
	}
	resolver.Close()
	if err := resolver.Add(t.Context(), "one", driver.ResolverBox{}); err == nil {
		t.Error("no error after the resolver was closed")
	}
}

// scripted returns a Resolver whose boxnames does nothing but call hear for each request.
func scripted(t *testing.T, sockets func() ([]int, bool, error), hear func(*fdpass.Conn, *egress.Request)) (resolver *driver.Resolver, stop func()) {
	t.Helper()
	var wg sync.WaitGroup
	resolver = driver.OpenResolver(driver.ResolverConfig{
		Connect: func(context.Context) (*fdpass.Conn, error) {
			conn, fd, err := fdpass.Pair(fdpass.MaxInline)
			if err != nil {
				return nil, err
			}
			theirs, err := fdpass.FromFD(fd, fdpass.MaxInline)
			if err != nil {
				return nil, err
			}
			wg.Go(func() {
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
	stop = func() { resolver.Close(); wg.Wait() }
	t.Cleanup(stop)
	return resolver, stop
}

// A box that boxnames gives back at once is handed to it again only after a pause.
func TestABoxRejectedByBoxnamesIsSentAgainAfterAPause(t *testing.T) {
	t.Parallel()
	opened := make(chan struct{}, 1000)
	resolver, _ := scripted(t, func() ([]int, bool, error) { opened <- struct{}{}; return nil, false, nil }, func(c *fdpass.Conn, m *egress.Request) {
		if m.Add != nil {
			body, _ := egress.Encode(&egress.Report{Ended: &egress.Ended{Key: m.Add.Key, Error: "no"}})
			_ = c.Send(body)
		}
	})
	start := time.Now()
	if err := resolver.Add(t.Context(), "a", driver.ResolverBox{Rules: rules(t, "a.example")}); err != nil {
		t.Fatal(err)
	}
	for range 4 {
		<-opened
	}
	if elapsed := time.Since(start); elapsed < 350*time.Millisecond { // 50 + 100 + 200
		t.Errorf("four times in %v", elapsed)
	}
}

// A box that is removed while it is being handed over does not stay with boxnames.
func TestABoxThatIsRemovedMeanwhileIsNotHandedIn(t *testing.T) {
	t.Parallel()
	opening, removed := make(chan struct{}), make(chan struct{})
	heard := make(chan *egress.Request, 100)
	resolver, stop := scripted(t, func() ([]int, bool, error) { close(opening); <-removed; return nil, false, nil }, func(_ *fdpass.Conn, m *egress.Request) { heard <- m })
	done := make(chan error)
	go func() { done <- resolver.Add(t.Context(), "a", driver.ResolverBox{Rules: rules(t, "a.example")}) }()
	<-opening
	resolver.Remove("a")
	close(removed)
	if err := <-done; err == nil || strings.Contains(err.Error(), "deadline") {
		t.Errorf(`a box that was removed: err = %v, want an error and err without "deadline"`, err)
	}
	stop()
	close(heard)
	with := false
	for m := range heard {
		with = (with || m.Add != nil) && m.Remove == ""
	}
	if with {
		t.Error("boxnames has a box that was removed")
	}
}

// pairOfSockets returns two descriptors, as a box has.
func pairOfSockets(t *testing.T) []int {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Error(err)
	}
	return fds[:]
}

// boxnames talks to untrusted peers: the addresses it asks to open are checked against the rules of the box.
func TestPinsThatNoRuleAllowsAreRefused(t *testing.T) {
	t.Parallel()
	mine, fd, err := fdpass.Pair(fdpass.MaxInline)
	if err != nil {
		t.Fatal(err)
	}
	evil, err := fdpass.FromFD(fd, fdpass.MaxInline)
	if err != nil {
		t.Fatal(err)
	}
	defer evil.Close()
	var pinned atomic.Int32 // pins are made concurrently
	once := make(chan struct{}, 1)
	once <- struct{}{}
	resolver := driver.OpenResolver(driver.ResolverConfig{
		Connect: func(ctx context.Context) (*fdpass.Conn, error) {
			select {
			case <-once:
				return mine, nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		},
		Sockets: func(context.Context, string, bool) ([]int, bool, error) { return pairOfSockets(t), false, nil }, Gone: func(error) bool { return false },
		Pin: func(context.Context, string, []netip.Addr, []egress.Opening, time.Duration) error {
			pinned.Add(1)
			return nil
		},
		Denied: func(d *egress.Denied) { t.Errorf("denied: %+v", d) }, Log: slog.New(slog.DiscardHandler),
	})
	defer resolver.Close()
	if err := resolver.Add(t.Context(), "one", driver.ResolverBox{Rules: rules(t, "pypi.org")}); err != nil {
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
			t.Errorf(`%+v: err = %v, body = %s, want no error and m.Pinned != nil and m.Pinned.ID == uint64(i) and (m.Pinned.Error == "") == tc.good`,
				tc.pin, err, body)
		}
	}
	if pinned := pinned.Load(); pinned != 2 {
		t.Errorf("%d pins", pinned)
	}
}
