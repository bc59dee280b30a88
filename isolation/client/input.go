// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation"
)

// Input is the standard input of a durable program. What is written to it goes into a memory
// file, and from there into the pipe by splice, which advances the file's own offset in the same
// system call. So that offset is the number of bytes that have ever gone into the pipe, and it
// outlives boxd with PID 1's copy of the descriptor.
type Input struct {
	program  *Program
	pipe     *os.File // writing end of the pipe, or the terminal
	memory   *os.File
	terminal bool
	taken    atomic.Int64 // the offset of memory

	sem     chan struct{} // holds one element; its taker may use memory and the fields below
	punched int64
	clean   bool  // nothing is in the file after its offset
	err     error // why nothing can be written any more
}

// newInput takes over a non-blocking pipe and a memory file. What an earlier boxd has put into
// the file but not into the pipe was never confirmed, so its writer still has it and sends it
// again.
func newInput(p *Program, pipe, memory int) *Input {
	i := &Input{
		program: p, pipe: os.NewFile(uintptr(pipe), "stdin"), memory: os.NewFile(uintptr(memory), "input"), terminal: p.terminal,
		sem: make(chan struct{}, 1),
	}
	i.sem <- struct{}{}
	offset, _ := unix.Seek(memory, 0, unix.SEEK_CUR) // cannot fail
	i.taken.Store(offset)
	return i
}

// ErrInputClosed means that the end of the input has been written.
var ErrInputClosed = errors.New("standard input is closed")

// Taken returns the number of bytes that any boxd has ever given to the program.
func (i *Input) Taken() int64 { return i.taken.Load() }

// How many bytes are moved, and freed, at once.
const (
	inputChunk = 64 << 10
	inputHole  = 64 << 10
)

// Write writes to the program, and blocks while the program does not read. Whatever the error, n
// bytes of b have gone to the program. After EPIPE it will never read any more.
func (i *Input) Write(ctx context.Context, b []byte) (n int, err error) {
	select {
	case <-i.sem:
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	defer func() { i.sem <- struct{}{} }()
	if i.err != nil {
		return 0, i.err
	}
	canceled := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = i.pipe.SetWriteDeadline(time.Unix(1, 0))
		close(canceled)
	})
	defer func() {
		if !stop() {
			<-canceled
			_ = i.pipe.SetWriteDeadline(time.Time{})
		}
	}()
	for n < len(b) && err == nil {
		var m int
		m, err = i.writeThrough(ctx, b[n:min(len(b), n+inputChunk)])
		n += m
	}
	return n, err
}

// writeThrough writes b into the memory file and moves it into the pipe. What does not fit into the pipe
// is cut off the file again.
func (i *Input) writeThrough(ctx context.Context, b []byte) (n int, err error) {
	memory, start := int(i.memory.Fd()), i.taken.Load()
	if !i.clean { // an earlier boxd may have been killed at this point
		if err := unix.Ftruncate(memory, start); err != nil {
			return 0, os.NewSyscallError("input", err)
		}
	}
	i.clean = false
	end := start
	for len(b) > 0 {
		m, err := unix.Pwrite(memory, b, end)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return 0, os.NewSyscallError("input", err)
		}
		b, end = b[max(m, 0):], end+int64(max(m, 0))
	}
	if err = i.move(ctx, memory, end); err == nil {
		i.clean = true
		i.taken.Store(end)
		return int(end - start), nil
	}
	offset, serr := unix.Seek(memory, 0, unix.SEEK_CUR)
	i.taken.Store(offset)
	return int(offset - start), errors.Join(err, serr)
}

