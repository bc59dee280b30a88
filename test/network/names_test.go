// SPDX-License-Identifier: Apache-2.0

package network_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

// zone is a name server of the world whose answers can change at any time.
type zone struct {
	mu      sync.Mutex
	message map[string][]string // addresses of a name, which ends with a dot
	ttl     uint32
	asked   []string
}

// newZone starts a name server outside, at other4.
func newZone(t *testing.T, w *world) *zone {
	t.Helper()
	z := &zone{message: map[string][]string{}, ttl: 60}
	type made struct {
		pc  net.PacketConn
		err error
	}
	ready := make(chan made, 1)
	go func() { // its thread ends with the goroutine
		runtime.LockOSThread()
		if err := unix.Setns(w.there, unix.CLONE_NEWNET); err != nil {
			ready <- made{err: err}
			return
		}
		pc, err := net.ListenPacket("udp4", other4+":53")
		ready <- made{pc, err}
	}()
	m := <-ready
	must(t, m.err)
	done := make(chan struct{})
	t.Cleanup(func() { m.pc.Close(); <-done })
	go func() {
		defer close(done)
		buf := make([]byte, 1500)
		for {
			n, from, err := m.pc.ReadFrom(buf)
			if err != nil {
				return
			}
			if out := z.answer(buf[:n]); out != nil {
				_, _ = m.pc.WriteTo(out, from)
			}
		}
	}()
	return z
}

func (z *zone) set(name string, addresses ...string) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.message[name] = addresses
}

func (z *zone) answer(msg []byte) []byte {
	var m dnsmessage.Message
	if m.Unpack(msg) != nil || len(m.Questions) != 1 {
		return nil
	}
	z.mu.Lock()
	defer z.mu.Unlock()
	q := m.Questions[0]
	name := strings.ToLower(q.Name.String())
	z.asked = append(z.asked, name)
	m.Response = true
	list, ok := z.message[name]
	if !ok {
		m.RCode = dnsmessage.RCodeNameError
	}
	for _, text := range list {
		a := netip.MustParseAddr(text)
		h := dnsmessage.ResourceHeader{Name: q.Name, Class: dnsmessage.ClassINET, TTL: z.ttl}
		switch {
		case a.Is4() && q.Type == dnsmessage.TypeA:
			m.Answers = append(m.Answers, dnsmessage.Resource{Header: h, Body: &dnsmessage.AResource{A: a.As4()}})
		case a.Is6() && q.Type == dnsmessage.TypeAAAA:
			m.Answers = append(m.Answers, dnsmessage.Resource{Header: h, Body: &dnsmessage.AAAAResource{AAAA: a.As16()}})
		}
	}
	out, _ := m.Pack()
	return out
}

func (z *zone) wasQueried(name string) bool {
	z.mu.Lock()
	defer z.mu.Unlock()
	for _, n := range z.asked {
		if strings.Contains(n, name) {
			return true
		}
	}
	return false
}

const byName = "[network]\nresolvers = [\"" + other4 + "\"]\n"

// refused recognizes the errors by which a program sees a refusal.
func refused(said string) bool {
	for _, text := range []string{"Connection refused", "No route to host", "Permission denied", "Network is unreachable", "Operation not permitted"} {
		if strings.Contains(said, text) {
			return true
		}
	}
	return false
}

func unknown(said string) bool {
	return strings.Contains(said, "not known") || strings.Contains(said, "No address associated")
}

