// SPDX-License-Identifier: Apache-2.0

package network_test

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

// shut reports whether a connection was refused at once.
func shut(said string) bool {
	for _, why := range []string{"Connection refused", "No route to host", "Permission denied", "Network is unreachable"} {
		if strings.Contains(said, why) {
			return true
		}
	}
	return false
}

func TestRulesHoldForEveryProgram(t *testing.T) {
	newWorld(t)
	d := boxtest.Start(t, configuration)
	for id, c := range map[string]struct {
		rules      []string
		open, shut []string // addresses and ports
	}{
		"nothing": {[]string{}, nil, []string{public4 + " 80", public6 + " 80", other4 + " 443"}},
		"port":    {[]string{public4 + "/32 tcp 443"}, []string{public4 + " 443"}, []string{public4 + " 80", other4 + " 443", public6 + " 443"}},
		"range":   {[]string{"11.22.33.0/24 any 79-81", "2a00:1111::/32"}, []string{public4 + " 80", other4 + " 80", public6 + " 443"}, []string{public4 + " 443", cloud4 + " 80"}},
	} {
		req := egress(id)
		req.NetworkRules = c.rules
		d.NewSession(t, req)
		for _, to := range c.open {
			if printed := reachText(t, d, id, to); !strings.HasPrefix(printed, "t") {
				t.Errorf(`%s: to = %s, printed = %q, want printed starting with "t"`, id, to, printed)
			}
		}
		for _, to := range c.shut {
			if printed := reachText(t, d, id, to); !shut(printed) {
				t.Errorf("%s: to = %s, printed = %q, want shut(printed)", id, to, printed)
			}
		}
	}
	if printed := in(t, d, "range", "exec 3<>/dev/udp/"+public4+"/80; echo x >&3; dd bs=512 count=1 status=none <&3"); !strings.HasPrefix(printed, "udp "+host4) {
		t.Errorf(`UDP with a rule: printed = %q, want printed starting with "udp " + host4`, printed)
	}
}

func reachText(t *testing.T, d *boxtest.Daemon, id, to string) string {
	t.Helper()
	a, port, _ := strings.Cut(to, " ")
	n := 0
	_, _ = fmt.Sscan(port, &n)
	return reach(t, d, id, a, n)
}

func TestWhatAProfileNamesIsReached(t *testing.T) {
	newWorld(t)
	d := boxtest.Start(t, configuration, "[profiles.open]\nnetwork = \"egress\"\nnetwork_rules = [\"10.99.0.1/32 tcp 80\", \"11.22.33.0/24\"]\n")
	d.NewSession(t, api.SessionRequest{ID: "named", Profile: "open"})
	if printed := reach(t, d, "named", "10.99.0.1", 80); !strings.HasPrefix(printed, "tcp") {
		t.Errorf(`an address that a rule names: printed = %q, want printed starting with "tcp"`, printed)
	}
	for _, to := range []string{"10.99.0.1 443", "172.20.0.1 80", cloud4 + " 80"} {
		if printed := reachText(t, d, "named", to); !shut(printed) {
			t.Errorf("%s: printed = %q, want shut(printed)", to, printed)
		}
	}
	for _, bad := range []string{"10.99.0.0/16 tcp 80", "169.254.169.254/32 tcp 80", "10.99.0.1/32 tcp 443"} {
		_, _, err := d.CreateSession(t.Context(), &api.SessionRequest{ID: "more", Profile: "open", NetworkRules: []string{bad}})
		if e := problem(t, err); e.Status != 403 || e.Field != "network_rules[0]" {
			t.Errorf(`%s: err = %v, want e.Status == 403 and e.Field == "network_rules[0]"`, bad, err)
		}
	}
	// The host's table knows the named address, but a box without that rule cannot reach it.
	d.NewSession(t, egress("usual"))
	if printed := reach(t, d, "usual", "10.99.0.1", 80); !shut(printed) {
		t.Errorf("an address that no rule names: printed = %q, want shut(printed)", printed)
	}
}

func problem(t *testing.T, err error) *client.Error {
	t.Helper()
	e, ok := err.(*client.Error) //nolint:errorlint // it is what the client returns
	if !ok {
		t.Fatalf("%v is no answer of boxd", err)
	}
	return e
}

