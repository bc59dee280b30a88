// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"io"
	"log"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/fdpass"
	"github.com/boxd-dev/boxd/isolation"
)

// fakeBoxnet stands in for boxnet: this test binary, started by that name. The key of a request says how it behaves.
func fakeBoxnet() {
	unix.Close(4)
	conn, err := fdpass.FromFD(3, fdpass.MaxInline)
	if err != nil {
		os.Exit(1)
	}
	for {
		body, files, err := conn.Recv(false)
		if errors.Is(err, io.EOF) {
			os.Exit(0)
		}
		fdpass.CloseAll(files)
		number, req, err := isolation.DecodeNetworkRequest(body)
		if err != nil {
			os.Exit(1)
		}
		var reply isolation.KeeperReply = &isolation.Done{}
		switch m := req.(type) {
		case *isolation.AdoptNetworks:
			reply = &isolation.Listed{Keys: m.Keys}
		case *isolation.DetachNetwork:
			if m.Key == "die" {
				os.Exit(1)
			}
		case *isolation.AttachNetwork:
			reply = &isolation.Attached{Resolv: m.Key}
			if len(files) != 1 {
				reply = isolation.NewStepError(isolation.StepNetwork, "no namespace", unix.EBADF)
			}
		}
		if conn.Send(isolation.EncodeKeeperReply(number, reply)) != nil {
			os.Exit(1)
		}
	}
}

// newFakeNetwork is a networkProgram of fakeBoxnet for boxes with these keys.
func newFakeNetwork(t *testing.T, keys ...string) *networkProgram {
	t.Helper()
	exe, err := unix.Open("/proc/self/exe", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	run := t.TempDir()
	if len(keys) > 0 { // an earlier keeper has left something
		if err := os.MkdirAll(filepath.Join(run, isolation.KeeperDir), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(run, isolation.KeeperDir, isolation.NetworkLock), []byte("in use"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p := &networkProgram{
		exe: exe, run: run, args: []string{"boxnet"}, keys: func() []string { return keys }, log: log.New(io.Discard, "", 0),
		stop: make(chan struct{}), linked: map[string]bool{},
	}
	return p
}

// However often the program dies, a request is answered or fails, and the next request finds another process.
func TestNetworkRequestsSurviveADeadBoxnet(t *testing.T) {
	t.Parallel()
	space, err := unix.Open("/proc/self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(space)
	p := newFakeNetwork(t)
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for range 50 {
				key := strings.Repeat("k", i+1)
				resolv, err := p.attach(key, space, &isolation.NetworkSpec{Kind: isolation.NetworkEgress})
				if err == nil && resolv != key || err != nil && !errors.Is(err, errNetworkGone) {
					t.Errorf("the answer to %q is %q, %v, want (an error or resolv == key) and (no error or err is errNetworkGone)",
						key, resolv, err)
				}
				p.detach(key)
			}
		})
	}
	for range 20 {
		if _, _, err := p.request(&isolation.DetachNetwork{Key: "die"}, -1); !errors.Is(err, errNetworkGone) {
			t.Errorf("a process that has died: err = %v, want err is errNetworkGone", err)
		}
	}
	wg.Wait()
	var refused *isolation.StepError
	if _, err := p.attach("x", -1, &isolation.NetworkSpec{}); !errors.As(err, &refused) || refused.Errno != unix.EBADF {
		t.Errorf("a request without its descriptor: err = %v, want errors.As(err, &refused) and refused.Errno == unix.EBADF",
			err)
	}
	p.close()
	if _, _, err := p.request(&isolation.CheckNetwork{}, -1); err == nil {
		t.Error("a request was answered after the end of the program")
	}
}

// A process that boxes need is restarted; one that no box needs ends.
func TestTheNetworkProgramRunsAsLongAsItIsNeeded(t *testing.T) {
	t.Parallel()
	p := newFakeNetwork(t, "a")
	p.adopt()
	first := running(p)
	if first == nil {
		t.Fatal("boxnet does not run although a box needs it")
	}
	first.kill()
	await(t, "boxnet runs again", func() bool { n := running(p); return n != nil && n != first })
	p.detach("a")
	await(t, "boxnet has ended", func() bool { return running(p) == nil })
	p.close()

	idle := newFakeNetwork(t)
	if idle.adopt(); running(idle) != nil {
		t.Error("boxnet runs although no box needs it")
	}
	idle.close()
}

// A program that cannot be executed, or ends at once, is an error, and is tried again until it starts: boxes may have links that
// have to be watched.
func TestANetworkProgramThatDoesNotStart(t *testing.T) {
	t.Parallel()
	p := newFakeNetwork(t, "a")
	exe, err := unix.Open("/bin/false", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Dup3(exe, p.exe, unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	unix.Close(exe)
	p.adopt()
	p.mu.Lock() // it is tried again after a second
	linked := p.linked["a"]
	p.mu.Unlock()
	if !linked {
		t.Error("a box whose link could not be queried is recorded without a link")
	}
	if _, err := p.attach("a", -1, &isolation.NetworkSpec{}); err == nil {
		t.Error("no error though boxnet does not start")
	}
	if c := p.check(); c.Level != isolation.CheckWarn || !strings.Contains(c.Detail, "boxnet") {
		t.Errorf(`the check of doctor is %+v, want c.Level == isolation.CheckWarn and c.Detail containing "boxnet"`, c)
	}
	if exe, err = unix.Open("/proc/self/exe", unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
		t.Fatal(err)
	}
	p.mu.Lock()
	err = unix.Dup3(exe, p.exe, unix.O_CLOEXEC)
	p.mu.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(exe)
	await(t, "boxnet runs once it can start", func() bool { return running(p) != nil })
	p.detach("a")
	p.close()
}

// running is the process that there is.
func running(p *networkProgram) *networkProcess {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.now
}

// await waits until something is true.
func await(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !f(); <-time.After(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("timed out after a minute, waiting until %s", what)
		}
	}
}
