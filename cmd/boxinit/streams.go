// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/output"
)

// stream is one output of a program: the pipe it writes to, and the ring that holds its bytes.
type stream struct {
	index  int
	pipe   int // reading end, or the terminal; -1 when finished
	writer int // writing end, -1 if not held
	token  int32
	paused bool // not watched: a reader lags too far behind
	ring   output.Ring
}

// input is the standard input of a durable program; isolation/client describes how boxd uses it.
type input struct {
	pipe   int // writing end, or the terminal; -1 if there is none
	memory int // memfd with the input written so far
}

// taken returns how many bytes of the input have gone into the program's pipe.
func (i *input) taken() uint64 {
	if i.memory < 0 {
		return 0
	}
	at, _ := unix.Seek(i.memory, 0, unix.SEEK_CUR) // cannot fail
	return uint64(max(at, 0))
}

// stdio are descriptors 0, 1 and 2 of a program.
type stdio [3]int

// openStdio makes the pipes or the terminal of a program and, if it is durable, the rings for its
// output.
func (s *server) openStdio(p *program, cmd *isolation.Command, stdin int) (stdio, error) {
	io := stdio{s.null, s.null, s.null}
	for i := range p.streams {
		p.streams[i] = stream{index: i, pipe: -1, writer: -1, ring: output.NewRing(cmd.Output.Head, cmd.Output.Tail)}
	}
	if cmd.Durable {
		item, err := s.openRings(p, cmd)
		if err != nil {
			return io, stepError(isolation.StepStdio, item, err)
		}
		for i := range p.streams {
			ring := &p.streams[i].ring
			if ring.Hold(-1); cmd.Wait {
				p.pace.Taken[i] = uint64(ring.Size())
				ring.Hold(ring.Size())
			}
		}
	}
	asUser(cmd.Root) // after the rings, which may be in the workspace
	if cmd.Terminal != nil {
		slave, err := s.openTerminal(p, cmd.Terminal)
		return stdio{slave, slave, slave}, err
	}
	var err error
	if cmd.Direct {
		return p.openDirect(io)
	}
	switch cmd.Stdin {
	case isolation.StdinNull:
	case isolation.StdinFile:
		io[0] = stdin
	case isolation.StdinPipe:
		if io[0], p.input.pipe, err = pipe(); err != nil {
			return io, stepError(isolation.StepStdio, "stdin", err)
		}
	}
	for i := range p.streams {
		if i == 1 && cmd.Merged {
			io[2] = io[1]
			break
		}
		if p.streams[i].pipe, io[1+i], err = pipe(); err != nil {
			io[1+i] = s.null
			return io, stepError(isolation.StepStdio, "output", err)
		}
		if !p.durable { // boxd learns of the end of output only from the program's end, so PID 1 need not wake for the hang-up of each pipe
			p.streams[i].writer = io[1+i]
		}
	}
	return io, nil
}

// openDirect makes pipes whose other ends are sent to boxd.
func (p *program) openDirect(io stdio) (stdio, error) {
	for i := range io {
		readEnd, writeEnd, err := pipe()
		if err != nil {
			return io, stepError(isolation.StepStdio, "pipe", err)
		}
		if i == 0 {
			readEnd, writeEnd = writeEnd, readEnd
		}
		p.remoteEnds, io[i] = append(p.remoteEnds, readEnd), writeEnd
	}
	return io, nil
}

func pipe() (readEnd, writeEnd int, err error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return -1, -1, err
	}
	return fds[0], fds[1], nil
}

// openRings makes the rings that hold the output of a durable program, or takes over those of the program it continues, and sets
// up its input. item says what an error is about.
func (s *server) openRings(p *program, cmd *isolation.Command) (item string, err error) {
	const rings = "rings"
	if cmd.Stdin == isolation.StdinPipe {
		if p.input.memory, err = unix.MemfdCreate("input", unix.MFD_CLOEXEC); err != nil {
			return rings, err
		}
	}
	if cmd.Continue != 0 {
		old := s.programs[cmd.Continue]
		if old == nil || !old.finished {
			return rings, unix.ESRCH
		}
		p.continued = old
		p.streams[0].ring, p.streams[1].ring, p.journal, p.event, p.pace = old.streams[0].ring, old.streams[1].ring, old.journal, old.event, old.pace
		return "", nil
	}
	for i := range p.streams {
		ring := &p.streams[i].ring
		if cmd.Spool { // as the box user, whose quota it is
			if err := ring.CreateIn(isolation.Workspace); err != nil {
				return isolation.ItemSpool, err
			}
		} else if err := ring.Create(); err != nil {
			return rings, err
		}
	}
	if p.journal, err = output.NewJournal(); err != nil {
		return rings, err
	}
	p.event, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	return rings, err
}

