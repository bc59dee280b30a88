// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/boxd-dev/boxd/access"
	"github.com/boxd-dev/boxd/relay/load"
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
	conn, err := peerListener{ln, load.NewCallers()}.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	peer, known := caller(withPeer(t.Context(), conn))
	who := peer.who
	uid := uint32(os.Geteuid())
	if !known || who.UID != uid || who.Name != access.OfUser(uid) || who.Is(access.Admin) != (uid == 0) || conn.RemoteAddr().String() != who.Name {
		t.Errorf("%+v", who)
	}
	if _, known := caller(withPeer(t.Context(), client)); known {
		t.Error("a connection that was not accepted by us has a caller")
	}
}

func TestAConnectionWithoutCredentialsIsClosed(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	accepted := make(chan error, 1)
	go func() {
		_, err := peerListener{ln, load.NewCallers()}.Accept()
		accepted <- err
	}()
	client, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if n, err := client.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("read %d, %v", n, err)
	}
	ln.Close()
	if err := <-accepted; !errors.Is(err, net.ErrClosed) {
		t.Errorf("accepted: %v", err)
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
		t.Error("no connection is a Unix socket")
	}
}
