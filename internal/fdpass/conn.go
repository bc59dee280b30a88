// SPDX-License-Identifier: Apache-2.0

package fdpass

import (
	"context"
	"errors"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Conn is one end of a connection, driven by the Go poller. One goroutine may receive while any
// number send.
//
// The poller does not watch the socket itself: it always asks for writability too, and would wake whenever the peer takes a
// message. It watches an epoll instance that has the socket for input only.
type Conn struct {
	// Patience is how long Send waits for a peer that does not receive; 0 is without limit. Set
	// it before the first Send.
	Patience time.Duration

	fd int    // the socket, until Close
	in *input // for receivers

	sendMu sync.Mutex // serializes senders; a message is one system call, so it guards no field

	size int     // of the bodies that it receives
	recv *Buffer // of Recv, from its first call on
}

// input waits for input of one descriptor.
type input struct {
	file *os.File // an epoll instance
	raw  syscall.RawConn
}

// newInput waits for input of fd.
func newInput(fd int) (*input, error) {
	set, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	if err = unix.SetNonblock(set, true); err == nil { // or the poller does not take it
		err = unix.EpollCtl(set, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)})
	}
	if err != nil {
		unix.Close(set)
		return nil, os.NewSyscallError("epoll_ctl", err)
	}
	f := os.NewFile(uintptr(set), "fdpass")
	raw, err := f.SyscallConn()
	if err != nil {
		f.Close()
		return nil, err
	}
	return &input{file: f, raw: raw}, nil
}

// Pair returns two connected ends: a Conn for this process, which receives bodies of up to size
// bytes, and a bare, blocking, close-on-exec descriptor for another process. Both are the
// caller's.
func Pair(size int) (*Conn, int, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, -1, os.NewSyscallError("socketpair", err)
	}
	c, err := FromFD(fds[0], size)
	if err != nil {
		unix.Close(fds[1])
		return nil, -1, err
	}
	return c, fds[1], nil
}

// StartProgram starts a program of ours without environment, and with no descriptors but /dev/null, its log, which is its standard
// error, the other end of the connection as 3, and more. The connection and the pidfd are the caller's. sys may say how it is started.
func StartProgram(path string, argv []string, log *os.File, sys syscall.SysProcAttr, more ...uintptr) (conn *Conn, pidfd int, err error) {
	conn, child, err := Pair(MaxInline)
	if err != nil {
		return nil, -1, err
	}
	defer unix.Close(child)
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		conn.Close()
		return nil, -1, err
	}
	defer null.Close()
	if log == nil {
		log = null
	}
	pidfd = -1
	sys.Setsid, sys.PidFD = true, &pidfd
	_, err = syscall.ForkExec(path, argv, &syscall.ProcAttr{
		Dir: "/", Files: append([]uintptr{null.Fd(), null.Fd(), log.Fd(), uintptr(child)}, more...), Sys: &sys,
	})
	if err == nil && pidfd < 0 {
		err = unix.ENOSYS
	}
	if err != nil {
		conn.Close()
		return nil, -1, err
	}
	return conn, pidfd, nil
}

// FromFD returns a Conn for a SEQPACKET socket that receives bodies of up to size bytes. It takes
// the descriptor over, even if it fails.
func FromFD(fd, size int) (*Conn, error) {
	unix.CloseOnExec(fd)
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("fcntl", err)
	}
	in, err := newInput(fd)
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	return &Conn{fd: fd, in: in, size: size}, nil
}

// How often a sender checks whether there is room again. Messages are short and few, so there is room unless the peer hangs.
const (
	minPoll = time.Millisecond
	maxPoll = 20 * time.Millisecond
)

