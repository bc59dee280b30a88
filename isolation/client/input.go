// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation"
)

// Input is the standard input of a durable program. What is written goes into a memory file first, and from
// there into the pipe by splice, which moves the file's own position in the same system call: so the size of
// the file is the number of bytes ever taken from callers, its position that of those the program's pipe has,
// and both outlive boxd with PID 1's copy of the file.
type Input struct {
	program  *Program
	pipe     *os.File // writing end, or the terminal
	memory   *os.File
	terminal bool

	mu    sync.Mutex // guards the fields below, and is held while anything moves
	size  int64
	holed int64
	err   error // why nothing can be written any more
}

// newInput takes a pipe, which does not block, and a memory file over.
func newInput(p *Program, pipe, memory int) *Input {
	i := &Input{program: p, pipe: os.NewFile(uintptr(pipe), "stdin"), memory: os.NewFile(uintptr(memory), "input"), terminal: p.terminal}
	var st unix.Stat_t
	if unix.Fstat(memory, &st) == nil { // cannot fail
		i.size = st.Size
	}
	return i
}

// ErrInputClosed means that the end of the input has been written.
var ErrInputClosed = errors.New("standard input is closed")

// Taken is the number of bytes ever taken by Write, by any boxd: they are the program's, or will be.
func (i *Input) Taken() int64 {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.size
}

// inputHole is how much of what the program has taken is given back at once.
const inputHole = 64 << 10

// Write writes to the program, and waits while that does not read. After EPIPE it never will.
func (i *Input) Write(ctx context.Context, b []byte) (n int, err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.err != nil {
		return 0, i.err
	}
	late := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = i.pipe.SetWriteDeadline(time.Unix(1, 0))
		close(late)
	})
	defer func() {
		if !stop() {
			<-late
			_ = i.pipe.SetWriteDeadline(time.Time{})
		}
	}()
	if err := i.move(ctx); err != nil { // what is left of an earlier Write
		return 0, err
	}
	for len(b) > 0 && err == nil {
		var m int
		m, err = unix.Pwrite(int(i.memory.Fd()), b[:min(len(b), inputHole)], i.size)
		i.size += int64(max(m, 0))
		n, b = n+max(m, 0), b[max(m, 0):]
		if errors.Is(err, unix.EINTR) {
			err = nil
		}
		if err == nil {
			err = i.move(ctx)
		}
	}
	return n, err
}

// move brings all that has been taken into the pipe.
func (i *Input) move(ctx context.Context) error {
	memory := int(i.memory.Fd())
	at, err := unix.Seek(memory, 0, unix.SEEK_CUR)
	if err != nil {
		return os.NewSyscallError("input", err)
	}
	raw, err := i.pipe.SyscallConn()
	if err != nil {
		return err
	}
	for at < i.size {
		var n int64
		var werr error
		err := raw.Write(func(fd uintptr) bool {
			n, werr = i.splice(memory, int(fd), i.size-at)
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
		at += max(n, 0)
	}
	if end := at &^ 4095; end-i.holed >= inputHole { // whole pages: the pipe may still have parts of one
		if unix.Fallocate(memory, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, i.holed, end-i.holed) == nil {
			i.holed = end
		}
	}
	return nil
}

// splice moves up to n bytes from the file's position, which it moves too.
func (i *Input) splice(memory, pipe int, n int64) (int64, error) {
	if i.terminal {
		m, err := unix.Sendfile(pipe, memory, nil, int(n)) // splice needs a pipe on one side
		return int64(m), err
	}
	return unix.Splice(memory, nil, pipe, nil, int(n), unix.SPLICE_F_NONBLOCK)
}

// CloseWrite is the end of the input. To a terminal that means nothing: there it is a character.
func (i *Input) CloseWrite() error {
	if i.terminal {
		return nil
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if errors.Is(i.err, ErrInputClosed) {
		return nil
	}
	i.err = ErrInputClosed
	return errors.Join(i.pipe.Close(), i.program.tell(&isolation.BoxRequest{ID: i.program.id, CloseInput: true}))
}

// resize gives a terminal another size; the kernel tells its programs (ioctl_tty(2), TIOCSWINSZ).
func (i *Input) resize(rows, cols uint16) error {
	raw, err := i.pipe.SyscallConn()
	if err != nil {
		return err
	}
	size := unix.Winsize{Row: rows, Col: cols}
	cerr := raw.Control(func(fd uintptr) { err = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &size) })
	return errors.Join(cerr, os.NewSyscallError("resize", err))
}

func (i *Input) close() {
	i.pipe.Close() // CloseWrite may have closed it
	i.memory.Close()
}
