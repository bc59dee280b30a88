// SPDX-License-Identifier: Apache-2.0

// Connections to ports of a box. The keeper connects inside the netns of the box and boxd gets the descriptor:
// nothing on the host listens for it, and no network rule is involved.

package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/client"
	"github.com/boxd-dev/boxd/supervisor/driver"

	"github.com/boxd-dev/boxd/supervisor/policy"
)

// Maximum connections into the boxes of one session and of one owner.
const (
	maxOfSession = 64
	maxOfOwner   = 256
)

// connectTimeout bounds connecting: a program whose accept queue is full does not answer.
const connectTimeout = 10 * time.Second

// Ports counts the connections into boxes.
type Ports struct {
	boxes *driver.Driver
	cfg   func() *policy.Config

	mu       sync.Mutex // guards the fields below
	sessions map[string]int
	owners   map[string]int
}

// NewPorts returns Ports without connections. cfg returns the configuration in force.
func NewPorts(boxes *driver.Driver, cfg func() *policy.Config) *Ports {
	return &Ports{boxes: boxes, cfg: cfg, sessions: map[string]int{}, owners: map[string]int{}}
}

// ParsePort parses a port number.
func ParsePort(text string) (uint16, error) {
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 || strconv.FormatUint(n, 10) != text {
		return 0, fault.Field("port", text, "a number from 1 to 65535")
	}
	return uint16(n), nil
}

// May refuses ports of a session whose owner may not use ports.
func (b *Ports) May(s *Session) error {
	effective := b.cfg().PolicyOf(s.Owner)
	return effective.May(policy.ToolPorts)
}

// MaxPreview is the longest validity of a preview token; 0: there are no previews.
func (b *Ports) MaxPreview() time.Duration { return time.Duration(b.cfg().Sessions.PreviewMax) }

// Open connects to a port on the loopback interface of a session's box, whatever network that has. The connection ends with the
// session; writing to it counts as use of the session.
func (b *Ports) Open(ctx context.Context, s *Session, port uint16) (*PortConn, error) {
	if err := b.May(s); err != nil {
		return nil, err
	}
	if err := s.Await(ctx); err != nil {
		return nil, err
	}
	if err := s.Use(); err != nil {
		return nil, err
	}
	if s.Info().Settings.Network == policy.NetworkHost {
		return nil, fault.Errorf(fault.Conflict, "session %s uses the host network: its ports are ports of the host", fault.Show(s.ID)).WithHint("connect to 127.0.0.1 on the host")
	}
	if s.Info().Frozen {
		return nil, frozenError(s.ID)
	}
	release, err := b.acquire(s)
	if err != nil {
		return nil, err
	}
	conn, err := b.connect(ctx, s, port)
	if err != nil {
		release()
		return nil, err
	}
	c := &PortConn{TCPConn: conn, session: s, done: make(chan struct{}), release: release}
	go c.watch() // ends with the connection
	return c, nil
}

// acquire counts a connection; the caller must call release.
func (b *Ports) acquire(s *Session) (release func(), err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	limitErr := func(subject string, limit int) error {
		return fault.Errorf(fault.Exhausted, "%s %d connections to ports, the limit", subject, limit).WithHint("close one of them")
	}
	switch {
	case b.sessions[s.Key] >= maxOfSession:
		return nil, limitErr("session "+fault.Show(s.ID)+" has", maxOfSession)
	case b.owners[s.Owner.Name] >= maxOfOwner:
		return nil, limitErr("the sessions of "+s.Owner.Name+" have", maxOfOwner)
	}
	b.sessions[s.Key]++
	b.owners[s.Owner.Name]++
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		decrement(b.sessions, s.Key)
		decrement(b.owners, s.Owner.Name)
	}, nil
}

func decrement(count map[string]int, name string) {
	if count[name]--; count[name] == 0 {
		delete(count, name)
	}
}