func TestABoxReachesNamesAndNothingElse(t *testing.T) {
	w := newWorld(t)
	z := newZone(t, w)
	z.set("www.allowed.example.", public4, public6)
	z.set("a.b.wild.example.", public4)
	z.set("wild.example.", public4)
	z.set("other.example.", other4)
	z.set("rebind.allowed.example.", "10.99.0.1", cloud4, host4)
	z.set("dns.google.", public4)
	d := boxtest.Start(t, byName)
	s := d.NewSession(t, egress("one", "www.allowed.example", "rebind.allowed.example tcp 80", "*.wild.example tcp 80 443", "*.google"))
	if got := strings.Join(s.NetworkRules, ", "); got != "www.allowed.example tcp 80 443, rebind.allowed.example tcp 80, *.wild.example tcp 80 443, *.google tcp 80 443" {
		t.Error(got)
	}
	d.NewSession(t, egress("two", "other.example"))
	if printed := in(t, d, "one", "cat /etc/resolv.conf"); !strings.Contains(printed, "nameserver 127.0.0.1\n") {
		t.Errorf(`resolv.conf: printed = %q, want printed containing "nameserver 127.0.0.1\n"`, printed)
	}
	// No address is reachable before its name was resolved.
	for _, to := range []string{public4, public6, other4} {
		if printed := reach(t, d, "one", to, 80); !refused(printed) {
			t.Errorf("%s, without its name: printed = %q, want refused(printed)", to, printed)
		}
	}
	for _, name := range []string{"www.allowed.example", "WWW.Allowed.Example.", "a.b.wild.example"} {
		for _, port := range []int{80, 443} {
			if printed := reach(t, d, "one", name, port); !strings.HasPrefix(printed, map[int]string{80: "tcp ", 443: "tls "}[port]) {
				t.Errorf(`%s port %d: printed = %q, want printed starting with map[int]string{80: "tcp ", 443: "tls "}[port]`,
					name, port, printed)
			}
		}
	}
	if printed := in(t, d, "one", `python3 -c 'import socket; s = socket.create_connection(("www.allowed.example", 80)); print(s.recv(3).decode())'`); printed != "tcp\n" {
		t.Errorf(`python: printed = %q, want "tcp\n"`, printed)
	}
	for _, name := range []string{"wild.example", "other.example", "evil.www.allowed.example", "dns.google", "nothing.wild.example"} {
		if printed := reach(t, d, "one", name, 80); !unknown(printed) {
			t.Errorf("%s: printed = %q, want unknown(printed)", name, printed)
		}
		if name != "nothing.wild.example" && z.wasQueried(name) && name != "wild.example" {
			t.Errorf("%s was resolved outside", name)
		}
	}
	if printed := reach(t, d, "two", "other.example", 80); !strings.HasPrefix(printed, "tcp ") {
		t.Errorf(`the other box: printed = %q, want printed starting with "tcp "`, printed)
	}
	if printed := reach(t, d, "one", other4, 80); !refused(printed) {
		t.Errorf("a name that another box has resolved: printed = %q, want refused(printed)", printed)
	}
	// Other name servers, and other ports.
	for _, c := range []struct {
		to   string
		port int
	}{{other4, 53}, {public4, 53}, {public4, 853}, {dns4, 53}, {public4, 22}, {"10.99.0.1", 80}, {cloud4, 80}, {host4, 80}} {
		if printed := reach(t, d, "one", c.to, c.port); !refused(printed) {
			t.Errorf("%s port %d: printed = %q, want refused(printed)", c.to, c.port, printed)
		}
	}
	if printed := in(t, d, "one", "exec 3<>/dev/udp/"+other4+"/53; echo x >&3; dd bs=512 count=1 status=none <&3"); !refused(printed) {
		t.Errorf("another name server by UDP: printed = %q, want refused(printed)", printed)
	}
	// A name that resolves to neighbours of the host gets no address, and they are unreachable.
	if printed := reach(t, d, "one", "rebind.allowed.example", 80); strings.HasPrefix(printed, "tcp") {
		t.Errorf(`rebound: printed = %q, want printed not starting with "tcp"`, printed)
	}
	deniedOf(t, d, "one", "the name other.example is allowed by no rule; network_rules with \"other.example\" would allow it", "rebind.allowed.example leads to 10.99.0.1, 169.254.169.254")
}

// deniedOf waits until a session's reports of refusals contain all of these.
func deniedOf(t *testing.T, d *boxtest.Daemon, id string, want ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var heard []string
	all := errors.New("all of it was heard")
	err := d.Events(ctx, client.EventOptions{Session: id, Types: []string{"denied"}, Follow: true}, func(e *api.Event) error {
		heard = append(heard, e.Detail)
		text := strings.Join(heard, "\n")
		for _, w := range want {
			if !strings.Contains(text, w) {
				return nil
			}
		}
		return all
	})
	if !errors.Is(err, all) {
		t.Errorf("%v: want %q in\n%s", err, want, strings.Join(heard, "\n"))
	}
}

// If a profile locks rules by name, a request with fewer rules gets no access to other resolvers.
func TestFewerRulesThanLockedOnesOpenNoResolver(t *testing.T) {
	w := newWorld(t)
	z := newZone(t, w)
	z.set("other.example.", public4)
	d := boxtest.Start(t, boxtest.Lasting+byName, "[profiles.fixed]\nnetwork = \"egress\"\nnetwork_rules = [\"www.allowed.example\", \""+public4+"/32 tcp 80\"]\nlocked = [\"network_rules\"]\n")
	for id, rules := range map[string][]string{"none": {}, "cidr": {public4 + "/32 tcp 80"}} {
		d.NewSession(t, api.SessionRequest{ID: id, Profile: "fixed", NetworkRules: rules})
	}
	d.NewSession(t, api.SessionRequest{ID: "later", Profile: "fixed"})
	_, err := d.ChangeSession(t.Context(), "later", &api.SessionChange{NetworkRules: []string{}})
	must(t, err)
	held := func() {
		t.Helper()
		for _, id := range []string{"none", "cidr", "later"} {
			if got := reach(t, d, id, other4, 53); !refused(got) {
				t.Errorf("%s: the resolver of the network: got %q, want refused(got)", id, got)
			}
			// A boxd that has just started adopts its boxes one after the other.
			boxtest.Eventually(t, "a name is not known in "+id, func() bool { return unknown(reach(t, d, id, "other.example", 80)) })
			if z.wasQueried("other.example") {
				t.Errorf("%s: a name was resolved", id)
			}
		}
	}
	held()
	if got := reach(t, d, "cidr", public4, 80); !strings.HasPrefix(got, "tcp ") {
		t.Errorf(`a rule by cidr: got %q, want got starting with "tcp "`, got)
	}
	d.Kill()
	d.Restart()
	held()
}

