// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/supervisor/access"
)

// directNode is a node that listens for gateways, and whose boxd echoes what it receives.
type directNode struct {
	agent   *agent
	direct  *directListener
	at      *nodeState
	gateway ed25519.PrivateKey
	late    atomic.Int64 // the time of the agent's clock, which stands still otherwise; of time.Duration
}

func newDirectNode(t *testing.T) *directNode {
	t.Helper()
	public, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	l := &directNode{gateway: key}
	fleet := access.Fleet{Listen: "127.0.0.1:0", Gateways: map[string]access.Gateway{"main": {Key: access.FleetKey(public)}}}
	l.agent = &agent{
		cfg: agentOptions{Fleet: fleet, Ask: func(context.Context) (access.Fleet, error) { return fleet, nil }}, now: fleet, agreed: "claims", log: slog.New(slog.DiscardHandler),
		clock: func() time.Time { return time.Time{}.Add(time.Duration(l.late.Load())) },
	}
	l.by(t, func(boxd net.Conn) {
		defer boxd.Close()
		_, _ = io.Copy(boxd, boxd)
	})
	d, err := l.agent.listenDirect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	l.direct = d
	t.Cleanup(func() { d.Close() })
	l.at = &nodeState{FleetNode: api.FleetNode{Name: "n", Direct: &api.FleetDirect{Address: d.Addr().String(), Key: d.key}}}
	return l
}

// by sets the boxd of the node, which serves each connection by a function.
func (l *directNode) by(t *testing.T, serve func(net.Conn)) {
	t.Helper()
	l.agent.cfg.Fleet.Socket = filepath.Join(boxtest.TempDir(t), "s")
	boxd, err := net.Listen("unix", l.agent.cfg.Fleet.Socket)
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
			go serve(conn)
		}
	}()
}

// connect connects a gateway with the node.
func (l *directNode) connect(t *testing.T) *directConn {
	t.Helper()
	conn := l.dial(t, newDirects())
	t.Cleanup(func() { conn.Close() })
	return conn.(*directConn)
}

// dial connects to the node, which a busy host may not do within directDialTimeout.
func (l *directNode) dial(t *testing.T, d *directs) (conn net.Conn) {
	t.Helper()
	boxtest.Eventually(t, "the gateway is connected to the node", func() bool {
		d.closeNode("n") // forgets that it has failed
		conn = d.dial(t.Context(), l.at, l.gateway, slog.New(slog.DiscardHandler))
		return conn != nil
	})
	return conn
}

// echoed sends a message and returns an error unless it is echoed.
func echoed(conn net.Conn) error {
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	if _, err := io.WriteString(conn, "word"); err != nil {
		return err
	}
	_, err := io.ReadFull(conn, make([]byte, 4))
	return err
}

// A node that others may consider lost accepts no more requests: neither on an existing connection, which carries one request after
// the other, nor on a new one. Its gateway then uses NATS, gets the reason there, and tries the direct connection again later.
func TestANodeThatIsFencedIsNotReachedDirectly(t *testing.T) {
	t.Parallel()
	l, d, log := newDirectNode(t), newDirects(), slog.New(slog.DiscardHandler)
	conn := l.dial(t, d)
	if err := echoed(conn); err != nil {
		t.Fatal(err)
	}
	l.late.Store(int64(fencedAfter))
	if err := echoed(conn); err == nil {
		t.Error("the connection to a fenced node still works")
	}
	_ = conn.Close()
	if conn := d.dial(t.Context(), l.at, l.gateway, log); conn != nil {
		t.Error("a fenced node accepts a connection")
	}
	l.late.Store(0)
	if conn := d.dial(t.Context(), l.at, l.gateway, log); conn != nil {
		t.Error("an address that has just failed is dialed again at once")
	}
	conn = l.dial(t, d)
	if err := echoed(conn); err != nil {
		t.Error(err)
	}

	// Connections to a lost node are closed, also if the node itself does not close them.
	over := make(chan error)
	go func() {
		_, err := conn.Read(make([]byte, 1))
		over <- err
	}()
	d.closeNode("n")
	if err := <-over; err == nil {
		t.Error("the connection to a lost node was not closed")
	}
}

