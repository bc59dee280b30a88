// SPDX-License-Identifier: Apache-2.0

// Direct connections of gateways to nodes, without NATS between them, where a node has an address for that (fleet.listen of box.toml): mutual
// TLS 1.3 with pinned keys. The public key of a gateway is in box.toml of the node; the gateway signs requests for callers with it as well. The
// key of a node is made when its agent starts, and announced over NATS. So no authority has to sign certificates, and clocks do not matter.

package main

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/big"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/supervisor/access"
)

// Bounds and times of these connections.
const (
	maxDirect              = 1024            // that a node has at the same time
	maxHandshakes          = 64              // of those, whose other end has not proved yet who it is
	directDialTimeout      = time.Second     // until a gateway has one, or goes over NATS
	directHandshakeTimeout = 5 * time.Second // until a node knows who is there
	directRetryAfter       = 5 * time.Second // how long a gateway goes over NATS to a node where that has failed
)

// greeting is the first byte that a node sends, when it has accepted a connection: the client's side of a handshake of TLS 1.3 is complete before the
// server has verified the client's certificate (RFC 8446, section 2).
const greeting = "+"

// certificate returns a self-signed certificate with a key and nothing else: peers compare the key.
func certificate(key ed25519.PrivateKey) (tls.Certificate, error) {
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{SerialNumber: big.NewInt(1)}, &x509.Certificate{SerialNumber: big.NewInt(1)}, key.Public(), key)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("certificate: %w", err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}

// verifyKey fails the handshake of a peer whose certificate does not have a known key. That the peer has the private key the handshake proves.
func verifyKey(known func(ed25519.PublicKey) bool) func(tls.ConnectionState) error {
	return func(s tls.ConnectionState) error {
		if len(s.PeerCertificates) > 0 {
			if key, ok := s.PeerCertificates[0].PublicKey.(ed25519.PublicKey); ok && known(key) {
				return nil
			}
		}
		return errors.New("the certificate of the peer has an unexpected key")
	}
}

// monitor closes a connection whose other end acknowledges nothing for streamTimeout, and calls onDead when that has closed it, until done is closed. Nobody else
// sees either while this end does not read. TCP_USER_TIMEOUT would be for the first, and also ends a connection whose other end only reads nothing (tcp(7)).
func monitor(conn *net.TCPConn, done <-chan struct{}, onDead func()) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return
	}
	ticker := time.NewTicker(streamPing)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-done:
			return
		}
		closed, dead := false, false
		if raw.Control(func(fd uintptr) {
			poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
			n, err := unix.Poll(poll, 0)
			closed = err == nil && n > 0
			info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
			dead = err == nil && isDead(info)
		}) != nil {
			return
		}
		if dead {
			_ = conn.Close()
		}
		if closed || dead {
			onDead()
			return
		}
	}
}

// unanswered is how often the kernel has sent the same again before isDead takes the other end for dead. It does so twelve times as late as the first time by then.
const unanswered = 3

// isDead reports whether the other end of a connection is not heard of any more. One that reads nothing answers: the kernel asks it, less and less often.
func isDead(i *unix.TCPInfo) bool {
	return time.Duration(i.Last_ack_recv)*time.Millisecond >= streamTimeout && (i.Retransmits >= unanswered || i.Probes >= unanswered)
}

// keepAlive has the kernel find out within streamTimeout that the other end of an idle connection is gone.
func keepAlive() net.KeepAliveConfig {
	return net.KeepAliveConfig{Enable: true, Idle: streamTimeout / 3, Interval: streamTimeout / 3, Count: 2}
}

// directListener is where a node accepts connections of gateways.
type directListener struct {
	net.Listener
	key        string // of the node, as access.FleetKey has it
	tls        *tls.Config
	serving    func() bool                            // whether the node takes connections just now
	carry      func(ctx context.Context, c *tls.Conn) // owns a connection
	log        *slog.Logger
	slots      chan struct{} // one for each connection
	handshakes chan struct{} // one for each handshake
	cancel     context.CancelFunc
	wg         sync.WaitGroup
}

