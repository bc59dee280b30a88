// SPDX-License-Identifier: Apache-2.0

package host_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/systemd"
)

// busVariable names the address of the system bus for the D-Bus library.
const busVariable = "DBUS_SYSTEM_BUS_ADDRESS"

// newScopes returns a client, and a context for its calls.
func newScopes(t *testing.T) (*systemd.Scopes, context.Context) {
	t.Helper()
	s := systemd.NewScopes(t.Context())
	t.Cleanup(s.Close)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	t.Cleanup(cancel)
	return s, ctx
}

// startScope starts a scope around a stubborn process.
func startScope(ctx context.Context, t *testing.T, s *systemd.Scopes, name string, limits systemd.ScopeLimits) (group string, ended <-chan syscall.WaitStatus) {
	t.Helper()
	pid, ended := ignoresTerm(t, "")
	path, err := s.Start(ctx, name, pid, limits)
	if err != nil {
		t.Fatal(err)
	}
	if got := boxtest.GroupFile(t, "/proc/"+strconv.Itoa(pid), "cgroup"); got != "0::"+path {
		t.Errorf(`the process is in %s, its scope is %s, want got == "0::" + path`, got, path)
	}
	return filepath.Join(groupMount, path), ended
}

// wantNoTrace checks that systemd has no scope left with a prefix.
func wantNoTrace(ctx context.Context, t *testing.T, s *systemd.Scopes, prefix string) {
	t.Helper()
	if left, err := s.List(ctx, prefix); err != nil || len(left) > 0 {
		t.Errorf("left are %v, %v, want no error and len(left) == 0", left, err)
	}
	if files, _ := filepath.Glob("/run/systemd/transient/" + prefix + "*"); len(files) > 0 {
		t.Errorf("left are %v, want len(files) == 0", files)
	}
	if groups, _ := filepath.Glob(groupMount + "/box.slice/" + prefix + "*"); len(groups) > 0 {
		t.Errorf("left are %v, want len(groups) == 0", groups)
	}
}

func TestScopeHasItsLimitsUntilTheyAreSet(t *testing.T) {
	requireSystemd(t)
	s, ctx := newScopes(t)
	name := systemd.ScopeName("limits")
	group, ended := startScope(ctx, t, s, name, systemd.ScopeLimits{
		MemoryMax: 64 << 20, MemoryHigh: 48 << 20, TasksMax: 50, CPUQuota: 1500 * time.Millisecond,
		CPUPeriod: 20 * time.Millisecond, CPUWeight: 20, IOWeight: 300,
	})
	if want := groupMount + "/box.slice/box-limits.scope"; group != want {
		t.Errorf("its group is %s, want %s", group, want)
	}
	first := map[string]string{
		"memory.max": "67108864", "memory.high": "50331648", "memory.swap.max": "0", "pids.max": "50",
		"cpu.max": "30000 20000", "cpu.weight": "20", "io.weight": "default 300",
	}
	boxtest.GroupHas(t, "at the start", group, first)
	// Cgroups that the keeper creates below are not managed by systemd.
	work := filepath.Join(group, "work")
	if err := os.Mkdir(work, 0o755); err != nil {
		t.Fatal(err)
	}
	writeGroup(t, work, "cgroup.procs", boxtest.GroupFile(t, group, "cgroup.procs"))
	writeGroup(t, group, "cgroup.subtree_control", "+memory +pids")
	below := map[string]string{"memory.max": "33554432", "pids.max": "7"}
	for file, text := range below {
		writeGroup(t, work, file, text)
	}
	boxtest.Systemctl(t, "daemon-reload")
	boxtest.GroupHas(t, "after daemon-reload", group, first)
	boxtest.GroupHas(t, "after daemon-reload, below,", work, below)

	if err := s.Set(ctx, name, systemd.ScopeLimits{MemoryMax: 128 << 20, MemorySwapMax: systemd.Unlimited}); err != nil {
		t.Fatal(err)
	}
	second := map[string]string{
		"memory.max": "134217728", "memory.high": "max", "memory.swap.max": "max", "pids.max": "max",
		"cpu.max": "max 100000", "cpu.weight": "100", "io.weight": "default 100",
	}
	boxtest.GroupHas(t, "after Set", group, second)
	boxtest.Systemctl(t, "daemon-reload")
	boxtest.Systemctl(t, "daemon-reexec")
	boxtest.GroupHas(t, "after Set and daemon-reexec", group, second)
	boxtest.GroupHas(t, "after all of it, below,", work, below)
	if names, err := s.List(ctx, "box-lim"); err != nil || len(names) != 1 || names[0] != name {
		t.Errorf("list: names = %v, err = %v, want no error and len(names) == 1 and names[0] == name", names, err)
	}
	if err := s.Stop(ctx, name); err != nil {
		t.Fatal(err)
	}
	wantKilled(t, ended)
	wantNoTrace(ctx, t, s, "box-limits")
}

