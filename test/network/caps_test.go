// SPDX-License-Identifier: Apache-2.0

package network_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/isolation/network"
	"github.com/boxd-dev/boxd/limits"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
)

const (
	echoed    = 384 << 10 // bytes that an echo receives before it sends them back
	bandwidth = 128 << 10 // of a box, in bytes per second
)

// newEcho starts a server outside: it receives a fixed number of bytes from each client, and then sends as many. The channel gets
// the time between.
func newEcho(t *testing.T, w *world) <-chan time.Time {
	t.Helper()
	turned := make(chan time.Time, 16)
	ready := make(chan error, 1)
	var l net.Listener
	go func() { // its thread ends with the goroutine
		runtime.LockOSThread()
		err := unix.Setns(w.there, unix.CLONE_NEWNET)
		if err == nil {
			l, err = new(net.ListenConfig).Listen(context.Background(), "tcp4", public4+":7777")
		}
		ready <- err
	}()
	must(t, <-ready)
	done := make(chan struct{})
	t.Cleanup(func() { l.Close(); <-done })
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			if n, _ := io.CopyN(io.Discard, c, echoed); n == echoed {
				turned <- time.Now()
				_, _ = io.CopyN(c, zeros{}, echoed)
			}
			c.Close()
		}
	}()
	return turned
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}

// A box gets no more connections than its keeper allows, and new ones once others have ended; another box has a limit of its own.
func TestABoxHasSoManyConnections(t *testing.T) {
	newWorld(t)
	d := boxtest.Start(t, configuration+"connections = 5\n")
	d.NewSession(t, egress("one"))
	d.NewSession(t, egress("two"))
	const some = `n=0; for f in {30..%d}; do eval "exec $f<>/dev/tcp/` + public4 + `/80" 2>/dev/null || break; read -r line <&$f; n=$((n+1)); done; echo $n`
	if got := in(t, d, "one", fmt.Sprintf(some, 39)); got != "5\n" {
		t.Errorf(`connections of a box: got %q, want "5\n"`, got)
	}
	if got := in(t, d, "two", fmt.Sprintf(some, 34)); got != "5\n" {
		t.Errorf(`connections of another: got %q, want "5\n"`, got)
	}
	boxtest.Eventually(t, "ended connections are not counted", func() bool { return in(t, d, "one", fmt.Sprintf(some, 34)) == "5\n" })
	// Neither other rules nor refused attempts raise it.
	_, err := d.ChangeSession(t.Context(), "one", &api.SessionChange{NetworkRules: []string{public4 + "/32 tcp 80"}})
	must(t, err)
	in(t, d, "one", `for p in {1..50}; do exec 3<>/dev/tcp/`+other4+`/$p; done`)
	boxtest.Eventually(t, "refused attempts are not counted", func() bool { return in(t, d, "one", fmt.Sprintf(some, 39)) == "5\n" })
}

// The host soon drops the conntrack entries of a box's ended connections: the limit does not count them, so a box could fill the
// host's table with short connections. Entries of the host and of another box are kept.
func TestTheHostForgetsEndedConnections(t *testing.T) {
	w := newWorld(t)
	w.endAtOnce(t, 7778)
	d := boxtest.Start(t, configuration)
	d.NewSession(t, egress("one"))
	d.NewSession(t, egress("two"))
	if got := in(t, d, "one", "for i in {1..50}; do exec 3<>/dev/tcp/"+public4+"/7778 && read -r line <&3; exec 3<&-; done; echo done"); got != "done\n" {
		t.Fatalf(`got %q, want "done\n"`, got)
	}
	const timeWait, closed = 7, 8 // nf_conntrack_tcp.h
	remembered := 0
	boxtest.Eventually(t, "connection tracking of the host has seen the ends of the connections", func() bool {
		flows, err := netlink.ConntrackTableList(netlink.ConntrackTable, unix.AF_INET)
		if err != nil {
			return false // changed during the dump
		}
		remembered = 0
		for _, f := range flows {
			if f.Forward.DstPort != 7778 {
				continue
			}
			tcp, ok := f.ProtoInfo.(*netlink.ProtoInfoTCP)
			if !ok || tcp.State != timeWait && tcp.State != closed {
				return false
			}
			if f.TimeOut > 2 {
				remembered++
			}
		}
		return true
	})
	if remembered > 0 {
		t.Errorf("the host will remember %d ended connections for long", remembered)
	}
	if got := in(t, d, "two", "exec 3<>/dev/tcp/"+public4+"/80 && read -r line <&3 && echo yes"); got != "yes\n" {
		t.Errorf(`another box: got %q, want "yes\n"`, got)
	}
	c, err := new(net.Dialer).DialContext(t.Context(), "tcp4", public4+":80")
	if err != nil {
		t.Fatalf("the host: %v", err)
	}
	c.Close()
}