// A program may bind to an address that its box does not have: with IPv6 the kernel permits it.
func TestABoxSendsFromItsOwnAddressAlone(t *testing.T) {
	boxtest.RequireProgram(t, "python3")
	newWorld(t)
	d := boxtest.Start(t, configuration)
	req := egress("one")
	req.NetworkRules = []string{"0.0.0.0/0 any", "::/0 any"}
	d.NewSession(t, req)
	script := func(family, own, to string, seconds int) string { // to wait for an answer
		return fmt.Sprintf(`python3 - <<'E'
import socket
s = socket.socket(socket.%s, socket.SOCK_DGRAM)
s.setsockopt(0, 15, 1)
try:
    s.setsockopt(41, 78, 1)
except OSError: pass
s.bind((%q, 4444))
s.settimeout(%d)
try:
    s.sendto(b"x", (%q, 80))
    print("sent")
    print("answer", s.recvfrom(100))
except OSError as e: print("no", e)
E`, family, own, seconds, to)
	}
	if printed := in(t, d, "one", script("AF_INET", "0.0.0.0", public4, 20)); !strings.Contains(printed, "answer") {
		t.Errorf(`from its own: printed = %q, want printed containing "answer"`, printed)
	}
	for own, to := range map[string]string{"11.22.33.99": public4, "45.33.0.9": public4} {
		if printed := in(t, d, "one", script("AF_INET", own, to, 3)); strings.Contains(printed, "answer") {
			t.Errorf(`from %s: printed = %q, want printed without "answer"`, own, printed)
		}
	}
	before := dropped(t)
	printed := in(t, d, "one", script("AF_INET6", "2a00:1111::99", public6, 3))
	if strings.Contains(printed, "sent") && dropped(t) <= before {
		t.Errorf("from an address of others by IPv6: %q, and the host has not dropped it", printed)
	}
	for _, kind := range []string{"AF_INET,socket.SOCK_RAW,1", "AF_INET6,socket.SOCK_RAW,58", "AF_PACKET,socket.SOCK_RAW,0", "AF_INET,socket.SOCK_RAW,4"} {
		if printed := in(t, d, "one", "python3 -c 'import socket; socket.socket(socket."+kind+")'"); !strings.Contains(printed, "Operation not permitted") {
			t.Errorf(`%s: printed = %q, want printed containing "Operation not permitted"`, kind, printed)
		}
	}
}

// The kernel has one table for the neighbours of all networks, including the host's. A program may send its packets as if every
// address were on its link, which creates an entry for each: so such packets are refused.
func TestABoxMakesNoNeighbours(t *testing.T) {
	boxtest.RequireProgram(t, "python3")
	newWorld(t)
	d := boxtest.Start(t, configuration)
	req := egress("one")
	req.NetworkRules = []string{"0.0.0.0/0 any", "::/0 any"}
	s := d.NewSession(t, req)
	others := regexp.MustCompile(`^(11\.22\.|2a00:1111:|fe80::10|ff02::10)`)
	for _, when := range []string{"at first", "with other rules"} {
		printed := in(t, d, "one", sendStraight)
		if list := slices.DeleteFunc(neighbours(t, int(s.PID)), func(n string) bool { return !others.MatchString(n) }); len(list) > 0 || !strings.Contains(printed, "tried") {
			t.Errorf(`%s: %d neighbours, by %q: list = %q, want len(list) == 0 and printed containing "tried"`,
				when, len(list), printed, list)
		}
		if printed := reach(t, d, "one", public4, 80); !strings.HasPrefix(printed, "tcp") {
			t.Errorf(`%s: a name that the rules allow: printed = %q, want printed starting with "tcp"`, when, printed)
		}
		_, err := d.ChangeSession(t.Context(), "one", &api.SessionChange{NetworkRules: []string{"11.0.0.0/8 any"}})
		must(t, err)
	}
}