// Send sends one message. While the peer's queue is full it waits, and returns
// os.ErrDeadlineExceeded if that takes longer than Patience.
func (c *Conn) Send(body []byte, files ...int) error {
	c.sendMu.Lock()
	defer c.sendMu.Unlock()
	var serr error
	interval, since := minPoll, time.Time{}
	for {
		err := c.in.raw.Write(func(uintptr) bool {
			serr = Send(c.fd, body, files...)
			if !errors.Is(serr, unix.EAGAIN) {
				return true
			}
			_ = c.in.file.SetWriteDeadline(time.Now().Add(interval)) // there is no event for room
			return false
		})
		if err == nil {
			if !since.IsZero() {
				_ = c.in.file.SetWriteDeadline(time.Time{})
			}
			return serr
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return os.ErrClosed
		}
		_ = c.in.file.SetWriteDeadline(time.Time{})
		now := time.Now()
		if since.IsZero() {
			since = now
		}
		if c.Patience > 0 && now.Sub(since) >= c.Patience {
			return err
		}
		interval = min(2*interval, maxPoll)
	}
}

// ended returns why the poller does not wait: the deadline has passed, or the file is closed.
func ended(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	return os.ErrClosed
}

// Recv receives the next message; see the function Recv for what it returns and who owns it. Only
// one goroutine may call it, and not together with Receive.
func (c *Conn) Recv(inlineOnly bool) (body []byte, files []int, err error) {
	if c.recv == nil {
		c.recv = NewBuffer(c.size)
	}
	var rerr error
	err = c.in.raw.Read(func(uintptr) bool {
		body, files, rerr = Recv(c.fd, c.recv, inlineOnly)
		return !errors.Is(rerr, unix.EAGAIN)
	})
	if err != nil {
		return nil, nil, ended(err)
	}
	return body, files, rerr
}

// RecvContext is Recv that also ends when ctx does; the connection stays usable.
func (c *Conn) RecvContext(ctx context.Context, inlineOnly bool) (body []byte, files []int, err error) {
	if err := c.in.file.SetReadDeadline(time.Time{}); err != nil {
		return nil, nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = c.in.file.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	body, files, err = c.Recv(inlineOnly)
	if errors.Is(err, os.ErrDeadlineExceeded) && ctx.Err() != nil {
		return nil, nil, ctx.Err()
	}
	return body, files, err
}

// Handler gets what the function Recv returns, except EAGAIN; the body is valid until it returns. again asks for more messages.
// It must not close the connection: see Shutdown.
type Handler func(body []byte, files []int, err error) (again bool)

// Receive passes messages to handle until that returns false, or the connection is closed. Only one goroutine may call it. It
// holds a buffer only while there are messages, since thousands of boxes are silent most of the time.
func (c *Conn) Receive(inlineOnly bool, buffers *Buffers, handle Handler) {
	_ = c.in.raw.Read(func(uintptr) bool { // an error: it was closed
		b := buffers.take()
		defer buffers.pool.Put(b)
		return c.handle(inlineOnly, b, handle)
	})
}

// handle passes on the available messages; done says that handle wants no more.
func (c *Conn) handle(inlineOnly bool, b *Buffer, handle Handler) (done bool) {
	for {
		body, files, err := Recv(c.fd, b, inlineOnly)
		if errors.Is(err, unix.EAGAIN) {
			return false
		}
		if !handle(body, files, err) {
			return true
		}
	}
}

// Take returns the bare descriptor and ends the Conn: the socket can be passed to another process
// without this one reading from it again.
func (c *Conn) Take() (int, error) {
	var dup int
	var derr error
	if err := c.in.raw.Control(func(uintptr) {
		dup, derr = unix.FcntlInt(uintptr(c.fd), unix.F_DUPFD_CLOEXEC, 3)
	}); err != nil {
		return -1, err
	}
	if derr != nil {
		return -1, os.NewSyscallError("fcntl", derr)
	}
	return dup, c.Close()
}

// Shutdown ends the connection for both ends; receivers find its end. Close must follow.
func (c *Conn) Shutdown() {
	_ = c.in.raw.Control(func(uintptr) { _ = unix.Shutdown(c.fd, unix.SHUT_RDWR) }) // nothing to do if it is closed
}

// Close closes the connection and wakes all waiters. It waits for a running Handler.
func (c *Conn) Close() error {
	err := c.in.file.Close() // waits until the socket is not in use
	if err == nil {
		err = unix.Close(c.fd)
	}
	return err
}