func TestTwentyScopesLeaveNone(t *testing.T) {
	requireSystemd(t)
	s, ctx := newScopes(t)
	start := time.Now()
	var lanes sync.WaitGroup
	for lane := range 4 {
		type made struct {
			name string
			pid  int
			done <-chan syscall.WaitStatus
		}
		var all []made
		for round := range 5 {
			pid, ended := ignoresTerm(t, "")
			all = append(all, made{systemd.ScopeName("round-" + strconv.Itoa(lane) + "-" + strconv.Itoa(round)), pid, ended})
		}
		lanes.Go(func() {
			for _, m := range all {
				if _, err := s.Start(ctx, m.name, m.pid, systemd.ScopeLimits{MemoryMax: 64 << 20}); err != nil {
					t.Error(err)
				}
				if err := s.Set(ctx, m.name, systemd.ScopeLimits{TasksMax: 10}); err != nil {
					t.Error(err)
				}
				if err := s.Stop(ctx, m.name); err != nil {
					t.Error(err)
				}
				select {
				case <-m.done:
				case <-ctx.Done():
					t.Errorf("%s is stopped and its process lives", m.name)
				}
			}
		})
	}
	lanes.Wait()
	t.Logf("20 scopes in %v", time.Since(start))
	wantNoTrace(ctx, t, s, "box-round-")
	if failed := boxtest.Systemctl(t, "list-units", "--failed", "--plain", "--no-legend", "box-*"); failed != "" {
		t.Errorf(`failed units: failed = %s, want ""`, failed)
	}
}

func TestScopeRefusals(t *testing.T) {
	requireSystemd(t)
	s, ctx := newScopes(t)
	dead := exec.Command("/bin/true")
	if err := dead.Run(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Start(ctx, "box-dead.scope", dead.Process.Pid, systemd.ScopeLimits{}); err == nil {
		t.Error("a scope has started around a dead process")
	} else {
		t.Log(err)
	}
	wantNoTrace(ctx, t, s, "box-dead")

	pid, _ := ignoresTerm(t, "")
	if _, err := s.Start(ctx, "box-weight.scope", pid, systemd.ScopeLimits{CPUWeight: 10001}); err == nil {
		t.Error("a scope has started with a weight that does not exist")
	} else {
		t.Log(err)
	}
	wantNoTrace(ctx, t, s, "box-weight")

	group, ended := startScope(ctx, t, s, "box-twice.scope", systemd.ScopeLimits{TasksMax: 9})
	if _, err := s.Start(ctx, "box-twice.scope", pid, systemd.ScopeLimits{}); !errors.Is(err, systemd.ErrScopeExists) {
		t.Errorf("a second start: err = %v, want err is systemd.ErrScopeExists", err)
	}
	boxtest.GroupHas(t, "after a second start", group, map[string]string{"pids.max": "9"})
	if err := s.Set(ctx, "box-none.scope", systemd.ScopeLimits{}); !errors.Is(err, systemd.ErrNoScope) {
		t.Errorf("limits of a scope that does not exist: err = %v, want err is systemd.ErrNoScope", err)
	}
	for range 2 { // the second time it is gone
		if err := s.Stop(ctx, "box-twice.scope"); err != nil {
			t.Error(err)
		}
	}
	wantKilled(t, ended)
	// Its name can be used again.
	_, ended = startScope(ctx, t, s, "box-twice.scope", systemd.ScopeLimits{})
	if err := s.Stop(ctx, "box-twice.scope"); err != nil {
		t.Error(err)
	}
	wantKilled(t, ended)
	wantNoTrace(ctx, t, s, "box-twice")
}

func TestScopeEndsWithItsLastProcess(t *testing.T) {
	requireSystemd(t)
	s, ctx := newScopes(t)
	group, _ := startScope(ctx, t, s, "box-last.scope", systemd.ScopeLimits{})
	writeGroup(t, group, "cgroup.kill", "1")
	boxtest.Eventually(t, "the scope is gone", func() bool {
		left, err := s.List(ctx, "box-last")
		return err == nil && len(left) == 0
	})
	if err := s.Stop(ctx, "box-last.scope"); err != nil {
		t.Error(err)
	}
	wantNoTrace(ctx, t, s, "box-last")
}

// Root needs no bus: it reaches systemd through a private socket, which is closed at every daemon-reexec.
func TestScopesWithoutABusForRoot(t *testing.T) {
	requireSystemd(t)
	t.Setenv(busVariable, "unix:path="+filepath.Join(t.TempDir(), "none"))
	s, ctx := newScopes(t)
	for _, key := range []string{"private-1", "private-2"} {
		name := systemd.ScopeName(key)
		_, ended := startScope(ctx, t, s, name, systemd.ScopeLimits{TasksMax: 5})
		boxtest.Systemctl(t, "daemon-reexec")
		retryBus(t, "stop", func() error { return s.Stop(ctx, name) })
		wantKilled(t, ended)
	}
	wantNoTrace(ctx, t, s, "box-private")
}

// retryBus repeats a call while the bus is down, which may only show in a call that fails.
func retryBus(t *testing.T, what string, call func() error) {
	t.Helper()
	boxtest.Eventually(t, what+" reaches systemd", func() bool {
		err := call()
		if err != nil && !errors.Is(err, systemd.ErrNoBus) {
			t.Fatal(err)
		}
		return err == nil
	})
}

func TestScopesWithoutABusSaySo(t *testing.T) {
	if os.Geteuid() == 0 {
		requireSystemd(t)
		cmd := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
		cmd.Dir = "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
			t.Errorf(`as nobody: err = %v, out = %s, want no error and out containing "--- PASS: " + t.Name()`,
				err, out)
		}
		return
	}
	t.Setenv(busVariable, "unix:path=/nonexistent/bus")
	s, ctx := newScopes(t)
	_, start := s.Start(ctx, "box-a.scope", os.Getpid(), systemd.ScopeLimits{})
	_, list := s.List(ctx, "box-")
	for _, err := range []error{start, list, s.Set(ctx, "box-a.scope", systemd.ScopeLimits{}), s.Stop(ctx, "box-a.scope")} {
		if !errors.Is(err, systemd.ErrNoBus) {
			t.Error(err)
		}
	}
}

