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
	"github.com/boxd-dev/boxd/isolation/network"
	"github.com/boxd-dev/boxd/isolation/network/rule"
)

// A package that is removed ends the boxes after their keeper, whose table would stay.
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
	_, err := h.Attach("key", box.Process.Pid, func() bool { return true }, []string{rule.Egress})
	must(t, err)
	h.Close()
	sweep := func(run string) {
		t.Helper()
		if out, err := exec.CommandContext(t.Context(), filepath.Join(boxtest.Programs(t), "boxkeeper"), "sweep", run).CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("%v: %s", err, out)
		}
	}
	sweep("/another")
	if tables, links := tables(t), w.links(); len(tables) != 1 || len(links) != 1 {
		t.Fatalf("of a keeper that has ended, and another's sweep, there are %q, %q", tables, links)
	}
	sweep("/test")
	sweep("/test")
	if tables, links := tables(t), w.links(); len(tables)+len(links) > 0 {
		t.Errorf("left: %q, %q", tables, links)
	}
}

// Rules and pins change under traffic: what they do not let through any more is cut.
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
	alive := func() bool { return true }
	_, err := h.Attach("key", box.Process.Pid, alive, []string{rule.Egress, public4 + "/32 tcp 80"})
	must(t, err)
	defer h.Remove("key")
	space, err := os.Open("/proc/" + strconv.Itoa(box.Process.Pid) + "/ns/net")
	must(t, err)
	defer space.Close()
	inner, err := netlink.NewHandleAt(netns.NsHandle(space.Fd()), unix.NETLINK_ROUTE)
	must(t, err)
	defer inner.Close()
	lo, err := inner.LinkByName("lo") // by which a refusal reaches who has asked
	must(t, err)
	must(t, inner.LinkSetUp(lo))
	dial := func(to string) (net.Conn, error) {
		type result struct {
			c   net.Conn
			err error
		}
		done := make(chan result)
		go func() { // the thread stays there, and ends
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
	do := func(words ...string) []string {
		t.Helper()
		answer, _, err := h.Do("key", box.Process.Pid, alive, words)
		must(t, err)
		return answer
	}
	living, err := dial(public4 + ":80")
	must(t, err)
	defer living.Close()
	if c, err := dial(public4 + ":443"); err == nil {
		c.Close()
		t.Error("a port that no rule has is reached")
	}
	do(network.WordPins, public4+" tcp 443 3600")
	do(network.WordPins, public4+" tcp 443 1", other4+" tcp 443 1")
	if c, err := dial(public4 + ":443"); err != nil {
		t.Errorf("a pin: %v", err)
	} else {
		c.Close()
	}
	boxtest.Eventually(t, "a pin is over", func() bool {
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
	// The next keeper knows the pins from the kernel. Of more than there may be the last ones count.
	next := network.New(rule.Config{Run: "/test", Block4: netip.MustParsePrefix("10.77.0.0/24")}, log.New(io.Discard, "", 0))
	defer next.Close()
	next.Adopt([]string{"key"})
	for i := range 40 {
		words := []string{network.WordPins, public4 + " tcp 443 1"}
		for j := range 250 {
			words = append(words, fmt.Sprintf("13.%d.0.%d tcp 443 600", i, j))
		}
		_, _, err := next.Do("key", box.Process.Pid, alive, words)
		must(t, err)
	}
	_, _, err = next.Do("key", box.Process.Pid, alive, []string{network.WordPins, other4 + " tcp 22 1", other4 + " tcp 443 1"})
	must(t, err)
	for _, again := range []string{" tcp 443 600", " tcp 443 1"} {
		_, _, err = next.Do("key", box.Process.Pid, alive, []string{network.WordPins, other4 + again})
		must(t, err)
	}
	for _, to := range []string{public4, other4} {
		if c, err := dial(to + ":443"); err != nil {
			t.Errorf("%s after many pins: %v", to, err)
		} else {
			c.Close()
		}
	}
	for _, bad := range []string{"169.254.169.254 tcp 80 10", "10.99.0.1 tcp 80 10", public4 + " any 80 10", public4 + " tcp 80-81 10", public4 + " tcp 80 0", public4 + " tcp 80 1e3", "::ffff:11.22.33.44 tcp 80 10"} {
		if _, _, err := h.Do("key", box.Process.Pid, alive, []string{network.WordPins, bad}); err == nil {
			t.Errorf("pin %q is taken", bad)
		}
	}
	look := do(network.WordLook)
	if len(look) != 5 || !strings.HasPrefix(look[0], "10.77.0.") || slices.Contains(look[1:], "0") {
		t.Errorf("look: %q", look)
	}
	boxtest.Eventually(t, "what was refused is known", func() bool {
		said := do(network.WordDenied)
		n, err := strconv.Atoi(said[0])
		must(t, err)
		return n > 0 && slices.ContainsFunc(said[1:], func(s string) bool { return strings.HasPrefix(s, public4+" tcp 443 ") }) &&
			slices.ContainsFunc(said[1:], func(s string) bool { return strings.HasPrefix(s, other4+" tcp 443 ") })
	})
	do(network.WordRules, other4+"/32 tcp 80")
	if said := do(network.WordDenied); said[0] == "0" {
		t.Errorf("a change of rules forgets how much was refused: %q", said)
	}
	must(t, living.SetDeadline(time.Now().Add(time.Minute)))
	boxtest.Eventually(t, "the connection is cut", func() bool {
		_, err := living.Write([]byte("x"))
		return err != nil
	})
	if c, err := dial(public4 + ":443"); err == nil {
		c.Close()
		t.Error("a pin outlives a change of rules")
	}
	// A table that another keeper has made counts nothing, and is replaced all the same.
	c, err := nftables.New(nftables.WithNetNSFd(int(space.Fd())))
	must(t, err)
	c.FlushRuleset()
	must(t, c.Flush())
	if said := do(network.WordDenied); len(said) != 2 || said[0] != "0" || said[1] != "0" {
		t.Errorf("without a table: %q", said)
	}
	do(network.WordRules, other4+"/32 tcp 80")
	if c, err := dial(public4 + ":443"); err == nil {
		c.Close()
		t.Error("a table that was replaced lets through")
	}
	if n := remembered(t, space); n > 100 {
		t.Errorf("the kernel remembers %d connections within a box", n)
	}
	if _, _, err := h.Do("key", box.Process.Pid, alive, []string{network.WordRules, cloud4 + "/32 tcp 80"}); err == nil {
		t.Error("the metadata service can be named where no profile does")
	}
	if _, _, err := h.Do("key", unix.Gettid(), alive, []string{network.WordRules}); err == nil {
		t.Error("the host's own network is taken for a box's")
	}
	// As many rules as there may be, each with as many ports as it may have.
	var most []string
	for i := range rule.Max {
		most = append(most, "13.0."+strconv.Itoa(i)+".0/24 any"+strings.Repeat(" 1000-2000", rule.MaxPorts-1)+" 80")
	}
	do(append([]string{network.WordRules}, append(most[1:], other4+"/32 tcp"+strings.Repeat(" 80", rule.MaxPorts))...)...)
	full, err := dial(other4 + ":80")
	must(t, err)
	defer full.Close()
	flows := func() (n int) {
		list, err := netlink.ConntrackTableList(netlink.ConntrackTable, unix.AF_INET)
		must(t, err)
		for _, f := range list {
			if f.Forward.SrcIP.String() == look[0] {
				n++
			}
		}
		return n
	}
	if flows() == 0 {
		t.Error("the host knows of no connection of the box")
	}
	unsure := network.New(rule.Config{Run: "/test", Block4: netip.MustParsePrefix("10.77.0.0/24")}, log.New(io.Discard, "", 0))
	if unsure.Close(); len(tables(t)) != 1 {
		t.Error("a keeper that knows of no box for certain has removed the host's table")
	}
	h.Remove("key")
	if n := flows(); n > 0 {
		t.Errorf("the host remembers %d connections of a box that is gone", n)
	}
}

// remembered is how many more connections the kernel remembers of a box when it has sent to hundreds of ports of its own.
func remembered(t *testing.T, space *os.File) (more int) {
	t.Helper()
	done := make(chan error)
	go func() { // the thread stays there, and ends
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

// known is how many connections the kernel remembers of the network of the thread.
func known() (int, error) {
	data, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_count")
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(data)))
}
