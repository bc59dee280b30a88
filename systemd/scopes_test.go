// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	sd "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"
	"github.com/google/go-cmp/cmp"
)

func TestLimitsBecomePropertiesOfTheTypesSystemdTakes(t *testing.T) {
	t.Parallel()
	const none = "t 18446744073709551615"
	for _, tc := range []struct {
		name   string
		limits ScopeLimits
		want   map[string]string
	}{
		{"no limit but for swap", ScopeLimits{}, map[string]string{
			"MemoryMax": none, "MemoryHigh": none, "MemorySwapMax": "t 0", "TasksMax": none,
			"CPUQuotaPerSecUSec": none, "CPUQuotaPeriodUSec": none, "CPUWeight": none, "IOWeight": none,
		}},
		{"all", ScopeLimits{
			MemoryMax: 64 << 20, MemoryHigh: 48 << 20, MemorySwapMax: 1 << 20, TasksMax: 50,
			CPUQuota: 1500 * time.Millisecond, CPUPeriod: 20 * time.Millisecond, CPUWeight: 20, IOWeight: 300,
		}, map[string]string{
			"MemoryMax": "t 67108864", "MemoryHigh": "t 50331648", "MemorySwapMax": "t 1048576", "TasksMax": "t 50",
			"CPUQuotaPerSecUSec": "t 1500000", "CPUQuotaPeriodUSec": "t 20000", "CPUWeight": "t 20", "IOWeight": "t 300",
		}},
		{"the smallest quota is one", ScopeLimits{MemorySwapMax: Unlimited, CPUQuota: 1}, map[string]string{
			"MemoryMax": none, "MemoryHigh": none, "MemorySwapMax": none, "TasksMax": none,
			"CPUQuotaPerSecUSec": "t 1", "CPUQuotaPeriodUSec": none, "CPUWeight": none, "IOWeight": none,
		}},
	} {
		properties, err := tc.limits.properties()
		if diff := cmp.Diff(tc.want, signed(properties)); err != nil || diff != "" {
			t.Errorf("%s: %v, (-want +got)\n%s", tc.name, err, diff)
		}
	}
	for _, bad := range []ScopeLimits{{CPUQuota: -1}, {CPUPeriod: math.MinInt64}} {
		if _, err := scopeProperties(2, bad); err == nil {
			t.Errorf("%+v has become properties", bad)
		}
	}
}

func TestAScopeIsMadeAroundOneProcess(t *testing.T) {
	t.Parallel()
	properties, err := scopeProperties(4711, ScopeLimits{MemoryMax: 1})
	if err != nil {
		t.Fatal(err)
	}
	got := signed(properties)
	for name, want := range map[string]string{
		"Description": "s A box of boxd", "Slice": "s box.slice", "PIDs": "au [4711]", "Delegate": "b true",
		"KillSignal": "i 9", "TimeoutStopUSec": "t 10000000", "OOMPolicy": "s continue",
		"CollectMode": "s inactive-or-failed", "MemoryMax": "t 1",
	} {
		if got[name] != want {
			t.Errorf("%s is %s, want %s", name, got[name], want)
		}
	}
}

// signed returns the properties with the D-Bus signature of each.
func signed(properties []sd.Property) map[string]string {
	texts := map[string]string{}
	for _, p := range properties {
		texts[p.Name] = fmt.Sprint(p.Value.Signature(), " ", p.Value.Value())
	}
	return texts
}

func TestNamesOfScopesAreNoPatterns(t *testing.T) {
	t.Parallel()
	for _, name := range []string{ScopeName("abc"), "box-a.b_c:d-9.scope", strings.Repeat("a", 249) + ".scope"} {
		if err := checkScopeName(name); err != nil {
			t.Error(err)
		}
	}
	s := NewScopes(t.Context())
	defer s.Close()
	for _, name := range []string{
		"", ".scope", "box", "box-a.service", "box-*.scope", "box-?.scope", "box-[a].scope", `box-\x2d.scope`,
		"box-a/b.scope", "box a.scope", "box-ä.scope", "a@b.scope", strings.Repeat("a", 250) + ".scope",
	} {
		_, err := s.Start(t.Context(), name, 4711, ScopeLimits{})
		for _, err := range []error{err, s.Set(t.Context(), name, ScopeLimits{}), s.Stop(t.Context(), name)} {
			if err == nil || !strings.HasPrefix(err.Error(), "scope name ") {
				t.Errorf(`%q: err = %v, want an error and err starting with "scope name "`, name, err)
			}
		}
	}
	if _, err := s.List(t.Context(), "box*"); err == nil || !strings.HasPrefix(err.Error(), "scope name ") {
		t.Errorf(`a pattern to list: err = %v, want an error and err starting with "scope name "`, err)
	}
	for _, pid := range []int{-1, 0, 1, math.MaxUint32} {
		if _, err := s.Start(t.Context(), "box-a.scope", pid, ScopeLimits{}); err == nil || !strings.Contains(err.Error(), "is not a process id") {
			t.Errorf(`process %d: err = %v, want an error containing "is not a process id"`, pid, err)
		}
	}
	if s.conn != nil {
		t.Error("an invalid pattern was refused only after connecting to D-Bus")
	}
}