func (b *Ports) connect(ctx context.Context, s *Session, port uint16) (*net.TCPConn, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	var conn *net.TCPConn
	var err error
	for _, addr := range []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()} { // some programs listen on one only
		if conn, err = b.connectTo(ctx, s.BoxKey(), netip.AddrPortFrom(addr, port)); !errors.Is(err, unix.ECONNREFUSED) {
			break
		}
	}
	if errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EADDRNOTAVAIL) { // the box has no IPv6
		err = unix.ECONNREFUSED
	}
	switch {
	case err == nil:
		return conn, nil
	case errors.Is(err, unix.ECONNREFUSED):
		return nil, fault.Errorf(fault.Conflict, "nothing listens on port %d in session %s", port, fault.Show(s.ID)).
			WithHint("start a program in the box that listens on 127.0.0.1, ::1 or all addresses")
	case errors.Is(err, unix.ECONNRESET), errors.Is(err, unix.EPIPE):
		return nil, fault.Errorf(fault.Conflict, "the program that listens on port %d in session %s has closed the connection", port, fault.Show(s.ID)).
			WithHint("try again; the program may be ending")
	case errors.Is(err, unix.ESRCH):
		return nil, s.notReadyError()
	case errors.Is(err, client.ErrNoKeeper), errors.Is(err, client.ErrKeeperGone):
		return nil, fault.Errorf(fault.Unavailable, "port %d: %w", port, err).WithHint("try again: boxd is starting a new keeper")
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, unix.ETIMEDOUT), errors.Is(err, os.ErrDeadlineExceeded):
		return nil, fault.Errorf(fault.Unavailable, "port %d of session %s does not answer", port, fault.Show(s.ID)).
			WithHint("the program that listens there does not accept connections now")
	}
	return nil, fmt.Errorf("port %d: %w", port, err)
}

func (b *Ports) connectTo(ctx context.Context, key string, to netip.AddrPort) (*net.TCPConn, error) {
	fd, err := b.boxes.DialLoopback(ctx, key, to)
	if err != nil {
		return nil, err
	}
	conn, err := connOf(fd)
	if err != nil {
		return nil, err
	}
	if err := awaitConnected(ctx, conn); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// connOf takes over the descriptor that the keeper has sent.
func connOf(fd int) (*net.TCPConn, error) {
	f := os.NewFile(uintptr(fd), "port")
	defer f.Close()
	conn, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		conn.Close()
		return nil, fmt.Errorf("connect: %w", isolation.ErrMalformed)
	}
	return tcp, nil
}

// awaitConnected waits until conn is connected.
func awaitConnected(ctx context.Context, conn *net.TCPConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = conn.SetWriteDeadline(time.Unix(1, 0)) })()
	var errno error
	err = raw.Write(func(fd uintptr) bool { errno = socketError(int(fd)); return !errors.Is(errno, unix.EINPROGRESS) })
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return errors.Join(err, errno)
}

// socketError is nil for an established connection, EINPROGRESS for a pending one, and otherwise why it failed.
func socketError(fd int) error {
	n, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
	if err == nil && n != 0 {
		err = syscall.Errno(n)
	}
	if err != nil {
		return err
	}
	if _, err = unix.Getpeername(fd); errors.Is(err, unix.ENOTCONN) {
		return unix.EINPROGRESS
	}
	return err
}

// PortConn is a connection into a box.
type PortConn struct {
	*net.TCPConn
	session *Session
	once    sync.Once
	done    chan struct{}
	release func()
}

// watch closes the connection when the session ends: an open one would keep the network of the box alive.
func (c *PortConn) watch() {
	select {
	case <-c.session.Ended():
		_ = c.Close() // its reader gets an error
	case <-c.done:
	}
}

// Write writes into the box, and wakes it if it is asleep.
func (c *PortConn) Write(p []byte) (int, error) {
	if err := c.session.Use(); err != nil {
		return 0, err
	}
	return c.TCPConn.Write(p)
}

// ReadFrom hides TCPConn's, which would bypass Write.
func (c *PortConn) ReadFrom(r io.Reader) (int64, error) { return io.Copy(struct{ io.Writer }{c}, r) }

// Close closes the connection.
func (c *PortConn) Close() error {
	err := net.ErrClosed
	c.once.Do(func() {
		close(c.done)
		err = c.TCPConn.Close()
		c.release()
	})
	return err
}
