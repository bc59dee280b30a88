// SPDX-License-Identifier: Apache-2.0

package network_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/network"
	"github.com/boxd-dev/boxd/isolation/network/rule"
)

// Removing the package ends the boxes after their keeper; its tables and links are left to a sweep, which touches no other keeper's.
func TestASweepRemovesWhatIsNobodys(t *testing.T) {
	w := newWorld(t)
	box := exec.CommandContext(t.Context(), "sleep", "1000")
	box.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
	must(t, box.Start())
	defer func() {
		_ = box.Process.Kill()
		_ = box.Wait()
	}()
	h := network.New(rule.Config{Run: "/test", Block4: netip.MustParsePrefix("10.77.0.0/24")}, log.New(io.Discard, "", 0))
	_, err := h.Attach(&network.Box{Key: "key", Space: netnsOf(t, box.Process.Pid)}, byRules())
	must(t, err)
	h.Close()
	sweep := func(run string) {
		t.Helper()
		if out, err := exec.CommandContext(t.Context(), filepath.Join(boxtest.Programs(t), "boxnet"), "sweep", run).CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("%v: out = %s, want no error and len(out) == 0", err, out)
		}
	}
	sweep("/another")
	if tables, links := tables(t), w.links(); len(tables) != 1 || len(links) != 1 {
		t.Fatalf("of a keeper that has ended, and another's sweep, there are %q, %q, want len(tables) == 1 and len(links) == 1",
			tables, links)
	}
	sweep("/test")
	sweep("/test")
	if tables, links := tables(t), w.links(); len(tables)+len(links) > 0 {
		t.Errorf("left: tables = %q, links = %q, want len(tables) + len(links) == 0", tables, links)
	}
}

