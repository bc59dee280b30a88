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

// peerListener accepts connections, as many as each caller may have; any other is closed before its first byte is
// read. Whose a Unix socket is, the kernel says. Whoever comes over TCP has to say so with each request.
type peerListener struct {
	net.Listener
	callers *conns.Limiter
	name    func(*access.Peer) string // of who has come over the Unix socket
	fleet   bool                      // gateways come here: what the kernel says of their agent counts for nothing
	tls     bool                      // TLS is spoken over its connections, and they come from any host
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
		leave, refused := l.enter(&from, conn)
		if refused != nil {
			l.callers.TurnAway(conn, refused)
			continue
		}
		return peerConn{conn, from, leave}, nil
	}
}

// enter counts a connection.
func (l peerListener) enter(from *peerAddr, conn net.Conn) (leave func(), refused *conns.Refusal) {
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

// anonymous is the uid of callers whom the kernel does not know; their connections have slots.
const anonymous = ^uint32(0)

// peerConn is a connection that knows its caller. The caller travels as the remote address, which
// reaches ConnContext through whatever else wraps the connection.
type peerConn struct {
	net.Conn
	peer  peerAddr
	leave func()
}

var errHungUp = errors.New("the caller has hung up")

// Read has an error of the network for the end of the connection. The WebSocket library takes io.EOF in the
// middle of a message for the end of that message: half a line, or nothing, which is the end of the input.
func (c peerConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.peer.head != nil {
		c.peer.head.note(p[:n])
	}
	if errors.Is(err, io.EOF) {
		if len(p) == 1 { // how net/http looks out for the end of a connection while a request is answered
			err = c.closed()
		}
		if err == nil || errors.Is(err, io.EOF) {
			err = &net.OpError{Op: "read", Net: "unix", Err: errHungUp}
		}
	}
	return n, err
}

// closed waits until the caller has gone, or for the deadline of reads. A caller may end what it sends and wait for its answer
// (shutdown(2)): a Unix socket has POLLHUP only when both ways have ended (poll(2)).
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
	return raw.Read(func(fd uintptr) bool { // is called again when the state of the socket has changed
		state := []unix.PollFd{{Fd: int32(fd)}}
		n, err := unix.Poll(state, 0)
		return n > 0 && state[0].Revents&(unix.POLLHUP|unix.POLLERR) != 0 || err != nil && !errors.Is(err, unix.EINTR)
	})
}

// SyscallConn is that of the connection, if it has one.
func (c peerConn) SyscallConn() (syscall.RawConn, error) {
	if raw, ok := c.Conn.(syscall.Conn); ok {
		return raw.SyscallConn()
	}
	return nil, errors.ErrUnsupported
}

// CloseWrite ends what is sent, and goes on receiving.
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
	c.leave()
	return c.Conn.Close()
}

type peerAddr struct {
	peer   access.Peer
	limits *conns.Limits     // nil: each request has that of its principal
	slot   *conns.Slot       // of who has come over TCP
	head   *head             // of the request that is under way; nil: boxd calls itself
	self   *access.Principal // where boxd has called itself
	// within says that boxd calls itself in the name of the peer.
	within bool
	fleet  bool         // a gateway has connected: each request says for whom it is
	pass   *access.Pass // by which the peer was let in where it calls within, if a gateway spoke for it; nil: none did
}

// dialAs opens a connection to ourselves on which calls are those of somebody who has connected.
func (s *Server) dialAs(from *peerAddr) func(context.Context) (net.Conn, error) {
	as := peerAddr{peer: from.peer, self: from.self, within: true, pass: from.pass} // each call has the load of its principal
	return func(ctx context.Context) (net.Conn, error) {
		near, far, err := socketPair()
		if err != nil {
			return nil, err
		}
		if err := s.within.Hand(ctx, peerConn{far, as, func() {}}); err != nil {
			near.Close()
			far.Close()
			return nil, err
		}
		return near, nil
	}
}

// socketPair returns both ends of a connection. It is a real one: streams look at what the kernel holds of it.
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

// Network is the kind of the way in.
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

// socketOf is the Unix socket that a request has come on, nil if it is none.
func socketOf(ctx context.Context) *net.UnixConn {
	conn, ok := ctx.Value(connKey{}).(peerConn)
	if !ok {
		return nil
	}
	socket, _ := conn.Conn.(*net.UnixConn)
	return socket
}

// caller returns who has connected.
func caller(ctx context.Context) (peerAddr, bool) {
	peer, ok := ctx.Value(peerKey{}).(peerAddr)
	return peer, ok
}

// peerOf reads the credentials the peer had when it connected (SO_PEERCRED, unix(7)).
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
	if err == nil && cred.Uid == nobody {
		err = unix.EAFNOSUPPORT
	}
	if err != nil {
		return access.Peer{}, fmt.Errorf("peer: %w", err)
	}
	return access.Peer{Local: true, UID: cred.Uid, GID: cred.Gid, Groups: groups, PID: int(cred.Pid)}, nil
}

// nobody is the uid of a peer without one: the kernel's word on a socket that is not a Unix socket.
const nobody = ^uint32(0)

// maxGroups is the most supplementary groups that are looked at; the kernel allows 65536.
const maxGroups = 256

// peerGroups reads the supplementary groups (SO_PEERGROUPS). A user of more groups than we look at
// has none of them here, which can only deny.
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