// listenDirect listens at an address. Close must follow.
func (a *agent) listenDirect(ctx context.Context) (*directListener, error) {
	public, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	own, err := certificate(key)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	listener, err := (&net.ListenConfig{KeepAliveConfig: keepAlive()}).Listen(ctx, "tcp", a.cfg.Fleet.Listen)
	if err != nil {
		cancel()
		return nil, err
	}
	d := &directListener{
		Listener: listener, key: access.FleetKey(public), serving: a.serves, carry: a.carryDirect, log: a.log, cancel: cancel,
		slots: make(chan struct{}, maxDirect), handshakes: make(chan struct{}, maxHandshakes),
		tls: &tls.Config{
			Certificates: []tls.Certificate{own}, MinVersion: tls.VersionTLS13, SessionTicketsDisabled: true,
			ClientAuth: tls.RequireAnyClientCert, VerifyConnection: verifyKey(func(key ed25519.PublicKey) bool { return a.isGateway(ctx, key) }),
		},
	}
	d.wg.Go(func() { d.accept(ctx) })
	return d, nil
}

// Close ends all connections.
func (d *directListener) Close() error {
	d.cancel()
	err := d.Listener.Close()
	d.wg.Wait()
	return err
}

// accept takes connections until the listener is closed. Those that find no place, or a node that takes none, are closed before anything is said: the
// gateway goes over NATS, where it hears why.
func (d *directListener) accept(ctx context.Context) {
	for {
		conn, err := d.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // too many open files, or a connection that is gone already
			select {
			case <-time.After(directDialTimeout):
				continue
			case <-ctx.Done():
				return
			}
		}
		if !d.serving() || !tryAcquire(d.slots) {
			conn.Close()
			continue
		}
		if !tryAcquire(d.handshakes) {
			<-d.slots
			conn.Close()
			continue
		}
		d.wg.Go(func() {
			defer func() { <-d.slots }()
			d.serve(ctx, conn)
		})
	}
}

func tryAcquire(slots chan struct{}) bool {
	select {
	case slots <- struct{}{}:
		return true
	default:
		return false
	}
}

