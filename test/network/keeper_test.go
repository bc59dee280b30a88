// SPDX-License-Identifier: Apache-2.0

package network_test

import (
	"context"
	"io"
	"log"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/isolation/network"
	"github.com/boxd-dev/boxd/isolation/network/rule"
)

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
	h := network.New(rule.Config{Run: "/test", Block4: netip.MustParsePrefix("10.77.0.0/24")}, log.New(io.Discard, "", 0))
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
	do(network.WordPins, public4+" tcp 443 3600", other4+" tcp 443 1")
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
	for _, bad := range []string{"169.254.169.254 tcp 80 10", "10.99.0.1 tcp 80 10", public4 + " any 80 10", public4 + " tcp 80-81 10", public4 + " tcp 80 0", public4 + " tcp 80 1e3", "::ffff:11.22.33.44 tcp 80 10"} {
		if _, _, err := h.Do("key", box.Process.Pid, alive, []string{network.WordPins, bad}); err == nil {
			t.Errorf("pin %q is taken", bad)
		}
	}
	look := do(network.WordLook)
	if len(look) != 5 || look[0] != "10.77.0.1" || slices.Contains(look[1:], "0") {
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
	if _, _, err := h.Do("key", box.Process.Pid, alive, []string{network.WordRules, cloud4 + "/32 tcp 80"}); err == nil {
		t.Error("the metadata service can be named where no profile does")
	}
	if _, _, err := h.Do("key", unix.Gettid(), alive, []string{network.WordRules}); err == nil {
		t.Error("the host's own network is taken for a box's")
	}
}