// Each end has to have the key that the other expects.
func TestBothEndsOfADirectConnectionAreKnownByTheirKeys(t *testing.T) {
	t.Parallel()
	l := newDirectNode(t)
	_, strange, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := dialDirect(t.Context(), l.at.Direct, strange); err == nil {
		t.Error("the node accepts a gateway with an unknown key")
	}
	other := *l.at.Direct
	other.Key = access.FleetKey(strange.Public().(ed25519.PublicKey))
	if _, err := dialDirect(t.Context(), &other, l.gateway); err == nil {
		t.Error("the gateway accepts a node with another key")
	}
	other.Key = "none"
	if _, err := dialDirect(t.Context(), &other, l.gateway); err == nil {
		t.Error("the gateway accepts a node without a key")
	}
	// A gateway that was removed from box.toml is refused.
	l.agent.mu.Lock()
	l.agent.now.Gateways = nil
	l.agent.fetched = time.Now()
	l.agent.mu.Unlock()
	if _, err := dialDirect(t.Context(), l.at.Direct, l.gateway); err == nil {
		t.Error("the node accepts a gateway that was removed")
	}
	// A gateway that was just added is accepted: the node reads the list for each unknown key.
	l.agent.mu.Lock()
	l.agent.fetched = time.Time{}
	l.agent.mu.Unlock()
	boxtest.Eventually(t, "the node accepts the gateway", func() bool {
		conn, err := dialDirect(t.Context(), l.at.Direct, l.gateway)
		if err != nil {
			return false
		}
		defer conn.Close()
		return echoed(conn) == nil
	})
}

// A node accepts a bounded number of connections, and closes those that do not authenticate in time.
func TestUnauthenticatedPeersTakeNoGatewayConnection(t *testing.T) {
	t.Parallel()
	l := newDirectNode(t)
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
			t.Fatalf("a connection without a known key got data, or was not closed: err = %v, want an error and err is not os.ErrDeadlineExceeded",
				err)
		}
	}
	boxtest.Eventually(t, "the gateway is connected to the node", func() bool {
		conn, err := dialDirect(t.Context(), l.at.Direct, l.gateway)
		return err == nil && conn.Close() == nil
	})
}

// A peer that reads nothing for long is not disconnected, in either direction, and gets all data.
func TestADirectConnectionWaitsForItsReader(t *testing.T) {
	t.Parallel()
	const size = 32 << 20
	for name, up := range map[string]bool{"the gateway reads nothing": false, "the node reads nothing": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, read, got := newDirectNode(t), make(chan struct{}), make(chan int64, 1)
			l.by(t, func(boxd net.Conn) {
				defer boxd.Close()
				if up {
					<-read
					n, _ := io.Copy(io.Discard, boxd)
					got <- n
					return
				}
				_, _ = boxd.Write(make([]byte, size))
			})
			conn := l.connect(t)
			go func() {
				if up {
					_, _ = conn.Write(make([]byte, size))
					_ = conn.CloseWrite()
					return
				}
				<-read
				n, _ := io.Copy(io.Discard, conn)
				got <- n
			}()
			<-time.After(2 * streamTimeout) // the test shows that nothing happens meanwhile
			close(read)
			if n := <-got; n != size {
				t.Errorf("%d bytes of %d", n, size)
			}
		})
	}
}

// boxd may stop reading, as for a program that reads no input: that blocks neither an agent that ends, nor the end of a connection
// whose gateway has gone.
func TestADirectConnectionToABoxdThatReadsNothingEnds(t *testing.T) {
	t.Parallel()
	l := newDirectNode(t)
	gone := make(chan struct{}, 2)
	l.by(t, func(boxd net.Conn) {
		for { // until the other end is closed, without reading
			poll := []unix.PollFd{{Fd: fdOf(t, boxd)}}
			if n, err := unix.Poll(poll, -1); n > 0 || err != nil && !errors.Is(err, unix.EINTR) {
				gone <- struct{}{}
				return
			}
		}
	})
	fill := func(conn net.Conn) {
		last := int64(-1)
		var sent atomic.Int64
		go func() {
			for {
				n, err := conn.Write(make([]byte, 64<<10))
				sent.Add(int64(n))
				if err != nil {
					return
				}
			}
		}()
		boxtest.Eventually(t, "the connection takes no more bytes", func() bool {
			now := sent.Load()
			full := now == last && now > 0
			last = now
			return full
		})
	}
	first := l.connect(t)
	fill(first)
	_ = first.Close()
	<-gone
	fill(l.connect(t))
	if err := l.direct.Close(); err != nil {
		t.Error(err)
	}
	<-gone
}