func TestErrorsOfTheBusHaveTypes(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]Error{
		"org.freedesktop.systemd1.UnitExists":        ErrScopeExists,
		"org.freedesktop.systemd1.NoSuchUnit":        ErrNoScope,
		"org.freedesktop.DBus.Error.ServiceUnknown":  ErrNoBus,
		"org.freedesktop.DBus.Error.NameHasNoOwner":  ErrNoBus,
		"org.freedesktop.DBus.Error.Disconnected":    ErrNoBus,
		"org.freedesktop.DBus.Error.NoReply":         ErrNoBus,
		"org.freedesktop.DBus.Error.AccessDenied":    "",
		"org.freedesktop.systemd1.TransactionFailed": "",
	} {
		said := dbus.Error{Name: name, Body: []any{"as systemd says it"}}
		err := explain(nil, fmt.Errorf("call: %w", said))
		for _, known := range []Error{ErrNoBus, ErrScopeExists, ErrNoScope} {
			if errors.Is(err, known) != (known == want) {
				t.Errorf("%s: %v is %q, want errors.Is(err, known) == (known == want)", name, err, known)
			}
		}
		if !strings.Contains(err.Error(), "as systemd says it") {
			t.Errorf("%s: %v lacks the message of systemd", name, err)
		}
	}
	for _, err := range []error{io.EOF, dbus.ErrClosed, &net.OpError{Op: "write", Err: syscall.EPIPE}} {
		if got := explain(nil, err); !errors.Is(got, err) || !errors.Is(got, ErrNoBus) {
			t.Errorf("%v has become %v", err, got)
		}
	}
	for _, err := range []error{nil, context.Canceled, context.DeadlineExceeded} {
		if got := explain(nil, err); !errors.Is(got, err) || errors.Is(got, ErrNoBus) {
			t.Errorf("%v has become %v", err, got)
		}
	}
}

func TestWithoutABusEveryCallSaysSo(t *testing.T) {
	t.Parallel()
	dials := 0
	s := NewScopes(t.Context())
	defer s.Close()
	s.dial = func(context.Context) (*connection, error) {
		dials++
		return nil, fmt.Errorf("%w: injected by the test", ErrNoBus)
	}
	_, start := s.Start(t.Context(), "box-a.scope", 4711, ScopeLimits{})
	_, list := s.List(t.Context(), "box-")
	for _, err := range []error{start, list, s.Set(t.Context(), "box-a.scope", ScopeLimits{}), s.Stop(t.Context(), "box-a.scope")} {
		if !errors.Is(err, ErrNoBus) {
			t.Error(err)
		}
	}
	if dials != 4 {
		t.Errorf("it has dialled %d times, not at each of 4 calls", dials)
	}
}

func TestNobodyWaitsLongerThanTheContext(t *testing.T) {
	t.Parallel()
	s := NewScopes(t.Context())
	defer s.Close()
	dialling, hung := make(chan struct{}), make(chan struct{})
	s.dial = func(context.Context) (*connection, error) { close(dialling); <-hung; return nil, ErrNoBus }
	first := make(chan error, 1)
	go func() { first <- s.Stop(t.Context(), "box-a.scope") }()
	<-dialling
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if err := s.Stop(ctx, "box-b.scope"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("behind a dial that hangs: err = %v, want err is context.DeadlineExceeded", err)
	}
	close(hung)
	if err := <-first; !errors.Is(err, ErrNoBus) {
		t.Error(err)
	}
}