// handOver lists the descriptors of a durable program that boxd gets, in the order of the
// protocol.
func (p *program) handOver(withOutput bool) (files []int) {
	files = append(files, p.remoteEnds...)
	if p.input.pipe >= 0 {
		files = append(files, p.input.pipe, p.input.memory)
	}
	if withOutput {
		files = append(files, p.streams[0].ring.FD, p.streams[1].ring.FD, p.journal.FD, p.event)
	}
	return files
}

// watchStreams starts reading a program's output as it is written. If there is no memory for
// that, the output is read at the program's end, as much as the pipe holds.
func (s *server) watchStreams(p *program) {
	for i := range p.streams {
		if st := &p.streams[i]; st.pipe >= 0 {
			st.token, _ = s.watch(st.pipe, watch{program: p, stream: st})
		}
	}
}

// readable moves what a program has written into its ring.
func (s *server) readable(p *program, st *stream) {
	if p.isAhead(st) {
		s.pause(st)
		return
	}
	n, err := s.fill(p, st)
	switch {
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR):
		return
	case n == 0 || err != nil:
		s.closePipe(st)
	}
	p.notifyReaders()
}

// fill moves available output to the end of a ring. EAGAIN: there is none; 0: no writer is left.
func (s *server) fill(p *program, st *stream) (int64, error) {
	if p.durable {
		p.journal.Note(st.index, [2]int64{p.streams[0].ring.Size(), p.streams[1].ring.Size()})
	}
	if !p.terminal {
		return st.ring.Fill(st.pipe)
	}
	if s.scratch == nil {
		s.scratch = make([]byte, 16<<10)
	}
	n, err := unix.Read(st.pipe, s.scratch) // nothing that was read is lost: PID 1 does not end before its box
	if errors.Is(err, unix.EIO) {           // no process has the terminal open any more
		return 0, nil
	}
	if n > 0 {
		err = st.ring.Append(s.scratch[:n])
	}
	return int64(n), err
}

// notifyReaders wakes the readers of a program's output.
func (p *program) notifyReaders() {
	if p.event >= 0 {
		one := [8]byte{1}
		_, _ = unix.Write(p.event, one[:]) // if the counter is full they have been woken already
	}
}

// isAhead reports whether a program has to wait for its readers.
func (p *program) isAhead(st *stream) bool {
	return p.pace.Wait && st.ring.Size()-int64(p.pace.Taken[st.index]) >= st.ring.Tail
}

// setPace records how far the readers have come, and watches paused streams again whose readers
// have caught up.
func (s *server) setPace(p *program, pace *isolation.Pace) {
	p.pace = *pace
	for i := range p.streams {
		st := &p.streams[i]
		p.pace.Taken[i] = min(p.pace.Taken[i], uint64(st.ring.Size()))
		st.ring.Hold(-1)
		if p.pace.Wait {
			st.ring.Hold(int64(p.pace.Taken[i]))
		}
		if st.paused && !p.isAhead(st) {
			ev := unix.EpollEvent{Events: unix.EPOLLIN, Fd: st.token}
			if unix.EpollCtl(s.epoll, unix.EPOLL_CTL_ADD, st.pipe, &ev) == nil {
				st.paused = false
			}
		}
	}
}

// pause stops reading a stream; its program then waits for room in the pipe, as with any slow
// reader.
func (s *server) pause(st *stream) {
	if unix.EpollCtl(s.epoll, unix.EPOLL_CTL_DEL, st.pipe, nil) == nil {
		st.paused = true
	}
}

// drain reads what is in the pipe of a program that has ended. It neither waits for other
// processes that hold the writing end, nor reads on if they keep writing.
func (s *server) drain(p *program, st *stream) {
	if st.pipe < 0 {
		return
	}
	remaining, err := int(terminalRest), error(nil)
	if !p.terminal {
		remaining, err = unix.IoctlGetInt(st.pipe, unix.TIOCINQ)
	}
	for err == nil && remaining > 0 {
		var n int64
		n, err = s.fill(p, st)
		if errors.Is(err, unix.EINTR) {
			err = nil
			continue
		}
		if n == 0 {
			return
		}
		remaining -= int(n)
	}
}

// terminalRest bounds how much is read from a terminal at the end of its program: more than a
// terminal buffers.
const terminalRest = 256 << 10

// closePipe stops reading a stream; the output read so far stays in the ring.
func (s *server) closePipe(st *stream) {
	if st.writer >= 0 {
		unix.Close(st.writer)
		st.writer = -1
	}
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