// sendStraight sends to many addresses with SO_DONTROUTE, and by each way to name a link: SO_BINDTODEVICE, IP_PKTINFO, IP_UNICAST_IF.
const sendStraight = `python3 - <<'E'
import socket, struct
index = socket.if_nametoindex("eth0")
def udp(family, *options):
    s = socket.socket(family, socket.SOCK_DGRAM)
    for o in options:
        try: s.setsockopt(*o)
        except OSError: pass
    return s
bind, straight = (socket.SOL_SOCKET, 25, b"eth0"), (socket.SOL_SOCKET, 5, 1)
unicast = (socket.IPPROTO_IP, 50, struct.pack("!I", index))
info = [(socket.IPPROTO_IP, 8, struct.pack("=i4s4s", index, b"", b""))]
for n, (options, more) in enumerate([((bind, straight), []), ((unicast, straight), []), ((straight,), info), ((bind,), []), ((straight,), [])]):
    for i in range(1, 20):
        s = udp(socket.AF_INET, *options)
        try: s.sendmsg([b"x"], more, 0, ("11.22.%d.%d" % (100 + n, i), 80))
        except OSError: pass
        s = udp(socket.AF_INET6, *options[:1])
        for to in ("2a00:1111::%d:%d" % (100 + n, i), "fe80::%d:%d" % (100 + n, i), "ff02::%d:%d" % (100 + n, i)):
            try: s.sendto(b"x", 0, (to, 80, 0, index))
            except OSError: pass
for i in range(1, 20):
    s = socket.socket()
    s.setsockopt(*bind)
    s.setsockopt(*straight)
    s.setblocking(False)
    s.connect_ex(("11.22.90.%d" % i, 80))
print("tried")
E`

// neighbours lists the kernel's neighbour entries in the network of a process, as text.
func neighbours(t *testing.T, pid int) (list []string) {
	t.Helper()
	space, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", pid))
	must(t, err)
	defer space.Close()
	h, err := netlink.NewHandleAt(netns.NsHandle(space.Fd()), unix.NETLINK_ROUTE)
	must(t, err)
	defer h.Close()
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		all, err := h.NeighList(0, family)
		must(t, err)
		for _, n := range all {
			list = append(list, n.String())
		}
	}
	return list
}

func TestNothingIsLeftOfANetwork(t *testing.T) {
	w := newWorld(t)
	d := boxtest.Start(t, configuration)
	d.Warm()
	before := d.Look()
	s := d.NewSession(t, egress("killed"))
	d.NewSession(t, egress("deleted"))
	if n := len(w.links()); n != 2 {
		t.Errorf("%d links of two boxes", n)
	}
	p, err := os.FindProcess(int(s.PID))
	must(t, err)
	must(t, p.Kill())
	must(t, d.DeleteSession(t.Context(), "deleted"))
	boxtest.Eventually(t, "no link is left", func() bool { return len(w.links()) == 0 })
	_ = d.DeleteSession(t.Context(), "killed")
	// A failed start removes its network.
	_, _, err = d.CreateSession(t.Context(), &api.SessionRequest{ID: "never", Profile: "network_basic", Mounts: []api.Mount{{Source: "/proc/1/gone", Target: "/mnt"}}})
	if err == nil || len(w.links()) > 0 {
		t.Errorf("%v; left: w.links() = %q, want an error and len(w.links()) == 0", err, w.links())
	}
	d.NothingLeft(before)
	d.Stop()
	boxtest.Eventually(t, "the nftables table of the ended keeper is removed", func() bool { return len(tables(t)) == 0 }) // maybe after boxd
}

func TestANetworkOutlivesKeeperAndBoxd(t *testing.T) {
	w := newWorld(t)
	d := boxtest.Start(t, boxtest.Lasting, configuration)
	d.NewSession(t, egress("one"))
	d.NewSession(t, egress("two"))
	works := func(when string) {
		t.Helper()
		if printed := reach(t, d, "one", public4, 80); !strings.HasPrefix(printed, "tcp") {
			t.Errorf(`%s: printed = %q, want printed starting with "tcp"`, when, printed)
		}
		if printed := reach(t, d, "one", cloud4, 80); !shut(printed) {
			t.Errorf("%s: the metadata service: printed = %q, want shut(printed)", when, printed)
		}
	}
	works("at first")
	// All tables of the host are removed: the keeper notices that and restores its own.
	flush(t)
	boxtest.Eventually(t, "the nftables table exists again", func() bool { return len(tables(t)) == 1 })
	works("after the table was removed")
	d.Kill()
	d.Restart()
	works("after boxd was killed")
	// The next keeper finds a link that belongs to no box.
	stray := netlink.NewLinkAttrs()
	stray.Name = w.links()[0][:6] + "stray"
	must(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: stray, PeerName: "stray"}))
	foreign := netlink.NewLinkAttrs()
	foreign.Name = "bx____foreign"
	must(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: foreign, PeerName: "foreign"}))
	keeper := d.Keeper()
	p, err := os.FindProcess(keeper)
	must(t, err)
	must(t, p.Kill())
	boxtest.Eventually(t, "another keeper runs", func() bool { return d.Keeper() != keeper })
	boxtest.Eventually(t, "the stray link is gone", func() bool { return len(w.links()) == 3 })
	works("after the keeper was killed")
	d.NewSession(t, egress("three"))
	for _, id := range []string{"one", "two", "three"} {
		must(t, d.DeleteSession(t.Context(), id))
	}
	if left := w.links(); len(left) != 1 || left[0] != foreign.Name {
		t.Errorf("left: %q, want only the tables and links of others", left)
	}
}

