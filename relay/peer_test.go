// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/boxd-dev/boxd/relay/conns"
	"github.com/boxd-dev/boxd/supervisor/access"
)

func TestTheKernelSaysWhoIsCalling(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	client, err := net.Dial("unix", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	conn, err := peerListener{Listener: ln, callers: conns.New(conns.Each, conns.All), name: byUser}.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	peer, known := caller(withPeer(t.Context(), conn))
	uid := uint32(os.Geteuid())
	if !known || !peer.peer.Local || peer.peer.UID != uid || peer.peer.GID != uint32(os.Getegid()) || peer.limits == nil || conn.RemoteAddr().String() != access.OfUser(uid) {
		t.Errorf("peer = %+v", peer)
	}
	if _, known := caller(withPeer(t.Context(), client)); known {
		t.Error("a connection that boxd did not accept has a caller")
	}
}

func TestOverTCPTheKernelKnowsNobody(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	client, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	conn, err := peerListener{Listener: ln, callers: conns.New(conns.Each, conns.All), name: byUser}.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	from, known := caller(withPeer(t.Context(), conn))
	if !known || from.peer.Local || from.peer.UID != anonymous || from.limits != nil || from.self != nil {
		t.Errorf("from = %+v, want known == true and from.peer.Local == false and from.peer.UID == anonymous and from.limits == nil and from.self == nil",
			from)
	}
}

func TestOnlyAUnixSocketCarriesDescriptors(t *testing.T) {
	t.Parallel()
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	for _, conn := range []net.Conn{a, peerConn{Conn: a}} {
		if socketOf(withPeer(t.Context(), conn)) != nil {
			t.Errorf("%T is a Unix socket", conn)
		}
	}
	if socketOf(t.Context()) != nil {
		t.Error("socketOf of a context without a connection is not nil")
	}
}