// relayBus starts a proxy for the system bus, so that a client's connection can be cut without affecting the host. The returned
// function cuts all connections.
func relayBus(t *testing.T) (address string, cut func()) {
	t.Helper()
	path := filepath.Join(boxtest.TempDir(t), "bus")
	ln, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var open []net.Conn
	cut = func() {
		mu.Lock()
		defer mu.Unlock()
		for _, c := range open {
			c.Close()
		}
		open = nil
	}
	var copies sync.WaitGroup
	copies.Go(func() {
		for {
			client, err := ln.Accept()
			if err != nil {
				return
			}
			bus, err := net.Dial("unix", "/run/dbus/system_bus_socket")
			if err != nil {
				t.Error(err)
				client.Close()
				continue
			}
			mu.Lock()
			open = append(open, client, bus)
			mu.Unlock()
			copies.Go(func() { io.Copy(bus, client); bus.Close() })
			copies.Go(func() { io.Copy(client, bus); client.Close() })
		}
	})
	t.Cleanup(func() { ln.Close(); cut(); copies.Wait() })
	return "unix:path=" + path, cut
}

func TestScopesConnectAgainAfterTheBusWasLost(t *testing.T) {
	requireSystemd(t)
	address, cut := relayBus(t)
	t.Setenv(busVariable, address)
	s, ctx := newScopes(t)
	_, ended := startScope(ctx, t, s, "box-relay.scope", systemd.ScopeLimits{})
	for range 3 {
		cut()
		retryBus(t, "set", func() error { return s.Set(ctx, "box-relay.scope", systemd.ScopeLimits{TasksMax: 5}) })
	}
	cut()
	retryBus(t, "stop", func() error { return s.Stop(ctx, "box-relay.scope") })
	wantKilled(t, ended)
	wantNoTrace(ctx, t, s, "box-relay")
	s.Close()
	if _, err := s.List(ctx, "box-"); !errors.Is(err, systemd.ErrNoBus) {
		t.Errorf("after Close: err = %v, want err is systemd.ErrNoBus", err)
	}
}

// A bus that accepts connections and never answers costs a caller no more than its own deadline.
func TestScopesDoNotHangOnASilentBus(t *testing.T) {
	requireSystemd(t)
	path := filepath.Join(boxtest.TempDir(t), "bus")
	ln, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	t.Setenv(busVariable, "unix:path="+path)
	before := goleak.IgnoreCurrent()
	s := systemd.NewScopes(t.Context())
	for range 3 {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		if _, err := s.List(ctx, "box-"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a silent bus: err = %v, want err is context.DeadlineExceeded", err)
		}
		cancel()
	}
	s.Close()
	goleak.VerifyNone(t, before)
}