// serve finds out who is there, and carries the connection.
func (d *directListener) serve(ctx context.Context, conn net.Conn) {
	far := tls.Server(conn, d.tls)
	handshakeCtx, cancel := context.WithTimeout(ctx, directHandshakeTimeout)
	err := far.HandshakeContext(handshakeCtx)
	cancel()
	<-d.handshakes
	if err == nil {
		_, err = io.WriteString(far, greeting) // the kernel has room for that
	}
	if err != nil {
		d.log.Debug("refused a connection to fleet.listen: its peer is no gateway of box.toml", "remote", conn.RemoteAddr().String(), "error", err)
		conn.Close()
		return
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	d.carry(ctx, far)
}

// isGateway reports whether box.toml has a gateway with that key. The operator may have added it just now.
func (a *agent) isGateway(ctx context.Context, key ed25519.PublicKey) bool {
	ok, old := a.hasGateway(key)
	if !ok && old && a.refreshFleet(ctx) == nil {
		ok, _ = a.hasGateway(key)
	}
	return ok
}

// hasGateway reports whether it had such a gateway when it was asked for last, and whether that was long ago.
func (a *agent) hasGateway(key ed25519.PublicKey) (ok, old bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	old = time.Since(a.fetched) > renewEvery
	for _, g := range a.now.Gateways {
		if known, err := access.ParseFleetKey(g.Key); err == nil && known.Equal(key) {
			return true, old
		}
	}
	return false, old
}

// carryDirect connects a gateway with boxd, as carry does, until ctx ends.
func (a *agent) carryDirect(ctx context.Context, far *tls.Conn) {
	defer func() { _ = far.Close() }() // twice, where it got that far
	a.streams.Add(1)
	defer a.streams.Add(-1)
	conn, err := net.Dial("unix", a.cfg.Fleet.Socket) //nolint:noctx // answers or refuses at once
	if err != nil {
		a.log.Warn("cannot reach boxd", "socket", a.cfg.Fleet.Socket, "error", err)
		return
	}
	near, raw := conn.(*net.UnixConn), far.NetConn().(*net.TCPConn) //nolint:forcetypeassert // they are
	defer context.AfterFunc(ctx, func() { _ = near.Close() })()     // boxd may read nothing just now
	done := make(chan struct{})
	var watch, wg sync.WaitGroup
	watch.Go(func() {
		monitor(raw, done, func() { _ = near.SetDeadline(time.Now().Add(goneTimeout)) }) // as in carry
	})
	wg.Go(func() {
		_, err := io.Copy(near, &guardedReader{far, a.serves})
		switch {
		case err == nil: // it has closed its sending side, and may still hear
			_ = near.CloseWrite()
			_, _ = io.Copy(io.Discard, raw) // after its end TLS has nothing more
		case errors.Is(err, errFenced):
			_ = raw.Close()
		default: // of boxd: what that has said would be lost with a connection that is closed before all is read
			_, _ = io.Copy(io.Discard, far)
		}
		_ = near.Close() // who has gone wants no answer
	})
	_, err = io.Copy(far, &guardedReader{near, func() bool { return !a.fenced() }})
	if err != nil {
		_ = near.Close()
	}
	if errors.Is(err, errFenced) {
		_ = raw.Close()
	}
	// What boxd has said is to arrive: the gateway closes the connection when it has heard it.
	_ = far.CloseWrite()
	_ = raw.CloseWrite()
	wg.Wait()
	close(done)
	watch.Wait()
}

// guardedReader is what a gateway sends, or boxd, as long as the node may take or say it: a connection carries one request after the other.
type guardedReader struct {
	from    io.Reader
	allowed func() bool
}

// errFenced ends a connection of a node that may have been taken for lost.
var errFenced = errors.New("the node is not ready: its sessions are not yet reconciled with the fleet")

// Read reads.
func (r *guardedReader) Read(p []byte) (int, error) {
	n, err := r.from.Read(p)
	if n > 0 && !r.allowed() {
		return 0, errFenced
	}
	return n, err
}

// directs are the connections of a gateway to nodes without NATS between.
type directs struct {
	monitors sync.WaitGroup // one for each connection

	mu     sync.Mutex
	open   map[string]map[*directConn]bool // by the name of the node
	failed map[string]directFailure        // by the same
	closed bool
}

func newDirects() *directs {
	return &directs{open: map[string]map[*directConn]bool{}, failed: map[string]directFailure{}}
}

// directFailure is when a gateway has failed to connect to a node, and where.
type directFailure struct {
	at    time.Time
	where api.FleetDirect
}

// directConn is one of them.
type directConn struct {
	*tls.Conn
	node        string
	all         *directs
	stopMonitor func()      // once
	writeClosed atomic.Bool // whether it has said all that it has to say
}

// CloseWrite says that nothing more comes. What was sent is to arrive.
func (c *directConn) CloseWrite() error {
	c.writeClosed.Store(true)
	return c.Conn.CloseWrite()
}

// Close ends it. What was sent and not said to be all is given up: the kernel would first wait until a node takes it, which may not be soon, and then tell it the end.
func (c *directConn) Close() error {
	c.all.mu.Lock()
	delete(c.all.open[c.node], c)
	c.all.mu.Unlock()
	c.stopMonitor()
	if !c.writeClosed.Load() {
		c.resetOnClose()
	}
	return c.Conn.Close()
}

// resetOnClose has the end of the connection told at once.
func (c *directConn) resetOnClose() {
	_ = c.NetConn().(*net.TCPConn).SetLinger(0) //nolint:forcetypeassert // it is one
}

// dial connects to a node; nil: over NATS. An address that did not answer is left alone for a while.
func (d *directs) dial(ctx context.Context, n *nodeState, key ed25519.PrivateKey, log *slog.Logger) net.Conn {
	if n.Direct == nil {
		return nil
	}
	where := *n.Direct
	d.mu.Lock()
	last, before := d.failed[n.Name]
	before = before && last.where == where
	avoided := before && time.Since(last.at) < directRetryAfter
	if before && !avoided {
		d.failed[n.Name] = directFailure{time.Now(), where} // one tries it again, and nobody else waits for that
	}
	d.mu.Unlock()
	if avoided {
		return nil
	}
	conn, err := dialDirect(ctx, &where, key)
	d.mu.Lock()
	defer d.mu.Unlock()
	if err != nil {
		if ctx.Err() != nil { // the caller has gone
			return nil
		}
		d.failed[n.Name] = directFailure{time.Now(), where}
		if !before {
			log.Warn("cannot connect to a node directly; using NATS", "node", n.Name, "address", where.Address, "error", err)
		}
		return nil
	}
	delete(d.failed, n.Name)
	if d.closed {
		_ = conn.NetConn().Close() // a TLS connection may wait before it closes
		return nil
	}
	done := make(chan struct{})
	c := &directConn{Conn: conn, node: n.Name, all: d, stopMonitor: sync.OnceFunc(func() { close(done) })}
	d.monitors.Go(func() { monitor(conn.NetConn().(*net.TCPConn), done, func() {}) }) //nolint:forcetypeassert // it is one
	if d.open[n.Name] == nil {
		d.open[n.Name] = map[*directConn]bool{}
	}
	d.open[n.Name][c] = true
	return c
}

// dialDirect connects to an address where somebody must have a key.
func dialDirect(ctx context.Context, where *api.FleetDirect, key ed25519.PrivateKey) (*tls.Conn, error) {
	public, err := access.ParseFleetKey(where.Key)
	if err != nil {
		return nil, err
	}
	own, err := certificate(key)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, directDialTimeout)
	defer cancel()
	conn, err := (&net.Dialer{KeepAliveConfig: keepAlive()}).DialContext(ctx, "tcp", where.Address)
	if err != nil {
		return nil, err
	}
	far := tls.Client(conn, &tls.Config{
		Certificates: []tls.Certificate{own}, MinVersion: tls.VersionTLS13,
		InsecureSkipVerify: true, VerifyConnection: verifyKey(func(k ed25519.PublicKey) bool { return public.Equal(k) }), //nolint:gosec // the key is compared instead
	})
	if err = far.HandshakeContext(ctx); err == nil {
		err = readGreeting(ctx, far)
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return far, nil
}

// close closes all connections; dial opens no more.
func (d *directs) close() {
	defer d.monitors.Wait()
	d.mu.Lock()
	d.closed = true
	nodes := slices.Collect(maps.Keys(d.open))
	d.mu.Unlock()
	for _, node := range nodes {
		d.closeNode(node)
	}
}

// readGreeting waits until a node has accepted a connection.
func readGreeting(ctx context.Context, far *tls.Conn) error {
	stop := context.AfterFunc(ctx, func() { _ = far.SetReadDeadline(time.Now()) })
	var received [len(greeting)]byte
	_, err := io.ReadFull(far, received[:])
	switch {
	case !stop(): // the deadline is over, or will be
		return ctx.Err()
	case err != nil:
		return err
	case string(received[:]) != greeting:
		return errors.New("the peer speaks another protocol")
	}
	return nil
}

// closeNode closes connections to a node that is lost, or to an agent that was there before. The kernel would not tell of an agent that does nothing.
func (d *directs) closeNode(node string) {
	d.mu.Lock()
	conns := d.open[node]
	delete(d.open, node)
	delete(d.failed, node)
	d.mu.Unlock()
	for c := range conns {
		c.stopMonitor()
		c.resetOnClose()
		_ = c.NetConn().Close() // a TLS connection may wait before it closes
	}
}
