// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/relay/conns"
	"github.com/boxd-dev/boxd/supervisor/access"
)

// peerKey is the context key of the caller.
type peerKey struct{}

// peerListener accepts connections, up to the limit of each caller; any other is closed before its first byte is read.
// The kernel identifies the peer of a Unix socket. A client over TCP authenticates itself with each request.
type peerListener struct {
	net.Listener
	callers *conns.Limiter
	name    func(*access.Peer) string // of the peer of a Unix socket
	fleet   bool                      // for gateways: the credentials of their agent do not count
	tls     bool                      // its connections speak TLS, and come from any host
}

// Accept returns the next connection; its remote address is the caller.
func (l peerListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		var from peerAddr
		switch socket := conn.(type) {
		case *net.UnixConn:
			if from.fleet = l.fleet; l.fleet {
				from.peer = access.Peer{UID: anonymous, GID: anonymous}
				break
			}
			from.peer, err = peerOf(socket)
		case *net.TCPConn:
			from.peer = access.Peer{UID: anonymous, GID: anonymous, TLS: l.tls}
		default:
			err = errors.ErrUnsupported
		}
		if err != nil {
			conn.Close()
			continue
		}
		from.head = &head{}
		release, refused := l.enter(&from, conn)
		if refused != nil {
			l.callers.TurnAway(conn, refused)
			continue
		}
		return peerConn{conn, from, release}, nil
	}
}

// enter counts a connection.
func (l peerListener) enter(from *peerAddr, conn net.Conn) (release func(), refused *conns.Refusal) {
	if !from.peer.Local {
		if from.slot, refused = l.callers.Admit(func() { conn.Close() }); refused != nil {
			return nil, refused
		}
		return from.slot.Leave, nil
	}
	name := l.name(&from.peer)
	if from.limits, refused = l.callers.Enter(name); refused != nil {
		return nil, refused
	}
	return sync.OnceFunc(func() { l.callers.Leave(name) }), nil
}

// anonymous is the uid of callers that the kernel does not identify; their connections have slots.
const anonymous = ^uint32(0)

// peerConn is a connection that knows its caller, which it passes as the remote address: that reaches ConnContext
// through any other wrapper of the connection.
type peerConn struct {
	net.Conn
	peer    peerAddr
	release func()
}

var errHungUp = errors.New("the caller has hung up")

// Read returns a network error at the end of the connection. The WebSocket library takes an io.EOF inside a message for
// the end of that message: half a line, or nothing, which would mean the end of the input.
func (c peerConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.peer.head != nil {
		c.peer.head.note(p[:n])
	}
	if errors.Is(err, io.EOF) {
		if len(p) == 1 { // how net/http detects the end of a connection while a request is handled
			err = c.closed()
		}
		if err == nil || errors.Is(err, io.EOF) {
			err = &net.OpError{Op: "read", Net: "unix", Err: errHungUp}
		}
	}
	return n, err
}

// closed waits until the caller has gone, or for the read deadline. A caller may close its sending side and wait for its
// response (shutdown(2)): a Unix socket has POLLHUP only when both directions are closed (poll(2)).
func (c peerConn) closed() error {
	if tcp, ok := c.Conn.(*net.TCPConn); ok {
		return goneTCP(tcp)
	}
	socket, ok := c.Conn.(*net.UnixConn)
	if !ok {
		return nil
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return err
	}
	return raw.Read(func(fd uintptr) bool { // called again when the socket's state changes
		state := []unix.PollFd{{Fd: int32(fd)}}
		n, err := unix.Poll(state, 0)
		return n > 0 && state[0].Revents&(unix.POLLHUP|unix.POLLERR) != 0 || err != nil && !errors.Is(err, unix.EINTR)
	})
}

// SyscallConn returns that of the connection, if it has one.
func (c peerConn) SyscallConn() (syscall.RawConn, error) {
	if raw, ok := c.Conn.(syscall.Conn); ok {
		return raw.SyscallConn()
	}
	return nil, errors.ErrUnsupported
}

// CloseWrite closes the sending side and keeps receiving.
func (c peerConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}

// RemoteAddr returns a peerAddr.
func (c peerConn) RemoteAddr() net.Addr { return c.peer }

// Close makes room for another connection of the caller.
func (c peerConn) Close() error {
	c.release()
	return c.Conn.Close()
}