// move moves the file's contents up to end into the pipe.
func (i *Input) move(ctx context.Context, memory int, end int64) error {
	raw, err := i.pipe.SyscallConn()
	if err != nil {
		return err
	}
	for offset := i.taken.Load(); offset < end; {
		var n int64
		var werr error
		err := raw.Write(func(fd uintptr) bool {
			n, werr = i.splice(memory, int(fd), end-offset)
			return !errors.Is(werr, unix.EAGAIN)
		})
		switch {
		case ctx.Err() != nil && (err != nil || werr != nil):
			return ctx.Err()
		case err != nil:
			i.err = err
		case errors.Is(werr, unix.EINTR):
		case werr != nil:
			i.err = os.NewSyscallError("write", werr)
		case n == 0:
			i.err = os.NewSyscallError("write", unix.EPIPE)
		}
		if i.err != nil {
			return i.err
		}
		offset += max(n, 0)
	}
	_ = raw.Control(func(fd uintptr) { i.punchHole(memory, int(fd), end) })
	return nil
}

// punchHole punches a hole where the program has read: only whole pages, since a part of one would
// be overwritten with zeros, and none that the pipe still refers to.
func (i *Input) punchHole(memory, pipe int, offset int64) {
	if offset-i.punched < 2*inputHole {
		return
	}
	unread := 0
	if !i.terminal {
		var err error
		if unread, err = unix.IoctlGetInt(pipe, unix.TIOCINQ); err != nil {
			return
		}
	}
	end := (offset - int64(unread)) &^ 4095
	if end-i.punched >= inputHole && unix.Fallocate(memory, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, i.punched, end-i.punched) == nil {
		i.punched = end
	}
}

// splice moves up to n bytes from the file's offset, which it advances.
func (i *Input) splice(memory, pipe int, n int64) (int64, error) {
	if i.terminal {
		m, err := unix.Sendfile(pipe, memory, nil, int(n)) // splice needs a pipe on one side, and a terminal is none
		return int64(m), err
	}
	return unix.Splice(memory, nil, pipe, nil, int(n), unix.SPLICE_F_NONBLOCK)
}

// CloseWrite ends the input, after any Write in progress. A terminal has no end of input; there
// it is a character.
func (i *Input) CloseWrite() error {
	if i.terminal {
		return nil
	}
	<-i.sem
	defer func() { i.sem <- struct{}{} }()
	if errors.Is(i.err, ErrInputClosed) {
		return nil
	}
	i.err = ErrInputClosed
	return errors.Join(i.pipe.Close(), i.program.send(&isolation.BoxRequest{ID: i.program.id, CloseInput: true}))
}

// Deaf reports whether no process is left that could read the input.
func (i *Input) Deaf() bool {
	raw, err := i.pipe.SyscallConn()
	if err != nil {
		return true
	}
	poll := []unix.PollFd{{Events: unix.POLLOUT}}
	err = raw.Control(func(fd uintptr) {
		poll[0].Fd = int32(fd)
		_, _ = unix.Poll(poll, 0) // POLLERR: the reading end is closed (poll(2))
	})
	return err != nil || poll[0].Revents&unix.POLLERR != 0
}

// resize changes the size of a terminal; the kernel signals that to its programs (ioctl_tty(2),
// TIOCSWINSZ).
func (i *Input) resize(rows, cols uint16) error {
	raw, err := i.pipe.SyscallConn()
	if err != nil {
		return err
	}
	size := unix.Winsize{Row: rows, Col: cols}
	if raw.Control(func(fd uintptr) { err = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &size) }) != nil {
		return os.ErrClosed // by hangUp: the program has ended. The error of Control does not say so to errors.Is
	}
	return os.NewSyscallError("resize", err)
}

// hangUp closes the terminal of an ended program, of which a box has only so many. A Write in
// progress ends.
func (i *Input) hangUp() { _ = i.pipe.Close() }

// close ends a Write in progress, and releases the files.
func (i *Input) close() {
	_ = i.pipe.Close() // CloseWrite or hangUp may have closed it
	<-i.sem
	i.err = errors.Join(i.err, os.ErrClosed)
	i.memory.Close()
	i.sem <- struct{}{}
}
