// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/ed25519"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/supervisor/access"
)

// listening is a node that listens for gateways, whose boxd answers with what it is sent.
type listening struct {
	agent   *agent
	at      *seen
	gateway ed25519.PrivateKey
	late    atomic.Int64 // how much later it is for the agent, of time.Duration
}

func newListening(t *testing.T) *listening {
	t.Helper()
	public, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(boxtest.TempDir(t), "s")
	boxd, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { boxd.Close() })
	go func() {
		for {
			conn, err := boxd.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_, _ = io.Copy(conn, conn)
			}()
		}
	}()
	l := &listening{gateway: key}
	fleet := access.Fleet{Listen: "127.0.0.1:0", Socket: socket, Gateways: map[string]access.Gateway{"main": {Key: access.FleetKey(public)}}}
	l.agent = &agent{
		cfg: agentOptions{Fleet: fleet, Ask: func(context.Context) (access.Fleet, error) { return fleet, nil }}, now: fleet, agreed: "claims", log: slog.New(slog.DiscardHandler),
		began: time.Now(), clock: func() time.Time { return time.Now().Add(time.Duration(l.late.Load())) },
	}
	d, err := l.agent.listenDirect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	l.at = &seen{FleetNode: api.FleetNode{Name: "n", Direct: &api.FleetDirect{Address: d.Addr().String(), Key: d.key}}}
	return l
}

// echoed reports what comes back of a word.
func echoed(conn net.Conn) error {
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	if _, err := io.WriteString(conn, "word"); err != nil {
		return err
	}
	_, err := io.ReadFull(conn, make([]byte, 4))
	return err
}

// A node that may have been taken for lost takes nothing more: neither from a connection that it has, which carries one request after the other, nor a new
// one. Its gateway goes over NATS then, where it hears why, and tries again later.
func TestANodeThatIsFencedIsNotReachedDirectly(t *testing.T) {
	t.Parallel()
	l, d, log := newListening(t), newDirects(), slog.New(slog.DiscardHandler)
	conn := d.dial(t.Context(), l.at, l.gateway, log)
	if conn == nil {
		t.Fatal("no connection")
	}
	if err := echoed(conn); err != nil {
		t.Fatal(err)
	}
	l.late.Store(int64(fencedAfter))
	if err := echoed(conn); err == nil {
		t.Error("a node that is fenced takes what is sent")
	}
	_ = conn.Close()
	if conn := d.dial(t.Context(), l.at, l.gateway, log); conn != nil {
		t.Error("a node that is fenced takes a connection")
	}
	l.late.Store(0)
	if conn := d.dial(t.Context(), l.at, l.gateway, log); conn != nil {
		t.Error("an address that has just failed is tried again at once")
	}
	d.forget("n")
	if conn = d.dial(t.Context(), l.at, l.gateway, log); conn == nil {
		t.Fatal("no connection later")
	}
	if err := echoed(conn); err != nil {
		t.Error(err)
	}

	// Of a node that is lost, connections end also where nothing of the node says so.
	over := make(chan error)
	go func() {
		_, err := conn.Read(make([]byte, 1))
		over <- err
	}()
	d.forget("n")
	if err := <-over; err == nil {
		t.Error("a connection to a lost node goes on")
	}
}

// Each end has to have the key that the other expects.
func TestBothEndsOfADirectConnectionAreKnownByTheirKeys(t *testing.T) {
	t.Parallel()
	l := newListening(t)
	_, strange, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	if conn, err := dialDirect(t.Context(), l.at.Direct, strange); err == nil {
		if err := echoed(conn); err == nil {
			t.Error("a stranger reaches boxd")
		}
		conn.Close()
	}
	other := *l.at.Direct
	other.Key = access.FleetKey(strange.Public().(ed25519.PublicKey))
	if _, err := dialDirect(t.Context(), &other, l.gateway); err == nil {
		t.Error("a node with another key is taken for it")
	}
	other.Key = "none"
	if _, err := dialDirect(t.Context(), &other, l.gateway); err == nil {
		t.Error("a node without a key is taken for it")
	}
	// A gateway that was removed from box.toml is known no more.
	l.agent.mu.Lock()
	l.agent.now.Gateways = nil
	l.agent.asked = time.Now()
	l.agent.mu.Unlock()
	conn, err := dialDirect(t.Context(), l.at.Direct, l.gateway)
	if err == nil {
		err = echoed(conn)
		conn.Close()
	}
	if err == nil {
		t.Error("a gateway that was removed reaches boxd")
	}
	// One that was added just now is asked for.
	l.agent.mu.Lock()
	l.agent.asked = time.Time{}
	l.agent.mu.Unlock()
	conn, err = dialDirect(t.Context(), l.at.Direct, l.gateway)
	if err == nil {
		err = echoed(conn)
		conn.Close()
	}
	if err != nil {
		t.Error(err)
	}
}

// A node has a bounded number of connections, and waits for nobody who does not say who it is.
func TestStrangersTakeNoPlaceOfAGateway(t *testing.T) {
	t.Parallel()
	l := newListening(t)
	var strangers []net.Conn
	for range 2 * maxHandshakes {
		conn, err := net.Dial("tcp", l.at.Direct.Address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		strangers = append(strangers, conn)
	}
	for _, conn := range strangers {
		_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
		if _, err := conn.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("a stranger hears something, or is waited for: %v", err)
		}
	}
	boxtest.Eventually(t, "a gateway gets in", func() bool {
		conn, err := dialDirect(t.Context(), l.at.Direct, l.gateway)
		return err == nil && conn.Close() == nil
	})
}