// fdOf returns the descriptor of a connection.
func fdOf(t *testing.T, conn net.Conn) (fd int32) {
	t.Helper()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err == nil {
		err = raw.Control(func(n uintptr) { fd = int32(n) })
	}
	if err != nil {
		t.Error(err)
	}
	return fd
}

// The answer of boxd arrives, also if boxd answers before it has read everything and then closes the connection; and after the
// gateway has closed its sending side, as a client of a port of a box may do.
func TestAnAnswerOfADirectConnectionArrives(t *testing.T) {
	t.Parallel()
	l, answer := newDirectNode(t), bytes.Repeat([]byte("answer"), 64<<10)
	front := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusRequestEntityTooLarge)
		_, _ = w.Write(answer)
	})}
	t.Cleanup(func() { front.Close() })
	l.agent.cfg.Fleet.Socket = filepath.Join(boxtest.TempDir(t), "s")
	boxd, err := net.Listen("unix", l.agent.cfg.Fleet.Socket)
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = front.Serve(boxd) }()
	transport := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return l.connect(t), nil }}
	for range 100 {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://n/", io.LimitReader(zeros{}, 8<<20))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := transport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || !bytes.Equal(got, answer) {
			t.Fatalf("%d bytes of %d, %v", len(got), len(answer), err)
		}
	}

	l.by(t, func(boxd net.Conn) {
		defer boxd.Close()
		if got, err := io.ReadAll(boxd); err == nil {
			_, _ = boxd.Write(got)
		}
	})
	conn := l.connect(t)
	if _, err := conn.Write(answer); err != nil {
		t.Fatal(err)
	}
	if err := conn.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(conn); err != nil || !bytes.Equal(got, answer) {
		t.Errorf("%d bytes of %d, %v", len(got), len(answer), err)
	}
}

// zeros is a stream of them.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// A node that others may consider lost also sends nothing more, such as the output of a program: another node may have the session
// by now. A gateway that is cut off from NATS closes nothing either.
func TestAFencedNodeSendsNothingDirectly(t *testing.T) {
	t.Parallel()
	l, say := newDirectNode(t), make(chan string)
	l.by(t, func(boxd net.Conn) {
		defer boxd.Close()
		for word := range say {
			if _, err := io.WriteString(boxd, word); err != nil {
				return
			}
		}
	})
	conn := l.connect(t)
	say <- "word"
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	if _, err := io.ReadFull(conn, make([]byte, 4)); err != nil {
		t.Fatal(err)
	}
	l.late.Store(int64(fencedAfter))
	say <- "more"
	if n, err := conn.Read(make([]byte, 4)); n > 0 || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%d bytes, %v", n, err)
	}
	close(say)
}

// A peer that does not answer a probe is dead. One that has only been idle is not, nor one that is probed rarely because it reads
// nothing.
func TestAPeerThatAcknowledgesNothingIsDead(t *testing.T) {
	t.Parallel()
	late := uint32(streamTimeout.Milliseconds())
	for want, list := range map[bool][]unix.TCPInfo{
		true:  {{Last_ack_recv: late, Retransmits: unanswered}, {Last_ack_recv: late, Probes: unanswered}},
		false: {{Last_ack_recv: 100 * late}, {Last_ack_recv: late - 1, Retransmits: 15}, {Last_ack_recv: 4 * late, Probes: 1, Backoff: 10}},
	} {
		for _, info := range list {
			if isDead(&info) != want {
				t.Errorf("%+v: not %v", info, want)
			}
		}
	}
}
