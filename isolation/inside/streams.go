// SPDX-License-Identifier: Apache-2.0

package inside

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation"
)

// stream is one output of a program: the pipe it writes to and the ring its bytes end up in.
type stream struct {
	pipe   int // reading end, -1 when finished
	token  int32
	paused bool // not watched: a follower has not taken enough yet
	ring   ring
}

// stdio is what a program is started with.
type stdio struct {
	child [3]int // its 0, 1 and 2
	stdin int    // writing end of its standard input, -1 if that is no pipe
}

// openStdio makes the pipes of a program and, if its output is followed, the rings.
func (s *server) openStdio(p *program, cmd *isolation.Command, stdin int) (stdio, error) {
	io := stdio{child: [3]int{s.null, s.null, s.null}, stdin: -1}
	for i := range p.streams {
		p.streams[i] = stream{pipe: -1, ring: newRing(cmd.Output)}
	}
	switch cmd.Stdin {
	case isolation.StdinNull:
	case isolation.StdinFile:
		io.child[0] = stdin
	case isolation.StdinPipe:
		var fds [2]int
		if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
			return io, stepError(isolation.StepStdio, "stdin", err)
		}
		io.child[0], io.stdin = fds[0], fds[1]
	}
	for i := range p.streams {
		var fds [2]int
		if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
			return io, stepError(isolation.StepStdio, "output", err)
		}
		p.streams[i].pipe, io.child[1+i] = fds[0], fds[1]
	}
	if !cmd.Output.Follow {
		return io, nil
	}
	var err error
	if p.event, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return io, stepError(isolation.StepStdio, "eventfd", err)
	}
	for i := range p.streams {
		if err := p.streams[i].ring.create(); err != nil {
			return io, stepError(isolation.StepStdio, "ring", err)
		}
	}
	return io, nil
}

// watchStreams begins to take a program's output as it comes. Out of memory for that, the output is
// taken at the program's end, as far as the pipe holds it.
func (s *server) watchStreams(p *program) {
	for i := range p.streams {
		st := &p.streams[i]
		st.token, _ = s.watch(st.pipe, watch{program: p, stream: st})
	}
}

// readable moves what a program has written into its ring.
func (s *server) readable(p *program, st *stream) {
	if st.ring.full() {
		s.pause(st)
		return
	}
	n, err := st.ring.fill(st.pipe)
	switch {
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR):
		return
	case n == 0 || err != nil:
		s.closePipe(st)
	}
	s.tellFollower(p)
}

// tellFollower wakes who follows a program's output.
func (s *server) tellFollower(p *program) {
	if p.event >= 0 {
		one := [8]byte{1}
		_, _ = unix.Write(p.event, one[:]) // a full counter means that it has been told
	}
}

// taken goes on with a stream whose follower has caught up.
func (s *server) taken(p *program, t *isolation.Taken) {
	st := &p.streams[t.Stream]
	st.ring.take(t.Offset)
	if st.paused && !st.ring.full() {
		ev := unix.EpollEvent{Events: unix.EPOLLIN, Fd: st.token}
		if unix.EpollCtl(s.epoll, unix.EPOLL_CTL_ADD, st.pipe, &ev) == nil {
			st.paused = false
		}
	}
}

// pause stops watching a stream; its program will wait for room in the pipe, as for any slow reader.
func (s *server) pause(st *stream) {
	if unix.EpollCtl(s.epoll, unix.EPOLL_CTL_DEL, st.pipe, nil) == nil {
		st.paused = true
	}
}

// drain takes what is in the pipe of a program that has ended. Whoever else holds the writing end is
// not waited for, nor listened to if they go on writing.
func (s *server) drain(st *stream) {
	if st.pipe < 0 {
		return
	}
	there, err := unix.IoctlGetInt(st.pipe, unix.TIOCINQ)
	for err == nil && there > 0 {
		var n int64
		n, err = st.ring.fill(st.pipe)
		if errors.Is(err, unix.EINTR) {
			err = nil
			continue
		}
		if n == 0 {
			return
		}
		there -= int(n)
	}
}

// closePipe ends the reading of a stream; what it has written stays in the ring.
func (s *server) closePipe(st *stream) {
	switch {
	case st.pipe < 0:
		return
	case st.paused:
		delete(s.watches, st.token)
		unix.Close(st.pipe)
	default:
		s.unwatch(st.pipe, st.token)
	}
	st.pipe = -1
}

// closeStream releases a stream and its ring; a copy of the ring may live on with boxd.
func (s *server) closeStream(st *stream) {
	s.closePipe(st)
	if st.ring.fd >= 0 {
		unix.Close(st.ring.fd)
		st.ring.fd = -1
	}
}
