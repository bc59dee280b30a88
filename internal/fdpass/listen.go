// SPDX-License-Identifier: Apache-2.0

package fdpass

import (
	"errors"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// backlog is how many connections may wait to be accepted.
const backlog = 16

// Bind makes a listening socket with mode 0600 at a name in an open directory, whose path may be
// longer than that of a socket may be. The descriptor is the caller's.
func Bind(dir int, name string) (int, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	// The name gets the mode of the socket (unix(7)), so it never has another one.
	if err = unix.Fchmod(fd, 0o600); err == nil {
		err = unix.Bind(fd, address(dir, name))
	}
	if err == nil {
		err = unix.Listen(fd, backlog)
	}
	if err != nil {
		unix.Close(fd)
		return -1, os.NewSyscallError("bind", err)
	}
	return fd, nil
}

// Dial connects to the socket at a name in an open directory. EAGAIN: too many connections are waiting there. ECONNREFUSED: no
// process listens any more. The descriptor is the caller's, and non-blocking.
func Dial(dir int, name string) (int, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	if err := unix.Connect(fd, address(dir, name)); err != nil {
		unix.Close(fd)
		return -1, os.NewSyscallError("connect", err)
	}
	return fd, nil
}

func address(dir int, name string) *unix.SockaddrUnix {
	return &unix.SockaddrUnix{Name: "/proc/self/fd/" + strconv.Itoa(dir) + "/" + name}
}

// Listener accepts connections, driven by the Go poller.
type Listener struct {
	file *os.File
	raw  syscall.RawConn
}

// NewListener returns a Listener for a listening socket. It takes the descriptor over, even if it
// fails.
func NewListener(fd int) (*Listener, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("fcntl", err)
	}
	f := os.NewFile(uintptr(fd), "listener")
	raw, err := f.SyscallConn()
	if err != nil {
		f.Close()
		return nil, err
	}
	return &Listener{f, raw}, nil
}

// Accept waits for a connection. The descriptor is the caller's. os.ErrClosed: the Listener is closed.
func (l *Listener) Accept() (int, error) {
	var conn int
	var aerr error
	err := l.raw.Read(func(fd uintptr) bool {
		for {
			conn, _, aerr = unix.Accept4(int(fd), unix.SOCK_CLOEXEC)
			if !errors.Is(aerr, unix.EINTR) && !errors.Is(aerr, unix.ECONNABORTED) {
				return !errors.Is(aerr, unix.EAGAIN)
			}
		}
	})
	if err != nil {
		return -1, ended(err)
	}
	return conn, os.NewSyscallError("accept", aerr)
}

// Close ends a wait in Accept. Connections that wait to be accepted are reset.
func (l *Listener) Close() { l.file.Close() }