// Rules and pins can change during traffic: connections that they no longer allow are cut.
func TestAChangeOfRulesCutsConnections(t *testing.T) {
	newWorld(t)
	box := exec.CommandContext(t.Context(), "sleep", "1000")
	box.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
	must(t, box.Start())
	defer func() {
		_ = box.Process.Kill()
		_ = box.Wait()
	}()
	h := network.New(rule.Config{Run: "/test", Block4: netip.MustParsePrefix("10.77.0.0/24"), Caps: rule.Caps{Connections: 100}}, log.New(io.Discard, "", 0))
	defer h.Close()
	of := &network.Box{Key: "key", Space: netnsOf(t, box.Process.Pid)}
	_, err := h.Attach(of, byRules(public4+"/32 tcp 80"))
	must(t, err)
	defer h.Remove("key")
	space, err := os.Open("/proc/" + strconv.Itoa(box.Process.Pid) + "/ns/net")
	must(t, err)
	defer space.Close()
	inner, err := netlink.NewHandleAt(netns.NsHandle(space.Fd()), unix.NETLINK_ROUTE)
	must(t, err)
	defer inner.Close()
	lo, err := inner.LinkByName("lo") // refusals reach the caller through it
	must(t, err)
	must(t, inner.LinkSetUp(lo))
	dial := func(to string) (net.Conn, error) {
		type result struct {
			c   net.Conn
			err error
		}
		done := make(chan result)
		go func() { // the thread stays in that namespace, and ends with the goroutine
			runtime.LockOSThread()
			r := result{err: unix.Setns(int(space.Fd()), unix.CLONE_NEWNET)}
			if r.err == nil {
				r.c, r.err = new(net.Dialer).DialContext(context.Background(), "tcp4", to)
			}
			done <- r
		}()
		r := <-done
		return r.c, r.err
	}
	refused := func() *isolation.Refusals {
		t.Helper()
		r, err := h.Refusals(of)
		must(t, err)
		return r
	}
	setRules := func(rules ...string) {
		t.Helper()
		_, err := h.SetRules(of, byRules(rules...))
		must(t, err)
	}
	living, err := dial(public4 + ":80")
	must(t, err)
	defer living.Close()
	if c, err := dial(public4 + ":443"); err == nil {
		c.Close()
		t.Error("a port without a rule is reached")
	}
	must(t, h.Pin(of, []isolation.Pin{pin(public4+":443", 3600)}))
	must(t, h.Pin(of, []isolation.Pin{pin(public4+":443", 1), pin(other4+":443", 1)}))
	if c, err := dial(public4 + ":443"); err != nil {
		t.Errorf("a pin: %v", err)
	} else {
		c.Close()
	}
	boxtest.Eventually(t, "the allowed address has expired", func() bool {
		c, err := dial(other4 + ":443")
		if err == nil {
			c.Close()
		}
		return err != nil
	})
	if c, err := dial(public4 + ":443"); err != nil {
		t.Errorf("a pin is over with a shorter one of the same address: %v", err)
	} else {
		c.Close()
	}
	// The next keeper reads the pins from the kernel. If there are more than the maximum, the last ones count.
	next := network.New(rule.Config{Run: "/test", Block4: netip.MustParsePrefix("10.77.0.0/24")}, log.New(io.Discard, "", 0))
	defer next.Close()
	_, err = next.Adopt([]string{"key"})
	must(t, err)
	for i := range 40 {
		pins := []isolation.Pin{pin(public4+":443", 1)}
		for j := range isolation.MaxPins - 1 {
			pins = append(pins, pin(fmt.Sprintf("13.%d.0.%d:443", i, j), 600))
		}
		must(t, next.Pin(of, pins))
	}
	must(t, next.Pin(of, []isolation.Pin{pin(other4+":22", 1), pin(other4+":443", 1)}))
	for _, seconds := range []uint32{600, 1} {
		must(t, next.Pin(of, []isolation.Pin{pin(other4+":443", seconds)}))
	}
	for _, to := range []string{public4, other4} {
		if c, err := dial(to + ":443"); err != nil {
			t.Errorf("%s after many pins: %v", to, err)
		} else {
			c.Close()
		}
	}
	for _, bad := range []isolation.Pin{
		pin("169.254.169.254:80", 10), pin("10.99.0.1:80", 10), pin(public4+":0", 10), pin(public4+":80", 0), pin(public4+":80", 3601), pin("[::ffff:11.22.33.44]:80", 10), {Seconds: 10},
	} {
		if err := h.Pin(of, []isolation.Pin{bad}); err == nil {
			t.Errorf("the invalid allow-set entry %+v was accepted", bad)
		}
	}
	if err := h.Pin(of, slices.Repeat([]isolation.Pin{pin(public4+":443", 1)}, isolation.MaxPins+1)); err == nil {
		t.Error("no error for more entries than fit a netlink message")
	}
	traffic, err := h.Traffic("key")
	must(t, err)
	if r, s := traffic.Received, traffic.Sent; len(traffic.Addresses) != 1 || r.Bytes == 0 || r.Packets == 0 || s.Bytes == 0 || s.Packets == 0 {
		t.Fatalf("traffic: traffic = %+v, want len(traffic.Addresses) == 1 and r.Bytes != 0 and r.Packets != 0 and s.Bytes != 0 and s.Packets != 0",
			traffic)
	}
	own, _ := netip.AddrFromSlice(traffic.Addresses[0])
	if !strings.HasPrefix(own.String(), "10.77.0.") {
		t.Errorf(`address: own = %v, want own.String() starting with "10.77.0."`, own)
	}
	boxtest.Eventually(t, "the refused packets are counted", func() bool {
		all := refused()
		to := func(want string) bool {
			return slices.ContainsFunc(all.Lately, func(d isolation.RefusedDestination) bool {
				return reflect.DeepEqual(d.To, pin(want, 0).To) && !d.UDP && d.Packets > 0
			})
		}
		return all.Packets > 0 && to(public4+":443") && to(other4+":443")
	})
	setRules(other4 + "/32 tcp 80")
	if all := refused(); all.Packets == 0 {
		t.Errorf("a change of rules forgets how much was refused: all = %+v, want all.Packets != 0", all)
	}
	must(t, living.SetDeadline(time.Now().Add(time.Minute)))
	boxtest.Eventually(t, "the connection is cut", func() bool {
		_, err := living.Write([]byte("x"))
		return err != nil
	})
	if c, err := dial(public4 + ":443"); err == nil {
		c.Close()
		t.Error("an address allowed by the earlier rules is still reached")
	}
	// Without its table a box has no counters, and gets a new table with the next rules.
	c, err := nftables.New(nftables.WithNetNSFd(int(space.Fd())))
	must(t, err)
	c.FlushRuleset()
	must(t, c.Flush())
	if all := refused(); all.Packets != 0 || all.Crowded != 0 || len(all.Lately) > 0 {
		t.Errorf("without a table: all = %+v, want all.Packets == 0 and all.Crowded == 0 and len(all.Lately) == 0", all)
	}
	setRules(other4 + "/32 tcp 80")
	if c, err := dial(public4 + ":443"); err == nil {
		c.Close()
		t.Error("a destination of the replaced nftables table is still reached")
	}
	if n := remembered(t, space); n > 100 {
		t.Errorf("the kernel remembers %d connections within a box", n)
	}
	for what, bad := range map[string]*isolation.NetworkSpec{
		"the metadata service, which no profile names": byRules(cloud4 + "/32 tcp 80"),
		"no network":                   {},
		"that of the host":             {Kind: isolation.NetworkHost},
		"looking at no rules by name":  {Kind: isolation.NetworkEgress, Strict: true},
		"names of no rules":            {Kind: isolation.NetworkEgress, NamesOnly: true},
		"rules by name without a word": {Kind: isolation.NetworkEgress, Names: 7},
		"many connections":             {Kind: isolation.NetworkEgress, Connections: rule.MaxConnections + 1},
		"little bandwidth":             {Kind: isolation.NetworkEgress, Bandwidth: rule.LeastBandwidth - 1},
	} {
		if _, err := h.SetRules(of, bad); err == nil {
			t.Errorf("rules were accepted that are %s, want an error", what)
		}
	}
	if _, err := h.SetRules(&network.Box{Key: "key", Space: netnsOf(t, unix.Gettid())}, byRules()); err == nil {
		t.Error("no error for the network namespace of the host")
	}
	// The maximum number of rules, each with the maximum number of ports.
	var most []string
	for i := range rule.Max {
		most = append(most, "13.0."+strconv.Itoa(i)+".0/24 any"+strings.Repeat(" 1000-2000", rule.MaxPorts-1)+" 80")
	}
	setRules(append(most[1:], other4+"/32 tcp"+strings.Repeat(" 80", rule.MaxPorts))...)
	full, err := dial(other4 + ":80")
	must(t, err)
	defer full.Close()
	flows := func() (n int) {
		list, err := netlink.ConntrackTableList(netlink.ConntrackTable, unix.AF_INET)
		must(t, err)
		for _, f := range list {
			if f.Forward.SrcIP.String() == own.String() {
				n++
			}
		}
		return n
	}
	if flows() == 0 {
		t.Error("connection tracking of the host has no connection of the box")
	}
	unsure := network.New(rule.Config{Run: "/test", Block4: netip.MustParsePrefix("10.77.0.0/24")}, log.New(io.Discard, "", 0))
	if unsure.Close(); len(tables(t)) != 1 {
		t.Error("a keeper that does not know all boxes has removed the nftables table of the host")
	}
	h.Remove("key")
	if n := flows(); n > 0 {
		t.Errorf("connection tracking has %d connections of a removed box", n)
	}
}