type peerAddr struct {
	peer   access.Peer
	limits *conns.Limits     // nil: each request has the limits of its principal
	slot   *conns.Slot       // of a TCP client
	head   *head             // of the request in progress; nil: boxd calls itself
	self   *access.Principal // set if boxd calls itself
	// within says that boxd calls itself as the peer.
	within bool
	fleet  bool         // from a gateway: each request names its principal
	pass   *access.Pass // of the peer in a call within, if a gateway vouched for it; nil: none did
}

// dialAs opens a connection to boxd itself on which calls are those of the peer.
func (s *Server) dialAs(from *peerAddr) func(context.Context) (net.Conn, error) {
	as := peerAddr{peer: from.peer, self: from.self, within: true, pass: from.pass} // each call has the limits of its principal
	return func(ctx context.Context) (net.Conn, error) {
		near, far, err := socketPair()
		if err != nil {
			return nil, err
		}
		if err := s.within.hand(ctx, peerConn{far, as, func() {}}); err != nil {
			near.Close()
			far.Close()
			return nil, err
		}
		return near, nil
	}
}

// socketPair returns both ends of a connection. It is a real socket: streams query its send buffer.
func socketPair() (near, far net.Conn, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("socketpair: %w", err)
	}
	one, other := os.NewFile(uintptr(fds[0]), "near"), os.NewFile(uintptr(fds[1]), "far")
	defer one.Close()
	defer other.Close()
	if near, err = net.FileConn(one); err != nil {
		return nil, nil, fmt.Errorf("socketpair: %w", err)
	}
	if far, err = net.FileConn(other); err != nil {
		near.Close()
		return nil, nil, fmt.Errorf("socketpair: %w", err)
	}
	return near, far, nil
}

// Network returns the kind of socket.
func (a peerAddr) Network() string {
	if a.peer.Local || a.fleet {
		return "unix"
	}
	return "tcp"
}

func (a peerAddr) String() string {
	if a.peer.Local {
		return access.OfUser(a.peer.UID)
	}
	if a.fleet {
		return "fleet"
	}
	return "loopback"
}

// withPeer puts the caller into the context of its requests.
func withPeer(ctx context.Context, conn net.Conn) context.Context {
	if addr, ok := conn.RemoteAddr().(peerAddr); ok {
		ctx = context.WithValue(ctx, peerKey{}, addr)
		if addr.slot != nil {
			ctx = conns.WithSlot(ctx, addr.slot)
		}
	}
	return context.WithValue(ctx, connKey{}, conn)
}

// connKey is the context key of the connection.
type connKey struct{}

// socketOf returns the Unix socket of a request, nil if it has come another way.
func socketOf(ctx context.Context) *net.UnixConn {
	conn, ok := ctx.Value(connKey{}).(peerConn)
	if !ok {
		return nil
	}
	socket, _ := conn.Conn.(*net.UnixConn)
	return socket
}

// caller returns the connected peer.
func caller(ctx context.Context) (peerAddr, bool) {
	peer, ok := ctx.Value(peerKey{}).(peerAddr)
	return peer, ok
}

// peerOf reads the credentials that the peer had when it connected (SO_PEERCRED, unix(7)).
func peerOf(conn syscall.Conn) (access.Peer, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return access.Peer{}, fmt.Errorf("peer: %w", err)
	}
	var cred *unix.Ucred
	var groups []uint32
	var cerr error
	err = raw.Control(func(fd uintptr) {
		if cred, cerr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); cerr == nil {
			groups, cerr = peerGroups(fd)
		}
	})
	if err == nil {
		err = cerr
	}
	if err == nil && cred.Uid == noUID {
		err = unix.EAFNOSUPPORT
	}
	if err != nil {
		return access.Peer{}, fmt.Errorf("peer: %w", err)
	}
	return access.Peer{Local: true, UID: cred.Uid, GID: cred.Gid, Groups: groups, PID: int(cred.Pid)}, nil
}

// noUID is the uid of a peer without one: what the kernel returns for a socket that is not a Unix socket.
const noUID = ^uint32(0)

// maxGroups is the maximum number of supplementary groups that are read; the kernel allows 65536.
const maxGroups = 256

// peerGroups reads the supplementary groups (SO_PEERGROUPS). A user with more groups than maxGroups has none of them
// here, which can only deny.
func peerGroups(fd uintptr) ([]uint32, error) {
	groups := make([]uint32, maxGroups)
	size := uint32(len(groups) * 4)
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, fd, unix.SOL_SOCKET, unix.SO_PEERGROUPS,
		uintptr(unsafe.Pointer(&groups[0])), uintptr(unsafe.Pointer(&size)), 0)
	if errno == unix.ERANGE {
		return nil, nil
	}
	if errno != 0 {
		return nil, errno
	}
	return groups[:size/4], nil
}