// A box may connect to an address it was given for as long as the answer is valid, and existing connections go on after that.
func TestADNSAnswerAllowsItsAddressUntilItExpires(t *testing.T) {
	w := newWorld(t)
	z := newZone(t, w)
	z.ttl = 0
	z.set("www.allowed.example.", public4)
	d := boxtest.Start(t, byName)
	d.NewSession(t, egress("one", "www.allowed.example"))
	said := make(chan string, 1)
	go func() {
		r, err := d.Exec(t.Context(), "one", &api.ExecRequest{Argv: []string{"bash", "-c", `exec 3<>/dev/tcp/www.allowed.example/80 && read -r line <&3 && touch begun && until [ -e over ]; do sleep 0.2; done; printf x >&3 && cat <&3 && echo still "$line"`}, Timeout: new(quantity.Duration(5 * time.Minute))})
		if err != nil {
			said <- err.Error()
			return
		}
		said <- r.Stdout + r.Stderr
	}()
	boxtest.Eventually(t, "the connection is established", func() bool { return in(t, d, "one", "ls begun 2>&1") == "begun\n" })
	if got := reach(t, d, "one", public4, 80); !strings.HasPrefix(got, "tcp ") {
		t.Errorf(`its address at once: got %q, want got starting with "tcp "`, got)
	}
	boxtest.Eventually(t, "the address of the name is no longer reachable", func() bool { return refused(reach(t, d, "one", public4, 80)) })
	in(t, d, "one", "touch over")
	if got := <-said; !strings.HasPrefix(got, "still tcp ") {
		t.Errorf(`a connection of before: got %q, want got starting with "still tcp "`, got)
	}
	if got := reach(t, d, "one", "www.allowed.example", 80); !strings.HasPrefix(got, "tcp ") {
		t.Errorf(`once more by its name: got %q, want got starting with "tcp "`, got)
	}
}

// Name resolution of boxes recovers from the death of the resolver, of boxd and of the keeper.
func TestNamesAreResolvedAgain(t *testing.T) {
	w := newWorld(t)
	z := newZone(t, w)
	z.set("www.allowed.example.", public4)
	d := boxtest.Start(t, boxtest.Lasting+byName)
	d.NewSession(t, egress("one", "www.allowed.example"))
	again := func(after string) {
		t.Helper()
		boxtest.Eventually(t, "after "+after+" names are resolved", func() bool {
			return strings.HasPrefix(reach(t, d, "one", "www.allowed.example", 80), "tcp ")
		})
		if got := reach(t, d, "one", "other.example", 80); !unknown(got) {
			t.Errorf("after %s: got %q, want unknown(got)", after, got)
		}
	}
	again("the start")
	must(t, unix.Kill(program(t, d, "boxnames"), unix.SIGKILL))
	again("the end of the program")
	must(t, unix.Kill(d.Keeper(), unix.SIGKILL))
	again("the end of the keeper")
	d.Kill()
	d.Restart()
	again("the end of boxd")
}

// program finds a child process of boxd.
func program(t *testing.T, d *boxtest.Daemon, name string) (pid int) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	must(t, err)
	for _, path := range all {
		line, _ := os.ReadFile(path)
		status, _ := os.ReadFile(filepath.Dir(path) + "/status")
		first, _, _ := strings.Cut(string(line), "\x00")
		if filepath.Base(first) == name && strings.Contains(string(status), fmt.Sprintf("\nPPid:\t%d\n", d.PID())) {
			if !strings.Contains(string(status), "\nUid:\t65534\t65534\t65534\t65534\n") {
				t.Errorf("%s has privilege:\n%s", name, status)
			}
			pid, err = strconv.Atoi(filepath.Base(filepath.Dir(path)))
			must(t, err)
			return pid
		}
	}
	t.Fatalf("boxd has not started %s", name)
	return 0
}