// byRules returns a network with CIDR rules.
func byRules(rules ...string) *isolation.NetworkSpec {
	return &isolation.NetworkSpec{Kind: isolation.NetworkEgress, Rules: rules}
}

// pin returns a TCP pin.
func pin(to string, seconds uint32) isolation.Pin {
	p := netip.MustParseAddrPort(to)
	return isolation.Pin{To: isolation.Endpoint{Address: p.Addr().AsSlice(), Port: p.Port()}, Seconds: seconds}
}

// remembered returns by how many conntrack entries a box grows when it sends to hundreds of its own ports.
func remembered(t *testing.T, space *os.File) (more int) {
	t.Helper()
	done := make(chan error)
	go func() { // the thread stays in that namespace, and ends with the goroutine
		runtime.LockOSThread()
		err := unix.Setns(int(space.Fd()), unix.CLONE_NEWNET)
		before, err2 := known()
		for port := 20000; port < 20300 && err == nil; port++ {
			var c net.Conn
			if c, err = new(net.Dialer).DialContext(context.Background(), "udp4", "127.0.0.1:"+strconv.Itoa(port)); err == nil {
				_, _ = c.Write([]byte("x"))
				c.Close()
			}
		}
		after, err3 := known()
		more = after - before
		done <- errors.Join(err, err2, err3)
	}()
	must(t, <-done)
	return more
}

// known returns the number of conntrack entries in the thread's network namespace.
func known() (int, error) {
	data, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_count")
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(data)))
}

// netnsOf opens the network namespace of a process until the end of the test.
func netnsOf(t *testing.T, pid int) *os.File {
	t.Helper()
	space, err := os.Open("/proc/" + strconv.Itoa(pid) + "/ns/net")
	must(t, err)
	t.Cleanup(func() { space.Close() })
	return space
}
