// SPDX-License-Identifier: Apache-2.0

package abuse_test

import (
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
)

// Types of messages that boxd may send and that end something: packets that look like these are not garbage. They are never
// renumbered, see isolation/keeper_codec.go.
var ending = []int{3, 12, 13, 18, 26} // EndBox, Leave, Quit, Reclaim, RemoveTree

// A client that takes boxd's place at the keeper sends it invalid packets of every type and of many lengths, some with
// descriptors. The keeper answers or closes that connection, and does nothing else: it lives on with every box, and serves the
// next boxd.
func TestT78GarbageToTheKeeper(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, boxtest.Lasting)
	d.Warm()
	before := d.Look()
	witness := d.NewSession(t, api.SessionRequest{ID: "witness"})
	d.NewProcess(t, "witness", "p", boxtest.ShellProcess("sleep 100000"))
	d.Sh(t, "witness", "echo kept > file")
	keeper := d.Keeper()
	d.Kill() // its place is free
	socket := filepath.Join(d.Dir, "run", "keeper", "socket")
	rng := rand.New(rand.NewPCG(1, 2))
	sent := 0
	for kind := range 256 {
		if slices.Contains(ending, kind) {
			continue
		}
		for _, size := range []int{0, 1, 3, 4, 5, 40, 1000, 60000} {
			for _, fill := range []func() byte{func() byte { return 0 }, func() byte { return 0xff }, func() byte { return byte(rng.Uint32()) }} {
				body := make([]byte, size)
				for i := range body {
					body[i] = fill()
				}
				garbage(t, socket, append([]byte{'i', byte(kind)}, body...), kind%3)
				sent++
			}
		}
	}
	for first := range 256 { // any byte that says where the body is
		garbage(t, socket, []byte{byte(first)}, first%2)
		garbage(t, socket, []byte{byte(first), 1, 0, 0, 0}, 0)
		sent += 2
	}
	garbage(t, socket, make([]byte, 100_000), 0) // longer than any message
	if now := boxtest.Lives(keeper); !now {
		t.Fatalf("after %d packets the keeper has ended:\n%s", sent, d.Log())
	}
	d.Restart()
	if got := d.Keeper(); got != keeper {
		t.Errorf("the keeper is %d, was %d, want got == keeper", got, keeper)
	}
	if s, err := d.Session(t.Context(), "witness"); err != nil || s.PID != witness.PID {
		t.Errorf("the box is %d, was %d: err = %v, want no error and s.PID == witness.PID", s.PID, witness.PID, err)
	}
	if got := d.Sh(t, "witness", "cat file"); got != "kept\n" {
		t.Errorf(`its file has %q, want "kept\n"`, got)
	}
	d.NewSession(t, api.SessionRequest{ID: "next"})
	for _, id := range []string{"witness", "next"} {
		if err := d.DeleteSession(t.Context(), id); err != nil {
			t.Error(err)
		}
	}
	d.NothingLeft(before)
	t.Logf("%d packets", sent)
}

// garbage sends one packet with some descriptors on a new connection. The keeper may have closed it already.
func garbage(t *testing.T, socket string, packet []byte, files int) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: socket}); err != nil {
		t.Fatalf("the keeper does not listen: %v", err)
	}
	var rights []byte
	if files > 0 {
		rights = unix.UnixRights(slices.Repeat([]int{fd}, files)...)
	}
	_ = unix.Sendmsg(fd, packet, rights, nil, unix.MSG_NOSIGNAL)
}