func TestWhatTheHostCannotDoIsRefusedByName(t *testing.T) {
	w := newWorld(t)
	d := boxtest.Start(t, "[network]\nipv4 = \"10.200.0.0/30\"\nresolvers = [\""+dns4+"\"]\n")
	refused := func(status int, words ...string) {
		t.Helper()
		_, _, err := d.CreateSession(t.Context(), &api.SessionRequest{ID: "no", Profile: "network_basic"})
		e := problem(t, err)
		for _, word := range words {
			if !strings.Contains(e.Detail, word) {
				t.Errorf("%q does not say %q", e.Detail, word)
			}
		}
		if e.Status != status || e.Field != "network" || len(w.links()) > 2 {
			t.Errorf("%v, links %q", err, w.links())
		}
	}
	doctor := func(word string) {
		t.Helper()
		checks, err := d.Doctor(t.Context())
		must(t, err)
		for _, c := range checks.Checks {
			if c.Name == "box network" {
				if !strings.Contains(c.Detail, word) {
					t.Errorf("the check of boxctl doctor is %q, want %q", c.Detail, word)
				}
				return
			}
		}
		t.Error("boxctl doctor has no check of networks")
	}
	doctor("available, with addresses from 10.200.0.0/30")
	w.forward("0")
	refused(501, "IP forwarding is off", "up0")
	doctor("IP forwarding is off")
	w.forward("1")
	up, err := netlink.LinkByName("up0")
	must(t, err)
	taken, err := netlink.ParseAddr("10.200.0.2/31")
	must(t, err)
	must(t, netlink.AddrAdd(up, taken))
	refused(501, "10.200.0.0/30", "10.200.0.2/31", "up0")
	doctor("has a route to")
	must(t, netlink.AddrDel(up, taken))
	d.NewSession(t, egress("one"))
	d.NewSession(t, egress("two"))
	refused(429, "all are in use", "2 boxes")
	must(t, d.DeleteSession(t.Context(), "one"))
	d.NewSession(t, egress("three"))
}

func TestManyAtOnce(t *testing.T) {
	w := newWorld(t)
	d := boxtest.Start(t, configuration, "[profiles.ready]\nnetwork = \"egress\"\nwarm = 2\n")
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			req := egress(fmt.Sprintf("s%d", i))
			if i%4 == 0 {
				req = api.SessionRequest{ID: req.ID, Profile: "ready"}
			}
			if _, _, err := d.CreateSession(t.Context(), &req); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	known := map[string]bool{}
	for i := range 20 {
		id := fmt.Sprintf("s%d", i)
		if printed := reach(t, d, id, public4, 80); !strings.HasPrefix(printed, "tcp") {
			t.Errorf(`%s: printed = %q, want printed starting with "tcp"`, id, printed)
		}
		own := in(t, d, id, "exec 3<>/dev/tcp/"+public4+"/80; cat /proc/net/tcp | awk 'NR==2{print $2}' | cut -d: -f1")
		if known[own] {
			t.Errorf("%s has the address of another: %s", id, own)
		}
		known[own] = true
	}
	for i := range 20 {
		wg.Go(func() {
			if err := d.DeleteSession(t.Context(), fmt.Sprintf("s%d", i)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	boxtest.Eventually(t, "only the links of preforked boxes are left", func() bool { return len(w.links()) <= 2 })
}