// endAtOnce starts a server outside that closes each connection at once.
func (w *world) endAtOnce(t *testing.T, port int) {
	t.Helper()
	var l net.Listener
	ready := make(chan error, 1)
	go func() { // its thread ends with the goroutine
		runtime.LockOSThread()
		err := unix.Setns(w.there, unix.CLONE_NEWNET)
		if err == nil {
			l, err = new(net.ListenConfig).Listen(context.Background(), "tcp4", public4+":"+strconv.Itoa(port))
		}
		ready <- err
	}()
	must(t, <-ready)
	done := make(chan struct{})
	t.Cleanup(func() { l.Close(); <-done })
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
}

// A box sends and receives no faster than its keeper allows. Slower is no failure.
func TestABoxHasSoMuchBandwidth(t *testing.T) {
	w := newWorld(t)
	turned := newEcho(t, w)
	d := boxtest.Start(t, configuration+fmt.Sprintf("bandwidth = %q\n", quantity.Size(bandwidth)))
	d.NewSession(t, egress("one"))
	// The box says itself when it begins: a server that is late finds some of it there already.
	r, err := d.Exec(t.Context(), "one", &api.ExecRequest{
		Argv:    []string{"bash", "-c", fmt.Sprintf("exec 3<>/dev/tcp/%s/7777 && date +%%s%%N && head -c %d /dev/zero >&3 && head -c %d <&3 | wc -c", public4, echoed, echoed)},
		Timeout: new(quantity.Duration(2 * time.Minute)),
	})
	ended := time.Now()
	must(t, err)
	var begun int64
	var got int
	if n, err := fmt.Sscan(r.Stdout, &begun, &got); n != 2 || got != echoed {
		t.Fatalf("r.Stdout = %q, r.Stderr = %q, err = %v, want n == 2 and got == echoed", r.Stdout, r.Stderr, err)
	}
	turn := <-turned
	up, down := turn.Sub(time.Unix(0, begun)), ended.Sub(turn)
	const least = time.Second * (echoed - 128<<10) / bandwidth // minus the allowed burst
	if up < least || down < least {
		t.Errorf("it has sent for %v and received for %v: at least %v each", up, down, least)
	}
}

// The caps that profile, policy and request set for a session are those in the kernel, also after a change.
func TestCapsOfOneSession(t *testing.T) {
	newWorld(t)
	d := boxtest.Start(t, configuration+"connections = 5\n", "[profiles.wide]\nnetwork = \"egress\"\nnetwork_connections = 8\nnetwork_bandwidth = \"64KiB\"\n")
	const some = `n=0; for f in {30..45}; do eval "exec $f<>/dev/tcp/` + public4 + `/80" 2>/dev/null || break; read -r line <&$f; n=$((n+1)); done; echo $n`
	s := d.NewSession(t, api.SessionRequest{ID: "wide", Profile: "wide", Patch: limits.Patch{NetworkConnections: new(100)}})
	if len(s.Clamped) != 1 || s.NetworkConnections != 8 || s.NetworkBandwidth != 64*quantity.KiB {
		t.Errorf("%d connections, %v a second, clamped %+v", s.NetworkConnections, s.NetworkBandwidth, s.Clamped)
	}
	if got := in(t, d, "wide", some); got != "8\n" {
		t.Errorf(`of the profile: got %q, want "8\n"`, got)
	}
	space, err := os.Open("/proc/" + strconv.Itoa(int(s.PID)) + "/ns/net")
	must(t, err)
	defer space.Close()
	rate := func() (list []uint64) {
		t.Helper()
		must(t, network.InNamespace(space, func() error {
			all, err := netlink.QdiscList(nil)
			for _, q := range all {
				if slow, ok := q.(*netlink.Tbf); ok {
					list = append(list, slow.Rate)
				}
			}
			return err
		}))
		return list
	}
	if got := rate(); !slices.Equal(got, []uint64{64 << 10}) {
		t.Errorf("bandwidth of the profile: got %v, want []uint64{64 << 10}", got)
	}
	changed, err := d.ChangeSession(t.Context(), "wide", &api.SessionChange{Patch: limits.Patch{NetworkConnections: new(3), NetworkBandwidth: new(32 * quantity.KiB)}})
	must(t, err)
	deniedOf(t, d, "wide", "the box has reached network_connections = 8: more connections were refused", "profiles.wide.network_connections of more than 8 would allow it")
	if changed.NetworkConnections != 3 || len(changed.Clamped) != 0 {
		t.Errorf("changed: %d connections, clamped %+v", changed.NetworkConnections, changed.Clamped)
	}
	boxtest.Eventually(t, "the running session has the new limit of connections", func() bool { // those from before count until the other end has closed them too
		got, err := strconv.Atoi(strings.TrimSpace(in(t, d, "wide", some)))
		if err != nil || got > 3 {
			t.Fatalf("of a running session: got %d, err = %v, want no error and got <= 3", got, err)
		}
		return got == 3
	})
	if got := rate(); !slices.Equal(got, []uint64{32 << 10}) {
		t.Errorf("bandwidth of a running session: got %v, want []uint64{32 << 10}", got)
	}
}
