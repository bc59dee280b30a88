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
type Conn struct {
	// Patience is how long Send waits for a peer that does not receive; 0 is without limit. Set
	// it before the first Send.
	Patience time.Duration

	file *os.File
	raw  syscall.RawConn

	sendMu sync.Mutex // serializes senders; a message is one system call, so it guards no field

	recv *Buffer
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

// FromFD returns a Conn for a SEQPACKET socket that receives bodies of up to size bytes. It takes
// the descriptor over, even if it fails.
func FromFD(fd, size int) (*Conn, error) {
	unix.CloseOnExec(fd)
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("fcntl", err)
	}
	f := os.NewFile(uintptr(fd), "fdpass")
	raw, err := f.SyscallConn()
	if err != nil {
		f.Close()
		return nil, err
	}
	return &Conn{file: f, raw: raw, recv: NewBuffer(size)}, nil
}

// Send sends one message. While the peer's queue is full it waits, and returns
// os.ErrDeadlineExceeded if that takes longer than Patience.
func (c *Conn) Send(body []byte, files ...int) error {
	c.sendMu.Lock()
	defer c.sendMu.Unlock()
	var serr error
	waits := false
	err := c.raw.Write(func(fd uintptr) bool {
		serr = Send(int(fd), body, files...)
		full := errors.Is(serr, unix.EAGAIN)
		if full && !waits && c.Patience > 0 {
			waits = true
			_ = c.file.SetWriteDeadline(time.Now().Add(c.Patience))
		}
		return !full
	})
	if waits {
		_ = c.file.SetWriteDeadline(time.Time{})
	}
	if err != nil {
		return ended(err)
	}
	return serr
}

// ended says why the poller does not wait: the deadline has passed, or the file is closed.
func ended(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	return os.ErrClosed
}

// Recv receives the next message; see the function Recv for what it returns and who owns it. Only
// one goroutine may call it.
func (c *Conn) Recv(inlineOnly bool) (body []byte, files []int, err error) {
	var rerr error
	err = c.raw.Read(func(fd uintptr) bool {
		body, files, rerr = Recv(int(fd), c.recv, inlineOnly)
		return !errors.Is(rerr, unix.EAGAIN)
	})
	if err != nil {
		return nil, nil, ended(err)
	}
	return body, files, rerr
}

// RecvContext is Recv that also ends when ctx does; the connection stays usable.
func (c *Conn) RecvContext(ctx context.Context, inlineOnly bool) (body []byte, files []int, err error) {
	if err := c.file.SetReadDeadline(time.Time{}); err != nil {
		return nil, nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = c.file.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	body, files, err = c.Recv(inlineOnly)
	if errors.Is(err, os.ErrDeadlineExceeded) && ctx.Err() != nil {
		return nil, nil, ctx.Err()
	}
	return body, files, err
}

// Take returns the bare descriptor and ends the Conn: the socket can be passed to another process
// without this one reading from it again.
func (c *Conn) Take() (int, error) {
	var dup int
	var derr error
	if err := c.raw.Control(func(fd uintptr) {
		dup, derr = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 3)
	}); err != nil {
		return -1, err
	}
	if derr != nil {
		return -1, os.NewSyscallError("fcntl", derr)
	}
	return dup, c.file.Close()
}

// Close ends the connection and wakes a Recv that waits on it.
func (c *Conn) Close() error { return c.file.Close() }
